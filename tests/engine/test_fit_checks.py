"""Checks of descents and of predictions, each on a fit that has the fault."""

import pytest
import torch
from torch import nn
from zoo.findings import X, Y, bnn, case, hidden, moved, names

import credo
from credo.engine.diagnose import checks
from credo.engine.fit_checks import dead_units, rates_collapsed, wider_than_prior

pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")


def test_a_fit_that_is_much_too_short():
    found = bnn().fit((X, Y), "vi", epochs=5).diagnose()
    assert [f.name for f in found if f.severity == "serious"][-1] == "spread at its start"
    assert "init_std=0.01" in found[-1].evidence and "train longer" in found[-1].remedy
    assert "still falling" in names(bnn().fit((X, Y), "map", epochs=40, lr=1e-3))


def test_labels_that_inputs_say_nothing_of():
    labels = torch.randint(0, 3, (200,), generator=torch.Generator().manual_seed(3))
    net = nn.Linear(5, 3)
    fitted = bnn(net, "categorical").fit((X, labels), "vi", progress=False)
    (found,) = fitted.diagnose()
    assert found.name == "no better than a constant" and "beside a KL of" in found.evidence


def test_noise_that_drowns_the_data():
    """Many more weights than data, under a prior that lets them say little: the posterior ends
    there.
    """
    digits = credo.data.load("digits")
    data = digits["x"][:100] / 16.0, digits["y"][:100]
    torch.manual_seed(0)
    net, prior = credo.nets.mlp(64, (100,), 10), credo.priors.FanIn(1.0)
    fitted = credo.BNN(net, "categorical", prior).fit(data, "vi", progress=False)
    assert "no better than a constant" in names(fitted)


def test_members_that_are_one_and_the_same():
    """One start for all, and no noise of batches; a linear model has one optimum, and none to
    tell of.
    """
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    given = {"epochs": 20, "batch_size": 200, "lr": 0.05, "progress": False}
    fitted = bnn(net).fit((X, Y), "deep_ensemble", init=net.state_dict(), **given)
    assert "members alike" in names(fitted)
    assert "members alike" not in names(bnn().fit((X, Y), "deep_ensemble", **given))


def test_weights_much_wider_than_their_prior():
    fitted = bnn(hidden()).fit((X, Y), "vi", epochs=1, init_std=4.0, progress=False)
    assert "more than 3.92 times the sd of their prior" in wider_than_prior(case(fitted)).evidence
    fitted = bnn(hidden()).fit((X, Y), "vi", epochs=1, init_std=1.0, progress=False)
    assert wider_than_prior(case(fitted)) is None


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


@pytest.mark.parametrize("method", ("map", "vi", "laplace"))
def test_good_fits_of_networks_are_left_alone(method):
    fitted = bnn(hidden()).fit((X, Y), method, epochs=300, lr=0.02, progress=False)
    found = case(fitted)
    assert not [name for name, check in checks.items() if check.fits(found) and check.run(found)]


@pytest.mark.parametrize("activation", (nn.ReLU, nn.Tanh, lambda: nn.ReLU(inplace=True)))
def test_units_that_are_dead(activation):
    fitted = bnn(hidden(activation)).fit((X, Y), "map", epochs=200, lr=0.01, progress=False)
    assert dead_units(case(fitted)) is None
    found = dead_units(case(moved(fitted, -100.0)))
    assert "20 of 20 units behind '1'" in found.evidence and "0 when it came" in found.evidence


def test_units_that_a_prior_has_switched_off_are_not_dead():
    fitted = bnn(hidden()).fit((X, Y), "map", epochs=200, lr=0.01, progress=False)
    assert dead_units(case(moved(fitted, -0.5, scale=0.0))) is None


def test_convolutions_are_told_by_channel():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 3))
    data = torch.randn(40, 1, 8, 8), torch.arange(40) % 3
    fitted = credo.BNN(net, "categorical").fit(data, "map", epochs=2, progress=False)
    assert dead_units(case(fitted, data)) is None
    assert "16 of 16 units" in dead_units(case(moved(fitted, -100.0), data)).evidence


def test_units_that_are_dead_in_single_draws_only_are_not_told():
    """Weights of sd 3 kill units in every draw, but hardly three quarters of them."""
    fitted = bnn(hidden()).fit((X, Y), "vi", epochs=1, init_std=3.0, progress=False)
    assert dead_units(case(fitted)) is None


def test_networks_without_such_modules_are_not_asked():
    lstm = nn.LSTM(3, 9, batch_first=True)

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = lstm, nn.Linear(9, 1)

        def forward(self, x):
            return self.head(torch.relu(self.lstm(x)[0][:, -1]))

    data = torch.randn(30, 4, 3), torch.randn(30, 1)
    fitted = bnn(Last()).fit(data, "map", epochs=1, progress=False)
    assert dead_units(case(fitted, data)) is None
