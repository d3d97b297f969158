"""Random inputs for moment rules, and the comparison of a rule with Monte Carlo."""

import torch

from credo.core.seeds import generator
from credo.core.shell import Shell
from credo.estimators.moments import Moments, make_moments
from credo.posteriors import Posterior
from zoo.stats import has_covariance, has_mean, has_variance

DRAWS = 20_000


def gaussian(shape, full, seed=0, spread=0.7, dtype=torch.float64):
    """Moments of the given shape (examples first) with unequal variances, and for ``full`` with
    strong correlations.
    """
    mean = 0.8 * torch.randn(shape, generator=generator("mean", seed), dtype=dtype)
    units = mean[0].numel()
    if not full:
        var = spread**2 * (0.2 + torch.rand(shape, generator=generator("var", seed), dtype=dtype))
        return make_moments(mean, var, False, frozenset(["x"]))
    factor = torch.randn(shape[0], units, 2, generator=generator("factor", seed), dtype=dtype)
    cov = spread**2 * (0.5 * factor @ factor.mT + 0.2 * torch.eye(units, dtype=dtype))
    return make_moments(mean, cov, True, frozenset(["x"]))


def sample(x, draws=DRAWS, seed=1):
    """Draws ``(S, B, *shape)`` of the Gaussian with these moments."""
    eps = torch.randn(draws, *x.shape, generator=generator("eps", seed), dtype=x.dtype)
    if not x.full:
        return x.expected + x.var_or_cov.sqrt() * eps
    factor = torch.linalg.cholesky(x.var_or_cov)
    return x.expected + torch.einsum("bij,sbj->sbi", factor, eps.flatten(2)).reshape(eps.shape)


def agrees(function, x, draws=DRAWS):
    """The rule of ``function`` on ``x`` against Monte Carlo, by z-tests on every mean and
    (co)variance.
    """
    out = function(x)
    assert isinstance(out, Moments) and out.full == x.full
    values = function(sample(x, draws).flatten(0, 1)).reshape(draws, *out.shape)
    matches(out, values)


def matches(out, values):
    """Moments against draws ``(S, B, *shape)``."""
    has_mean(values, out.expected.detach())
    if not out.full:
        return has_variance(values, out.var_or_cov.detach())
    for example in range(values.shape[1]):
        has_covariance(
            values[:, example].reshape(len(values), -1), out.var_or_cov[example].detach()
        )


def shell_and_posterior(net, make):
    """A shell of ``net`` and the posterior of one family ``make(values)`` over all its
    parameters.
    """
    values = {name: parameter.detach() for name, parameter in net.named_parameters()}
    return Shell(net), Posterior([make(values)])
