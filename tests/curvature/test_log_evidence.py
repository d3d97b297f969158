"""Laplace's evidence against its formula written out, and the widths that maximise it against
grids.
"""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal
from zoo.curvature import make_sweep, matrix, targets
from zoo.regression import problem

from credo.curvature import log_evidence as module
from credo.curvature.log_evidence import (
    PriorAtMode,
    best_log_factors,
    best_prior_and_noise,
    elementwise_prior,
    log_evidence,
)
from credo.curvature.structures import STRUCTURES
from credo.likelihoods import Gaussian

GROUPS = {
    "global": [["0.weight", "0.bias", "2.weight", "2.bias"]],
    "layer": [["0.weight", "0.bias"], ["2.weight", "2.bias"]],
    "tensor": [["0.weight"], ["0.bias"], ["2.weight"], ["2.bias"]],
}
FORMS = ("diagonal", "kfac", "low_rank", "full")


def fitted(form, n=30):
    """Blocks, nll and prior of a classifier that knows something."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(n, 3).double()
    sweep = make_sweep(net, x, targets(n) | (x[:, 0] > 0), prior=Normal(0.1, 0.8))
    measured = STRUCTURES[form].measure(sweep, 8)
    return measured, elementwise_prior(sweep.model, sweep.values), sweep.model


@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_formula(form):
    """log p(D given w) + log p(w) + P/2 log 2 pi - 1/2 log det(H + D)."""
    measured, prior, model = fitted(form)
    numel = sum(site.numel for site in model.random.values())
    diagonal = torch.cat(
        [prior.precision[n].expand(s.shape).reshape(-1) for n, s in model.random.items()]
    )
    total = matrix(measured.blocks, model) + torch.diag(diagonal)
    log_prior = sum(
        model.prior.at(model.sites[n]).log_prob(v).sum() for n, v in model.values().items()
    )
    expected = (
        -measured.nll + log_prior + 0.5 * numel * math.log(2 * math.pi) - 0.5 * torch.logdet(total)
    )
    assert float(log_evidence(measured.blocks, measured.nll, prior)) == pytest.approx(
        float(expected), rel=1e-9
    )
    shifted = PriorAtMode(prior.precision, prior.offset, 1.5)
    assert float(log_evidence(measured.blocks, measured.nll, shifted)) == pytest.approx(
        float(expected) + 1.5, rel=1e-9
    )


@pytest.mark.parametrize("form", FORMS)
def test_scales_are_factors_on_the_precision(form):
    measured, prior, _ = fitted(form)
    scales = {n: torch.tensor(0.3 * place).double() for place, n in enumerate(prior.precision)}
    changed = PriorAtMode(
        {n: p * scales[n].exp() for n, p in prior.precision.items()}, prior.offset
    )
    torch.testing.assert_close(
        log_evidence(measured.blocks, measured.nll, prior, scales),
        log_evidence(measured.blocks, measured.nll, changed),
    )


def value(measured, prior, groups, logs):
    scales = {
        n: torch.as_tensor(log, dtype=torch.float64)
        for group, log in zip(groups, logs, strict=True)
        for n in group
    }
    return float(log_evidence(measured.blocks, measured.nll, prior, scales))


@pytest.mark.parametrize("per", GROUPS)
@pytest.mark.parametrize("form", FORMS)
def test_the_best_width_is_better_than_all_of_a_fine_grid(form, per):
    """One width at a time for several: a maximum must be one along every axis."""
    measured, prior, _ = fitted(form)
    groups = GROUPS[per]
    found = best_log_factors(measured.blocks, measured.nll, prior, groups)
    best = [float(found[group[0]]) for group in groups]
    assert all(float(found[n]) == best[place] for place, group in enumerate(groups) for n in group)
    top = value(measured, prior, groups, best)
    for place in range(len(groups)):
        for step in torch.linspace(-12, 12, 241).tolist():
            other = [log + step * (place == k) for k, log in enumerate(best)]
            assert value(measured, prior, groups, other) <= top + 1e-9 * abs(top)
    free = best_log_factors(measured.blocks, measured.nll, prior, GROUPS["tensor"])
    assert (
        value(measured, prior, GROUPS["tensor"], [float(free[g[0]]) for g in GROUPS["tensor"]])
        >= top - 1e-6
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("per", GROUPS)
def test_widths_that_are_equal_have_their_own_gradients(form, per):
    """However often they were asked for: a search over several groups starts where all are the
    same.
    """
    measured, prior, _ = fitted(form)
    groups = GROUPS[per]
    for _ in range(10):
        logs = torch.full((len(groups),), 0.4, dtype=torch.float64, requires_grad=True)
        log_evidence(
            measured.blocks, measured.nll, prior, module._by_parameter(logs, groups)
        ).backward()
    step = 1e-4
    for place in range(len(groups)):
        sides = [
            value(
                measured, prior, groups, [0.4 + s * step * (k == place) for k in range(len(groups))]
            )
            for s in (-1, 1)
        ]
        assert float(logs.grad[place]) == pytest.approx(
            (sides[1] - sides[0]) / (2 * step), rel=1e-6
        )


@pytest.mark.parametrize("form", FORMS)
def test_mackays_fixed_point_holds_at_the_best_width(form):
    """alpha |w|^2 = gamma = P - alpha tr((H + alpha D)^-1 D), the number of well-determined
    parameters.
    """
    measured, prior, model = fitted(form)
    log = best_log_factors(measured.blocks, measured.nll, prior, GROUPS["global"])["0.weight"]
    alpha = prior.precision["0.weight"] * log.exp()
    curve = matrix(measured.blocks, model)
    inverse = torch.linalg.inv(curve + alpha * torch.eye(len(curve)).double())
    gamma = len(curve) - alpha * inverse.trace()
    square = sum(o.square().sum() for o in prior.offset.values())
    assert float(alpha * square) == pytest.approx(float(gamma), rel=1e-5)


def test_on_a_linear_model_it_is_the_evidence_itself():
    """Of every width, at the mode of that width: log N(y; 0, X X^T / alpha + s^2)."""
    x, y, design = problem()
    design, target = torch.from_numpy(design), y[:, 0]
    sweep = make_sweep(nn.Linear(3, 1).double(), x, y, Gaussian(std=0.5))
    for alpha in (0.01, 0.3, 4.0):
        precision = alpha * torch.eye(4).double() + design.T @ design / 0.25
        mode = torch.linalg.solve(precision, design.T @ target / 0.25)
        model = sweep.model
        model.net.load_state_dict({"weight": mode[:3].unsqueeze(0), "bias": mode[3:]})
        at = make_sweep(
            model.net, x, y, Gaussian(std=0.5), prior=Normal(torch.zeros(()).double(), alpha**-0.5)
        )
        measured = STRUCTURES["full"].measure(at, 0)
        ours = log_evidence(measured.blocks, measured.nll, elementwise_prior(at.model, at.values))
        exact = MultivariateNormal(
            torch.zeros(30).double(), design @ design.T / alpha + 0.25 * torch.eye(30).double()
        ).log_prob(target)
        assert float(ours) == pytest.approx(float(exact), rel=1e-9)


def noisy(form, std):
    """A regression's blocks, nll and prior at this noise, and what the nll says about it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(30, 3).double()
    y = net(x).detach() + 0.3 * torch.randn(30, 2).double()
    likelihood = Gaussian(initial_std=std).double()
    sweep = make_sweep(net, x, y, likelihood, prior=Normal(0.0, 1.0))
    measured = STRUCTURES[form].measure(sweep, 8)
    return (
        measured,
        elementwise_prior(sweep.model, sweep.values),
        likelihood.noise_terms(measured.nll, 30, 2),
    )


