"""The horseshoe over units as a user meets it: layers that are wider than they need be."""

import pytest
import torch
from torch import nn
from zoo.group_fits import fits_predicts_and_saves, refuses_prior_draws, regression

from credo import BNN
from credo.core.seeds import isolated
from credo.likelihoods import Gaussian


@pytest.mark.parametrize("centred", [True, False])
def test_a_layer_keeps_the_width_it_needs(centred):
    """A linear function through tanh: some of twenty units are noise."""
    with isolated(0):
        net = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    x, y = regression(1)
    how = {
        "epochs": 500,
        "lr": 0.05,
        "batch_size": 300,
        "kl_warmup": 50,
        "centred": centred,
        "progress": False,
    }
    bnn = BNN(net, Gaussian(std=0.3)).fit((x, y), "horseshoe", **how)
    width = bnn.history[-1]["kept/0.weight"]
    assert 1 <= width <= 18 and bnn.history[-1]["kept/2.weight"] == 1.0
    mean = bnn.posterior.mean()
    gone = ~mean["0.weight"].any(1)
    assert int((~gone).sum()) == width and not mean["0.bias"][gone].any(), (
        "a unit leaves with its bias"
    )
    assert bnn.evaluate((x, y), 50)["rmse"] < 0.6


@pytest.mark.parametrize("estimator", ["local", "weights", "per_example"])
def test_it_fits_predicts_and_saves(estimator, tmp_path):
    bnn, data = fits_predicts_and_saves("horseshoe", tmp_path, estimator=estimator)
    refuses_prior_draws(bnn, data[0])


def test_gates_of_a_recurrent_layer_share_all_their_weights():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    with isolated(0):
        net, x = Steps(), torch.randn(6, 5, 3)
    bnn = BNN(net).fit((x, torch.arange(6) % 2), "horseshoe", epochs=2, progress=False)
    family = bnn.posterior.factors[0]
    assert (
        family.scales.counts == {"rnn.weight_ih_l0": 12, "head.weight": 2}
        and "rnn.bias_hh_l0" in family.names
    )
    assert bnn.history[-1]["kept/rnn.weight_ih_l0"] == 12.0
