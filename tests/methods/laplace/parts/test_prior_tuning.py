"""Prior widths by validation data and while training."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.curvature import make_job, make_sweep, targets
from zoo.models import make_model
from zoo.regression import problem

from credo.curvature.linearised import linear_outputs
from credo.curvature.log_evidence import GRID, elementwise_prior
from credo.curvature.structures import STRUCTURES, Measured
from credo.data.intake import intake
from credo.likelihoods import Gaussian
from credo.methods.laplace.parts import prior_tuning as module
from credo.methods.laplace.parts.mode import Mode
from credo.methods.laplace.parts.prior_tuning import (
    OnlineElbo,
    choose_by_validation,
    not_trained,
    validation_nll,
)
from credo.predictive import Predictive
from credo.priors import Scaled


def linear_model(likelihood=None, prior=None, outputs=1):
    torch.manual_seed(0)
    net = nn.Linear(3, outputs).double()
    return make_model(
        net, likelihood=likelihood or Gaussian(std=0.5), prior=prior or Normal(0.0, 1.0)
    )


def test_what_is_held_fixed_is_released_again():
    free, stuck = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1), requires_grad=False)
    with pytest.raises(RuntimeError), not_trained([free, stuck]):
        assert not free.requires_grad
        raise RuntimeError
    assert free.requires_grad and not stuck.requires_grad


@pytest.mark.parametrize("shortcut", ["linear", "probit", None])
def test_validation_chooses_the_best_of_its_grid(shortcut):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x, held = torch.randn(40, 2).double(), torch.randn(60, 2).double()
    y = targets(40) & (x[:, 0] > 0)
    held_y = targets(60) & (held[:, 0] > 0)
    sweep = make_sweep(net, x, y)
    model, values = sweep.model, sweep.values
    blocks = STRUCTURES["kfac"].measure(sweep, 0).blocks
    model.prior = Scaled(model.prior).fresh(model.sites)
    mode, validation = Mode(model, values, {}, make_job(x, y)), intake((held, held_y))

    def nll(scale):
        model.prior.set({n: torch.tensor(scale) for n in model.random})
        precision = elementwise_prior(model, values).precision
        posterior = Measured(blocks, 0.0).posterior(model, values, precision)
        return validation_nll(mode, validation, posterior, shortcut)

    scores = {scale: nll(scale) for scale in GRID[::2].tolist()}
    choose_by_validation(mode, model.prior, validation, Measured(blocks, 0.0), shortcut)
    chosen = {float(s) for s in model.prior.scales().values()}
    assert chosen == {min(scores, key=scores.__getitem__)}
    assert len(set(scores.values())) > 10  # there was something to choose from


def test_held_out_scores_are_those_of_predictions():
    x, y, _ = problem()
    model = linear_model()
    sweep = make_sweep(model.net, x, y, Gaussian(std=0.5))
    blocks = STRUCTURES["full"].measure(sweep, 0).blocks
    precision = elementwise_prior(model, model.values()).precision
    posterior = Measured(blocks, 0.0).posterior(model, model.values(), precision)
    outputs = linear_outputs(model, posterior, x, {}, module.POINTS, None)
    expected = -float(Predictive(outputs, model.likelihood).log_prob(y).sum())
    mode = Mode(model, model.values(), {}, make_job(x, y))
    found = validation_nll(mode, intake((x, y)), posterior, "linear")
    assert found == pytest.approx(expected)


def test_an_online_prior_is_renewed_every_few_epochs_but_not_at_the_end():
    model = linear_model()
    seen = []
    elbo = OnlineElbo(
        model, model.point_posterior(model.values()), lambda values, buffers: seen.append(values), 3
    )
    renewed = []
    for epoch in range(20):
        before = len(seen)
        elbo.after_epoch(epoch, 20)
        renewed += [epoch + 1] * (len(seen) - before)
    assert renewed == [3, 6, 9, 12, 15, 18]
    assert all(not v.requires_grad for v in seen[0].values())
