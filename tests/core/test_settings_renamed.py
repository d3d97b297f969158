import inspect
import warnings

import pytest

from credo.core.errors import SettingError
from credo.core.settings import other_arguments, present_names, renamed


@renamed(samples="num_samples", warn=False)
def draw(x, num_samples=100, seed=0):
    """Draws."""
    return x, num_samples, seed


@renamed(n="count")
def old(count=1, **more):
    return count, more


def test_both_names_and_a_place_mean_the_same_thing():
    with warnings.catch_warnings(action="error"):
        assert draw(1, 5) == draw(1, num_samples=5) == draw(x=1, samples=5) == (1, 5, 0)
        assert draw(1, seed=2) == (1, 100, 2)


def test_the_signature_shows_present_names_only():
    assert str(inspect.signature(draw)) == "(x, num_samples=100, seed=0)"
    assert draw.__doc__ == "Draws." and draw.__name__ == "draw"


def test_a_former_name_is_warned_about_in_one_line_at_the_line_of_the_caller():
    with pytest.warns(FutureWarning, match=r"^old: n is called count now; .*release\.$") as told:
        assert old(n=3, other=4) == (3, {"other": 4})
    assert told[0].filename == __file__
    assert len(told) == 1


def test_one_thing_under_both_names_is_refused():
    with pytest.raises(SettingError, match="samples and num_samples are the same"):
        draw(1, samples=2, num_samples=2)
    with pytest.raises(TypeError, match="num_samples"):
        draw(1, 2, samples=2)


def test_an_unknown_argument_gets_the_right_name():
    with pytest.raises(SettingError, match="draw has no argument 'n_draws'. Did you mean 'num_sam"):
        draw(1, n_draws=3)
    with pytest.raises(SettingError, match=r"Did you mean 'seed'\? Known: num_samples, seed, x"):
        draw(1, random_state=3)


def test_a_name_that_the_function_does_not_have_is_a_mistake_of_the_author():
    with pytest.raises(TypeError, match="no argument 'width'"):
        renamed(size="width")(lambda count: count)


def test_a_function_knows_its_other_names():
    assert other_arguments(draw) == {"samples": "num_samples"} and other_arguments(lambda: 0) == {}


def test_names_keep_their_order():
    given = {"a": 1, "old": 2, "z": 3}
    assert list(present_names(given, {"old": "new"}, "f")) == ["a", "new", "z"]
