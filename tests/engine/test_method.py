import inspect
import json
import warnings
from dataclasses import dataclass, replace

import pytest
import torch
from zoo.regression import bnn, problem

import credo
from credo.core.errors import SettingError
from credo.core.settings import setting
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


@dataclass(frozen=True)
class Counted(VI):
    name = "counted"
    num_things: int = setting(3, "Things.", formerly="things", short="t")


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setitem(methods, "counted", Counted)


def test_a_method_is_made_from_short_and_present_names_alike(counted):
    with warnings.catch_warnings(action="error"):
        same = [make_method("counted", {name: 4}) for name in ("num_things", "t")]
        assert same[0] == same[1] == Counted(t=4) == make_method(Counted(), {"t": 4})
        assert make_method(Counted(t=4), {"rank": 2}) == replace(Counted(rank=2), t=4)
    assert same[0].settings()["num_things"] == 4 and "t" not in same[0].settings()


def test_a_former_name_is_warned_about_once_at_the_line_of_the_caller(counted):
    for make in (
        lambda: make_method("counted", {"things": 4}),
        lambda: make_method(Counted(), {"things": 4}),
        lambda: Counted(things=4),
    ):
        with pytest.warns(FutureWarning, match="things is called num_things now") as told:
            assert make() == Counted(num_things=4)
        assert len(told) == 1 and told[0].filename == __file__


def test_a_refusal_may_suggest_what_is_not_a_setting():
    with pytest.raises(SettingError, match=r"no setting 'bs'\. It is an argument of fit"):
        make_method("vi", {"bs": 3})
    with pytest.raises(SettingError, match="Did you mean 'batch_size'"):
        make_method("vi", {"bs": 3}, beside=("batch_size",))


def test_an_editor_sees_the_settings():
    names = list(inspect.signature(VI).parameters)
    assert {"posterior", "estimator", "beta", "train_samples"} <= set(names)
    assert "num_things" in inspect.signature(Counted).parameters


def test_runs_of_before_a_renaming_load_and_go_on_without_a_word(tmp_path, counted):
    x, y, _ = problem()
    fit = {"method": "counted", "epochs": 2, "seed": 0, "progress": False, "run": tmp_path / "run"}
    first = bnn().fit((x, y), t=4, **fit)
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    config["settings"]["things"] = config["settings"].pop("num_things")
    path.write_text(json.dumps(config))
    with warnings.catch_warnings(action="error"):
        loaded = credo.load(tmp_path / "run", bnn().net)
        again = bnn().fit((x, y), num_things=4, **fit)
    assert loaded.method == again.method == Counted(num_things=4)
    assert torch.equal(loaded.predict(x, 3).outputs, first.predict(x, 3).outputs)
    assert torch.equal(again.predict(x, 3).outputs, first.predict(x, 3).outputs)
