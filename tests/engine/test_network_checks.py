"""Checks of networks, each on a fit that has the fault."""

import pytest
import torch
from torch import nn
from zoo.findings import X, Y, bnn, case, hidden, moved, names

import credo
from credo.engine.network_checks import (
    checks,
    noise_exploded,
    not_a_number,
    rates_collapsed,
    wider_than_targets,
)

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


@pytest.mark.parametrize("method", ("map", "vi", "laplace"))
def test_good_fits_of_networks_are_left_alone(method):
    fitted = bnn(hidden()).fit((X, Y), method, epochs=300, lr=0.02, progress=False)
    found = case(fitted)
    assert not [name for name, check in checks.items() if check(found)]


def test_noise_of_weights_that_is_wider_than_the_targets():
    """Draws of N(0, 1) weights, a fit that has learned nothing: a sum of 20 units is wider than
    targets of sd 0.5.
    """
    fitted = bnn(hidden()).fit((X, 0.1 * Y), "vi", epochs=1, init_std=1.0, progress=False)
    found = wider_than_targets(case(fitted, (X, 0.1 * Y)))
    assert found.severity == "serious" and "times that of the targets" in found.evidence


def test_widths_are_not_asked_of_few_rows_or_of_labels():
    fitted = bnn(hidden()).fit((X[:10], 0.1 * Y[:10]), "vi", epochs=1, init_std=1.0)
    assert wider_than_targets(case(fitted, (X[:10], 0.1 * Y[:10]))) is None
    labels = torch.arange(200) % 3
    fitted = credo.BNN(nn.Linear(5, 3), "categorical").fit((X, labels), "vi", epochs=1)
    assert wider_than_targets(case(fitted, (X, labels))) is None


def test_learned_noise_that_is_wider_than_the_targets():
    noisy = credo.likelihoods.Gaussian(initial_std=50.0)
    fitted = bnn(hidden(), noisy).fit((X, Y), "map", epochs=1, progress=False)
    found = noise_exploded(case(fitted))
    assert found.severity == "serious" and "learned noise of y" in found.evidence
    assert wider_than_targets(case(fitted)) is None


def test_weights_much_wider_than_their_prior():
    fitted = bnn(hidden()).fit((X, Y), "vi", epochs=1, init_std=4.0, progress=False)
    assert "more than 3.92 times the sd of their prior" in noise_exploded(case(fitted)).evidence
    fitted = bnn(hidden()).fit((X, Y), "vi", epochs=1, init_std=1.0, progress=False)
    assert noise_exploded(case(fitted)) is None


@pytest.mark.parametrize("rate", (1e-5, 0.3, 0.97))
def test_rates_at_their_bounds(rate):
    net = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1))
    fitted = bnn(net).fit((X, Y), "concrete_dropout", epochs=1, p=rate, progress=False)
    found = rates_collapsed(case(fitted))
    if rate == 0.3:
        assert found is None
    else:
        lost = "no network" if rate > 0.9 else "no uncertainty"
        assert found.severity == "warning" and found.evidence.endswith(lost)


def test_a_number_that_is_none():
    fitted = bnn(hidden()).fit((X, Y), "map", epochs=1, progress=False)
    assert not_a_number(case(fitted)) is None
    found = not_a_number(case(moved(fitted, float("nan"))))
    assert found.severity == "serious" and "are NaN" in found.evidence


def test_an_overparameterised_fit_is_told_by_one_finding_with_its_kl():
    """A KL that dwarfs the data has no check of its own: "no better than a constant" says it."""
    data = X[:40], Y[:40]
    torch.manual_seed(0)
    net = credo.nets.mlp(5, (100, 100), 1)
    fitted = credo.BNN(net, "gaussian", torch.distributions.Normal(0.0, 1.0))
    fitted.fit(data, "vi", progress=False, epochs=800)
    told = {finding.name: finding.evidence for finding in fitted.diagnose()}
    assert "beside a KL of" in told["no better than a constant"]
