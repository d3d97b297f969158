"""Parts of the method by themselves: noise, widths by validation, earlier posteriors, and the
course of an online prior.
"""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.curvature import make_job, make_sweep, targets
from zoo.models import make_model
from zoo.regression import problem

from credo.core.errors import SettingError
from credo.curvature.centred_prior import centred
from credo.curvature.linearised import linear_outputs
from credo.curvature.log_evidence import GRID, log_evidence
from credo.curvature.structures import STRUCTURES, Measured
from credo.data.intake import intake
from credo.engine.initial_posterior import point_posterior
from credo.likelihoods import Gaussian, StudentT
from credo.methods.laplace.parts import laplace_fit as module
from credo.methods.laplace.parts.laplace_fit import (
    OnlineElbo,
    choose_by_validation,
    fit_noise,
    gaussian_posterior,
    held_fixed,
    prior_seen,
)
from credo.posteriors import Delta, Full, MeanField, Posterior, PosteriorPrior
from credo.predictive import Predictive
from credo.priors import Scaled


def linear_model(likelihood=None, prior=None, outputs=1):
    torch.manual_seed(0)
    net = nn.Linear(3, outputs).double()
    return make_model(
        net, likelihood=likelihood or Gaussian(std=0.5), prior=prior or Normal(0.0, 1.0)
    )


@pytest.mark.parametrize("each", [False, True])
def test_learned_noise_is_the_residuals_root_mean_square(each):
    x, y, _ = problem(n=40, outputs=2)
    likelihood = Gaussian(num_outputs=2 if each else None)
    model = linear_model(likelihood.double(), outputs=2)
    fit_noise(model, make_job(x, y), model.values(), {})
    square = (model.net(x).detach() - y).square()
    expected = square.mean(0).sqrt() if each else square.mean().sqrt()
    torch.testing.assert_close(model.likelihood.std(y).detach(), expected, rtol=1e-4, atol=0)
    assert model.likelihood.log_std.grad is None and model.likelihood.log_std.requires_grad


def test_other_noise_is_fitted_by_maximum_likelihood():
    x, y, _ = problem(n=40)
    model = linear_model(StudentT().double())
    values = model.values()
    fit_noise(model, make_job(x, y), values, {})
    outputs = model.net(x).detach()
    loss = -model.likelihood.log_prob(outputs, y).mean()
    grads = torch.autograd.grad(loss, list(model.likelihood.parameters()))
    assert all(float(g.abs()) < 1e-4 for g in grads)
    assert all(torch.equal(v, model.values()[n]) for n, v in values.items())


def test_noise_that_is_given_stays():
    x, y, _ = problem()
    model = linear_model()
    fit_noise(model, make_job(x, y), model.values(), {})
    assert float(model.likelihood.std(y)) == pytest.approx(0.5)


def test_noise_in_batches_of_a_job():
    x, y, _ = problem(n=40)
    one, other = (linear_model(Gaussian().double()) for _ in range(2))
    fit_noise(one, make_job(x, y), one.values(), {})
    fit_job = make_job(x, y)
    fit_job.batch_size = 7
    fit_noise(other, fit_job, other.values(), {})
    torch.testing.assert_close(one.likelihood.log_std, other.likelihood.log_std)


def test_what_is_held_fixed_is_released_again():
    free, stuck = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1), requires_grad=False)
    with pytest.raises(RuntimeError), held_fixed([free, stuck]):
        assert not free.requires_grad
        raise RuntimeError
    assert free.requires_grad and not stuck.requires_grad


def test_the_gaussian_has_points_beside_it():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(6, 3).double()
    sweep = make_sweep(net, x, targets(6), random="last")
    blocks = STRUCTURES["full"].measure(sweep, 0).blocks
    posterior = gaussian_posterior(
        sweep.model, sweep.values, blocks, centred(sweep.model, sweep.values).precision
    )
    assert [type(m) for m in posterior.members] == [Full, Delta]
    assert all(torch.equal(v, sweep.values[n]) for n, v in posterior.mean().items())


def earlier_full(model, scale=1.0):
    torch.manual_seed(3)
    values = {n: torch.randn_like(v) for n, v in model.values().items()}
    numel = sum(v.numel() for v in values.values())
    root = torch.randn(numel, numel).double()
    cover = scale * (root @ root.mT / numel + torch.eye(numel).double())
    family = Full({n: v.shape for n, v in values.items()}, "float64")
    return family.set(family.layout.join(values), torch.linalg.cholesky(cover)), cover


