import torch

from credo_reproduce.base import make_experiment, perform
from credo_reproduce.graves import Losses, _checks, _spoiled


def test_quick_run_has_five_regularisers_and_two_figures():
    result = perform(make_experiment("graves", {"quick": True}))
    labels = ["none", "L1", "L2", "weight noise", "adaptive weight noise"]
    assert [row.label for row in result.outcome.tables[0].rows] == labels
    assert [figure["title"] for figure in result.outcome.figures] == [
        "train loss",
        "validation loss",
    ]


def test_checks_follow_the_rise_of_the_validation_loss():
    flat, rising = Losses([1.0], [1.0, 0.9], 5.0), Losses([1.0], [0.5, 1.5], 5.0)
    good = _checks({"none": [rising, rising], "adaptive weight noise": [flat, flat]})
    bad = _checks({"none": [flat], "adaptive weight noise": [rising]})
    assert [check.holds for check in good] == [True] * 3 and [check.holds for check in bad] == [
        False
    ] * 3


def test_labels_are_spoiled_at_about_the_stated_rate():
    y = torch.zeros(10000, dtype=torch.long)
    changed = int((_spoiled(y, 0.5, torch.Generator().manual_seed(0)) != 0).sum())
    # A spoiled label changes 9 times in 10: binomial with mean 4,500 and deviation 50; four of them
    # fail once in 16,000.
    assert abs(changed - 4500) < 4 * 50
