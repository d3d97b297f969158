"""Settings of a method from the command line."""

import pytest

from credo.cli.assignments import parse_settings
from credo.core.errors import CredoError


def test_settings_are_read_by_their_types():
    assert parse_settings("deep_ensemble", ["num_members=3", "adversarial=0.1"]) == {
        "num_members": 3,
        "adversarial": 0.1,
    }
    assert parse_settings("vi", []) == {}


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("vi", ["bta=1"], "beta"),
        ("vi", ["beta=much"], "beta"),
        ("deep_ensembel", [], "deep_ensemble"),
    ],
)
def test_wrong_names_and_values_are_refused(method, given, said):
    with pytest.raises(CredoError, match=said):
        parse_settings(method, given)
