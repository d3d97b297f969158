import pytest

from credo.core.errors import SettingError
from credo.methods import VI, make_method, methods


def test_a_name_with_settings_is_the_configured_object():
    assert make_method("vi", {"beta": 2.0}) == VI(beta=2.0)
    method = VI(beta=2.0)
    assert make_method(method, {}) == method
    assert make_method(method, {"rank": 3}) == VI(beta=2.0, rank=3)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("vii", {}, "Unknown method 'vii'. Did you mean 'vi'"),
        ("vi", {"betta": 1.0}, "method 'vi' has no setting 'betta'. Did you mean 'beta'"),
        ("vi", {"beta": -1.0}, "vi: beta=-1.0 is not valid"),
        ("vi", {"posterior": "meanfield"}, "Did you mean 'mean_field'"),
        (VI(), {"bta": 1.0}, "method 'vi' has no setting 'bta'"),
        ("exact", {"noise": "unkown"}, "Did you mean 'unknown'"),
        ("mle", {"init": 3}, "mle: init=3"),
    ],
)
def test_bad_names_and_settings_are_named(name, settings, words):
    with pytest.raises(SettingError, match=words):
        make_method(name, settings)


@pytest.mark.parametrize("name", list(methods))
def test_every_method_says_what_it_is_and_its_settings_are_json(name):
    import json

    kind = methods[name]
    assert kind.name == name and kind.summary.endswith(".") and kind.reference and kind.__doc__
    assert json.loads(json.dumps(kind().settings())) == kind().settings()


def test_a_method_takes_nothing_trainable_as_given_unless_it_says_so():
    from torch import nn
    from zoo.models import make_model

    model = make_model(nn.Linear(2, 1))
    assert VI().given(model, 0) == {} and methods["laplace"]().given(model, 0) == {}
    assert set(methods["laplace"](train=False).given(model, 0)) == {"weight", "bias"}


def test_a_state_dict_is_described_not_stored():
    assert VI(init={"w": 1}).settings()["init"].startswith("<")
