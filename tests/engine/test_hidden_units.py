"""Dead units are found; those that a prior or the start of a fit made silent are not."""

import pytest
import torch
from torch import nn
from zoo.findings import X, Y, bnn, case, hidden, moved

import credo
from credo.engine.hidden_units import dead_units
from credo.engine.network_checks import dead_units_of_layers

pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")


@pytest.mark.parametrize("activation", (nn.ReLU, nn.Tanh, lambda: nn.ReLU(inplace=True)))
def test_units_that_are_dead(activation):
    fitted = bnn(hidden(activation)).fit((X, Y), "map", epochs=200, lr=0.01, progress=False)
    assert dead_units_of_layers(case(fitted)) is None
    found = dead_units_of_layers(case(moved(fitted, -100.0)))
    assert "20 of 20 units behind '1'" in found.evidence and "0 when the network" in found.evidence


def test_units_that_a_prior_has_switched_off_are_not_dead():
    fitted = bnn(hidden()).fit((X, Y), "map", epochs=200, lr=0.01, progress=False)
    assert dead_units_of_layers(case(moved(fitted, -0.5, scale=0.0))) is None


def test_convolutions_are_told_by_channel():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 3))
    data = torch.randn(40, 1, 8, 8), torch.arange(40) % 3
    fitted = credo.BNN(net, "categorical").fit(data, "map", epochs=2, progress=False)
    assert dead_units_of_layers(case(fitted, data)) is None
    layer = dead_units(moved(fitted, -100.0).model, fitted._result(), data[0])
    assert (layer.units, layer.dead) == (16, 16)


def test_units_that_are_dead_in_single_draws_only_are_not_told():
    """Weights of sd 3 kill units in every draw, but hardly three quarters of them."""
    fitted = bnn(hidden()).fit((X, Y), "vi", epochs=1, init_std=3.0, progress=False)
    assert dead_units_of_layers(case(fitted)) is None


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
    assert dead_units_of_layers(case(fitted, data)) is None
