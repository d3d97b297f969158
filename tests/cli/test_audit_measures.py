import math

import pytest

from credo.cli.audit_measures import EXACT, MEASURES, OFF, UNKNOWN, finite, judge


def found(key, value, error, ceiling):
    return {key: value, f"{key}_error": error, f"{key}_ceiling": ceiling}


@pytest.mark.parametrize(
    ("key", "near", "far"),
    [
        ("agreement", 0.93, 0.85),
        ("total_variation", 0.99, 1.05),
        ("wasserstein", 0.99, 1.05),
        ("mean_shift", 0.99, 1.05),
        ("nll_difference", -0.99, -1.05),
        ("calibration_difference", 0.99, 1.05),
    ],
)
def test_two_errors_beyond_the_ceiling_are_allowed(key, near, far):
    ceiling = 0.95 if key == "agreement" else 0.96
    assert judge(found(key, near, 0.02, ceiling), True)[0]["verdict"] == EXACT
    assert judge(found(key, far, 0.02, ceiling), True)[0]["verdict"] == OFF


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(1.0, EXACT), (1.13, EXACT), (0.88, EXACT), (1.15, OFF), (0.85, OFF), (0.0, OFF)],
)
def test_a_spread_may_be_off_to_either_side(ratio, verdict):
    assert judge(found("sd_ratio", ratio, 0.02, 1.1), True)[0]["verdict"] == verdict


def test_better_than_the_ceiling_is_as_good_as_exact():
    assert judge(found("total_variation", 0.0, 0.0, 0.1), True)[0]["verdict"] == EXACT
    assert judge(found("agreement", 1.0, 0.0, 0.9), True)[0]["verdict"] == EXACT


def test_what_is_not_finite_is_unknown_and_none():
    (row,) = judge(found("wasserstein", 1.0, math.nan, math.inf), True)
    assert row["verdict"] == UNKNOWN and row["error"] is None and row["ceiling"] is None
    assert finite(math.inf) is None and finite(2) == 2.0


def test_a_reference_that_has_not_converged_makes_every_verdict_a_question():
    given = found("wasserstein", 1.0, 0.1, 0.1) | found("sd_ratio", 1.0, 0.1, 1.1)
    assert [row["verdict"] for row in judge(given, False)] == [f"{OFF}?", f"{EXACT}?"]


def test_equal_up_to_rounding_is_equal():
    assert judge(found("agreement", 149 / 150, 0.0, 149 / 150 + 1e-16), True)[0]["verdict"] == EXACT
    assert judge(found("agreement", 148 / 150, 0.0, 149 / 150), True)[0]["verdict"] == OFF


def test_labels_fit_a_narrow_terminal():
    assert max(len(measure.label) for measure in MEASURES.values()) <= 24
