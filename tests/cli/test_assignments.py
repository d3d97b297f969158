from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from credo.cli.assignments import parse_assignments
from credo.cli.run_files import parse_sizes
from credo.core.errors import SettingError
from credo.core.settings import describe, setting
from credo.methods import methods


@dataclass(frozen=True)
class Config:
    rate: float = setting(0.1, "A rate.", gt=0.0)
    count: int = setting(3, "A count.")
    quick: bool = setting(False, "Whether.")
    kind: str = setting("a", "Which.", choices=("a", "b"))
    rank: int | None = setting(None, "Maybe.", kind=int)
    start: str = setting("random", "Start.", kind=(str, Mapping))
    sizes: tuple = setting((1,), "Sizes.")
    num_draws: int = setting(4, "Draws.", formerly="n", short="draws")


def parse(*pairs):
    return parse_assignments(pairs, describe(Config), "Method 'm'")


def test_values_are_read_as_their_kind():
    values = parse(
        "rate=0.5",
        "count=7",
        "quick=yes",
        "kind=b",
        "rank=none",
        "start=pretrained",
        "sizes=[1, 2]",
    )
    assert values == {
        "rate": 0.5,
        "count": 7,
        "quick": True,
        "kind": "b",
        "rank": None,
        "start": "pretrained",
        "sizes": (1.0, 2.0),
    }
    assert parse("rate=1e-3", "rank=4") == {"rate": 1e-3, "rank": 4}


def test_other_names_are_read_as_the_present_one(capsys):
    assert parse("draws=3") == {"num_draws": 3}
    assert capsys.readouterr().err == ""
    assert parse("n=5") == {"num_draws": 5}
    assert capsys.readouterr().err == "credo: --set n is called num_draws now; use that name.\n"
    with pytest.raises(SettingError, match="--set num_draws is given twice"):
        parse("draws=3", "num_draws=4")


def test_what_has_an_option_of_its_own_is_named_with_it():
    with pytest.raises(SettingError, match=r"no setting 'learning_rate'\. Use --lr\.$"):
        parse_assignments(["learning_rate=1"], describe(Config), "m", ("lr", "batch_size"))
    with pytest.raises(SettingError, match=r"Use --batch-size\.$"):
        parse_assignments(["bs=1"], describe(Config), "m", ("lr", "batch_size"))


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("rate", "not of the form name=value"),
        ("=3", "not of the form name=value"),
        ("rte=3", "no setting 'rte'. Did you mean 'rate'"),
        ("count=2.5", "count='2.5' is not valid; expected a whole number"),
        ("n_samples=2", "no setting 'n_samples'. Did you mean 'num_draws'"),
        ("rate=fast", "rate='fast' is not valid; expected a number > 0"),
        ("quick=maybe", "quick='maybe' is not valid; expected true or false"),
    ],
)
def test_refusals_say_what_was_expected(pair, message):
    with pytest.raises(SettingError, match=message):
        parse(pair)


def test_a_name_given_twice():
    with pytest.raises(SettingError, match="given twice"):
        parse("count=1", "count=2")


def test_sizes():
    assert parse_sizes("50, 20", "--hidden") == (50, 20)
    assert parse_sizes("", "--hidden") == ()
    for text in ("5,x", "0", "-3", "1.5"):
        with pytest.raises(SettingError, match=f"--hidden '{text}'"):
            parse_sizes(text, "--hidden")


def test_several_numbers_come_with_commas_or_as_a_list():
    rows = describe(methods["vi"])
    assert parse_assignments(["levels=-1,0,1"], rows, "vi") == {"levels": (-1.0, 0.0, 1.0)}
    assert parse_assignments(["levels=[-1, 1]"], rows, "vi") == {"levels": (-1.0, 1.0)}
    assert parse_assignments(["layers=0.*"], describe(methods["last_layer"]), "last_layer") == {
        "layers": "0.*"
    }