@pytest.mark.parametrize("form", FORMS)
def test_another_noise_without_measuring_again(form):
    measured, prior, noise = noisy(form, 0.4)
    other, _, _ = noisy(form, 0.25)
    assert noise.count == 60
    scales = {n: torch.tensor(0.3).double() for n in prior.precision}
    gain = torch.tensor(2 * math.log(0.4 / 0.25)).double()
    ours = log_evidence(measured.blocks, measured.nll, prior, scales, noise, gain)
    theirs = log_evidence(other.blocks, other.nll, prior, scales)
    assert float(ours) == pytest.approx(
        float(theirs), rel=1e-6
    )  # the noise is learned from a start in single precision


@pytest.mark.parametrize("per", ["global", "layer"])
@pytest.mark.parametrize("form", FORMS)
def test_the_best_noise_and_widths_together(form, per):
    measured, prior, noise = noisy(form, 0.7)
    groups = GROUPS[per]
    found = best_prior_and_noise(measured.blocks, measured.nll, prior, groups, noise)

    def at(shift, gain):
        scales = {n: s + shift for n, s in found.log_factors.items()}
        return float(
            log_evidence(
                measured.blocks, measured.nll, prior, scales, noise, torch.tensor(gain).double()
            )
        )

    top = at(0.0, found.noise_log_factor)
    steps = torch.linspace(-2, 2, 17).tolist()
    assert all(
        at(shift, found.noise_log_factor + gain) <= top + 1e-9 * abs(top)
        for shift in steps
        for gain in steps
    )
    assert 0.7 * math.exp(-0.5 * found.noise_log_factor) == pytest.approx(
        0.3, rel=0.3
    )  # sixty residuals of 0.3, some of them fitted


@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_widths_beyond_the_curvatures_rounding_are_left_out(scale):
    """Fewer data than parameters in single precision: at the wide end of the grid no prior is left
    to see.
    """
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 1)), torch.randn(30, 3)
    sweep = make_sweep(net, x, x[:, :1], Gaussian(std=0.01 / scale**0.5), prior=Normal(0.0, 1.0))
    measured = STRUCTURES["full"].measure(sweep, 0)
    assert float(torch.linalg.eigvalsh(measured.blocks[0].matrix.double()).min()) < -math.exp(
        float(module.GRID[0])
    )
    prior = elementwise_prior(sweep.model, sweep.values)
    found = best_log_factors(measured.blocks, measured.nll, prior, GROUPS["global"])
    assert math.isfinite(float(log_evidence(measured.blocks, measured.nll, prior, found)))


def test_weights_at_the_priors_mean_want_it_narrow_and_the_search_ends():
    """The evidence then only rises as the width falls: a bound keeps the factor finite."""
    measured, prior, _ = fitted("diagonal")
    still = PriorAtMode(prior.precision, {n: torch.zeros_like(o) for n, o in prior.offset.items()})
    found = best_log_factors(measured.blocks, measured.nll, still, GROUPS["global"])
    limit = 2 * float(module.GRID[-1])
    assert 0 < float(found["0.weight"]) <= limit
