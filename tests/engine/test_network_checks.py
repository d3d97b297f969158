"""Checks of networks, each on a fit that has the fault."""

import pytest
from torch import nn
from zoo.findings import X, Y, bnn, names

pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")


def test_members_that_are_one_and_the_same():
    """One start for all, and no noise of batches; a linear model has one optimum, and none to
    tell of.
    """
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    given = {"epochs": 20, "batch_size": 200, "lr": 0.05, "progress": False}
    fitted = bnn(net).fit((X, Y), "deep_ensemble", init=net.state_dict(), **given)
    assert "members alike" in names(fitted)
    assert "members alike" not in names(bnn().fit((X, Y), "deep_ensemble", **given))


def test_normalisation_that_no_data_have_set():
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    fitted = bnn(net).fit((X, Y), "sgld", num_warmup=5, num_draws=4, thin=1)
    assert "untrained normalisation" in names(fitted)