def test_a_joint_prior_counts_whole():
    """Posterior precision H + P0, and the evidence with log N(w; m0, P0^-1)."""
    x, y, _ = problem()
    model = linear_model()
    family, cover = earlier_full(model)
    model.prior = PosteriorPrior(Posterior([family]))
    sweep = make_sweep(model.net, x, y, Gaussian(std=0.5))
    measured, values = STRUCTURES["full"].measure(sweep, 0), model.values()
    curve = measured.blocks[0].matrix.clone()
    prior = prior_seen(model, values, measured)
    posterior = gaussian_posterior(model, values, measured.blocks, prior.precision)
    total = curve + torch.linalg.inv(cover)
    torch.testing.assert_close(posterior.members[0].covariance().detach(), torch.linalg.inv(total))
    log_prior = family.log_prob(values).detach()
    expected = (
        -measured.nll
        + log_prior
        + 0.5 * len(total) * math.log(2 * math.pi)
        - 0.5 * torch.logdet(total)
    )
    assert float(log_evidence(measured.blocks, measured.nll, prior)) == pytest.approx(
        float(expected), rel=1e-9
    )


def test_a_joint_prior_beside_a_rounded_curvature():
    """Only the curvature is mended, never the prior's part, which alone is not positive
    definite.
    """
    model = linear_model()
    family, cover = earlier_full(model, 1e-2)
    model.prior = PosteriorPrior(Posterior([family]))
    x, y, _ = problem()
    blocks = STRUCTURES["full"].measure(make_sweep(model.net, x, y, Gaussian(std=0.5)), 0).blocks
    blocks[0].matrix = torch.diag(torch.tensor([1e9, 0.0, 0.0, -200.0])).double()
    prior = prior_seen(model, model.values(), Measured(blocks, 0.0))
    expected = torch.diag(torch.tensor([1e9, 0.0, 0.0, 0.0])).double() + torch.linalg.inv(cover)
    torch.testing.assert_close(blocks[0].log_det(prior.precision), torch.logdet(expected))


def test_an_independent_prior_counts_by_weight():
    model = linear_model()
    family = MeanField.start(model.values(), 0.5)
    model.prior = PosteriorPrior(Posterior([family]))
    prior = prior_seen(model, model.values(), Measured([], 0.0))
    assert prior.precision["weight"].shape == (1, 3) and torch.allclose(
        prior.precision["bias"], torch.tensor(4.0).double()
    )


def test_a_joint_prior_over_other_parameters_is_refused():
    model = linear_model()
    model.prior = PosteriorPrior(Posterior([Full.start({"weight": model.values()["weight"]})]))
    x, y, _ = problem()
    blocks = STRUCTURES["full"].measure(make_sweep(model.net, x, y, Gaussian(std=0.5)), 0).blocks
    with pytest.raises(
        SettingError,
        match="an earlier posterior over the same parameters; this one is 'full' over weight",
    ):
        prior_seen(model, model.values(), Measured(blocks, 0.0))


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

    def nll(scale):
        model.prior.set({n: torch.tensor(scale) for n in model.random})
        posterior = gaussian_posterior(model, values, blocks, centred(model, values).precision)
        return module._held_out(model, intake((held, held_y)), posterior, {}, shortcut)

    scores = {scale: nll(scale) for scale in GRID[::2].tolist()}
    choose_by_validation(model, intake((held, held_y)), values, {}, Measured(blocks, 0.0), shortcut)
    chosen = {float(s) for s in model.prior.scales().values()}
    assert chosen == {min(scores, key=scores.__getitem__)}
    assert len(set(scores.values())) > 10  # there was something to choose from


def test_held_out_scores_are_those_of_predictions():
    x, y, _ = problem()
    model = linear_model()
    sweep = make_sweep(model.net, x, y, Gaussian(std=0.5))
    blocks = STRUCTURES["full"].measure(sweep, 0).blocks
    posterior = gaussian_posterior(
        model, model.values(), blocks, centred(model, model.values()).precision
    )
    outputs = linear_outputs(model, posterior, x, {}, module.POINTS, None)
    expected = -float(Predictive(outputs, model.likelihood).log_prob(y).sum())
    assert module._held_out(model, intake((x, y)), posterior, {}, "linear") == pytest.approx(
        expected
    )


def test_an_online_prior_is_renewed_every_few_epochs_but_not_at_the_end():
    model = linear_model()
    seen = []
    elbo = OnlineElbo(
        model,
        point_posterior(model, model.values()),
        lambda values, buffers: seen.append(values),
        3,
    )
    renewed = []
    for epoch in range(20):
        before = len(seen)
        elbo.after_epoch(epoch, 20)
        renewed += [epoch + 1] * (len(seen) - before)
    assert renewed == [3, 6, 9, 12, 15, 18]
    assert all(not v.requires_grad for v in seen[0].values())
