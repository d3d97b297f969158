import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo import regression
from zoo.chains import draws_of, last_layer, late, noise_error, score
from zoo.stats import Z

from credo import BNN
from credo.likelihoods import Gaussian
from credo.metrics.chain_diagnostics import mcse_mean

DOUBLE = torch.float64


def fit(**how):
    x, y, _ = regression.problem()
    how = {"num_chains": 16, "num_warmup": 600, "num_draws": 100, "thin": 5} | how
    return regression.bnn().fit((x, y), "metropolis", progress=False, **how)


@pytest.mark.parametrize("rate", [0.234, 0.5])
def test_acceptance_is_as_wanted_after_the_warm_up(rate):
    """Of 1,600 moves noted; the step size that dual averaging leaves is good for a twentieth."""
    found = late(fit(target_rate=rate), "acceptance")
    assert abs(sum(found) / len(found) - rate) < 0.05
    if rate == 0.234:
        assert abs(sum(found) / len(found) - 0.5) > 0.2  # the two are told apart


@pytest.mark.parametrize("mass", ["diagonal", pytest.param("dense", marks=pytest.mark.slow)])
def test_the_posterior(mass):
    x, y, design = regression.problem()
    mean, cov, _ = (torch.as_tensor(part) for part in regression.exact(design, y[:, 0].numpy()))
    draws = draws_of(fit(mass=mass, num_chains=32))
    assert score(draws, mean, cov.diagonal()) < Z < score(draws, mean, 1.5 * cov.diagonal())


def test_steps_are_of_the_size_that_theory_has_for_a_gaussian():
    """2.38 / sqrt(P) under the target's own covariance, within a third."""
    assert 2 / 3 < late(fit(mass="dense"), "step_size")[0] / (2.38 / math.sqrt(4)) < 3 / 2


class Rounded(nn.Module):
    """f(x) = w rounded: a density in steps, flat wherever it has a slope."""

    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.zeros(1, dtype=DOUBLE))

    def forward(self, x):
        return self.level.round().expand(len(x), 1)


def test_it_needs_no_gradients():
    """P(w rounds to k) is the prior's mass there times the likelihood: known, and far from the
    prior's alone.
    """
    data = (torch.zeros(3, 1, dtype=DOUBLE), torch.tensor([[0.5], [0.6], [0.7]], dtype=DOUBLE))
    bnn = BNN(Rounded(), Gaussian(std=1.0), prior=Normal(0.0, 1.5))
    draws = draws_of(
        bnn.fit(
            data, "metropolis", num_chains=32, num_warmup=100, num_draws=100, thin=2, progress=False
        )
    )
    places = torch.arange(-6.0, 7.0, dtype=DOUBLE)
    edges = Normal(0.0, 1.5).cdf(torch.cat([places - 0.5, places[-1:] + 0.5]))
    mass = edges.diff()
    exact = mass * torch.exp(-1.5 * (places - 0.6).square())
    exact, mass = exact / exact.sum(), mass / mass.sum()
    for k, wrong in ((0.0, True), (1.0, True), (-1.0, False)):
        here = (draws.round() == k).double()
        error, index = float(mcse_mean(here)), int(k) + 6
        assert abs(float(here.mean()) - float(exact[index])) < Z * error
        if wrong:
            assert abs(float(here.mean()) - float(mass[index])) > Z * error


def test_what_is_noted_is_the_density_of_the_draw():
    """Rows come with draws, thinned alike."""
    fitted = fit(num_chains=3, num_draws=4, num_warmup=10, thin=5)
    x, y, _ = regression.problem()
    draws = draws_of(fitted)
    fits = Normal(x @ draws[..., :3].mT + draws[..., 3].unsqueeze(-2), 0.5).log_prob(y).sum(-2)
    values = fits + Normal(0.0, regression.PRIOR_STD).log_prob(draws).sum(-1)
    assert torch.allclose(torch.tensor(late(fitted, "log_density"), dtype=DOUBLE).T, values)


@pytest.mark.slow
def test_a_last_layer_alone():
    last_layer("metropolis", num_warmup=400, num_draws=5, num_chains=4, thin=20, lr=0.05)


@pytest.mark.slow
def test_learned_noise():
    assert noise_error("metropolis", num_warmup=800, num_draws=2, num_chains=8, lr=0.01) < 1
