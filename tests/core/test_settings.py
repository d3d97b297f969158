import inspect
import warnings
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import pytest

from credo.core.errors import SettingError
from credo.core.settings import (
    Configurable,
    describe,
    other_names,
    present_settings,
    setting,
    validate,
)


@dataclass(frozen=True)
class Config:
    lr: float = setting(1e-3, "Step.", gt=0.0, le=1.0)
    steps: int = setting(5, "How many.", ge=1)
    kind: str = setting("local", "Which.", choices=("local", "weights"))
    fast: bool = setting(False, "Fast.")
    limit: Any = setting(None, "At most.", kind=int, gt=0)


def test_good_values_pass():
    for config in (
        Config(),
        Config(lr=1),
        Config(lr=0.5, steps=1, kind="weights", fast=True, limit=3),
    ):
        validate(config, "vi")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"lr": 0.0}, r"vi: lr=0\.0 is not valid; expected a number > 0\.0 and <= 1\.0\."),
        ({"lr": 2.0}, "lr=2.0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"lr": float("inf")}, "lr=inf"),
        ({"lr": "0.1"}, "lr='0.1'"),
        ({"lr": True}, "lr=True"),
        ({"steps": 0}, "steps=0 is not valid; expected a whole number >= 1"),
        ({"steps": 2.5}, "steps=2.5"),
        (
            {"kind": "locl"},
            r"kind='locl' is not valid; expected one of local, weights\. Did you mean 'local'\?",
        ),
        ({"fast": 1}, "fast=1 is not valid; expected true or false"),
        ({"limit": 0}, "limit=0 is not valid; expected a whole number > 0 or None"),
    ],
)
def test_bad_values_are_named_with_what_would_do(bad, words):
    with pytest.raises(SettingError, match=words):
        validate(Config(**bad), "vi")


def test_unknown_settings_get_the_nearest():
    with pytest.raises(SettingError, match=r"vi has no setting 'step'\. Did you mean 'steps'\?"):
        present_settings({"step": 1}, Config, "vi")
    assert present_settings({"steps": 1}, Config, "vi") == {"steps": 1}
    with pytest.raises(SettingError, match=r"Did you mean 'epochs'\?"):
        present_settings({"n_epochs": 1}, Config, "vi", beside=("epochs",))


def test_description_has_a_row_per_setting():
    rows = {row["name"]: row for row in describe(Config)}
    assert list(rows) == ["lr", "steps", "kind", "fast", "limit"]
    assert rows["lr"]["short"] is None and rows["lr"]["formerly"] is None
    assert (
        rows["lr"]["default"] == 1e-3
        and rows["lr"]["help"] == "Step."
        and rows["kind"]["range"] == "one of local, weights"
    )


@dataclass(frozen=True)
class Base(metaclass=Configurable):
    rank: int = setting(4, "Rank.")

    @abstractmethod
    def run(self): ...


@dataclass(frozen=True)
class Swarm(Base):
    num_members: int = setting(5, "Networks.", ge=1, short="members")
    num_particles: int = setting(20, "Particles.", ge=1, formerly="particles")

    def run(self):
        return self.num_members


def test_a_short_form_is_accepted_without_a_word():
    with warnings.catch_warnings(action="error"):
        assert Swarm(members=3) == Swarm(num_members=3) == Swarm(4, 3)
        assert replace(Swarm(), members=3) == replace(Swarm(members=7), num_members=3)
        assert replace(Swarm(members=3), rank=1) == Swarm(1, 3)


def test_a_former_name_is_accepted_with_one_line_at_the_line_of_the_caller():
    with pytest.warns(FutureWarning, match=r"Swarm: particles is called num_particles now") as told:
        assert Swarm(particles=2) == Swarm(num_particles=2)
    assert len(told) == 1 and told[0].filename == __file__
    with pytest.warns(FutureWarning):
        assert replace(Swarm(), particles=2).num_particles == 2


def test_names_of_stored_settings_are_no_news():
    given, present = {"particles": 2, "members": 3}, {"num_particles": 2, "num_members": 3}
    with warnings.catch_warnings(action="error"):
        assert present_settings(given, Swarm, "s", warn=False) == present
    with pytest.warns(FutureWarning, match="s: particles"):
        present_settings(given, Swarm, "s")


def test_signatures_and_descriptions_show_present_names_only():
    assert list(inspect.signature(Swarm).parameters) == ["rank", "num_members", "num_particles"]
    assert [row["name"] for row in describe(Swarm)] == ["rank", "num_members", "num_particles"]
    assert other_names(Swarm) == {"members": "num_members", "particles": "num_particles"}


def test_one_setting_under_two_names_is_refused():
    with pytest.raises(SettingError, match="members and num_members are the same"):
        Swarm(members=3, num_members=3)
    with pytest.raises(SettingError, match="members and num_members are the same"):
        present_settings({"num_members": 3, "members": 3}, Swarm, "s")


def test_an_unknown_setting_of_a_call_gets_the_right_name():
    with pytest.raises(SettingError, match=r"Swarm has no setting 'n_particles'\. Did you mean"):
        Swarm(n_particles=3)
    with pytest.raises(SettingError, match=r"Swarm has no setting 'weight_decay'\. Weight decay"):
        Swarm(weight_decay=3)


def test_a_class_with_something_left_to_write_is_still_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Base()


def test_a_class_with_a_call_of_its_own_takes_what_that_takes():
    @dataclass(frozen=True)
    class Own(Swarm):
        def __init__(self, size):
            super().__init__(num_members=size)

    assert Own(size=3).run() == 3
