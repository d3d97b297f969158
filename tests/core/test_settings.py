from dataclasses import dataclass
from typing import Any

import pytest

from credo.core.errors import SettingError
from credo.core.settings import check_names, describe, setting, validate


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
        check_names({"step": 1}, Config, "vi")
    check_names({"steps": 1}, Config, "vi")


def test_description_has_a_row_per_setting():
    rows = {row["name"]: row for row in describe(Config)}
    assert list(rows) == ["lr", "steps", "kind", "fast", "limit"]
    assert (
        rows["lr"]["default"] == 1e-3
        and rows["lr"]["help"] == "Step."
        and rows["kind"]["range"] == "one of local, weights"
    )
