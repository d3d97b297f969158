"""Moments of single numbers through weights and factors, against draws."""

import torch
from zoo.stats import has_mean, has_variance

from credo.core.linear_map import bind
from credo.posteriors.moment_rules import through_weights, times_factor

DRAWS = 20_000


def normal(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


GENERATOR = torch.Generator().manual_seed(0)


def test_a_layer_of_independent_weights():
    op = bind(torch.nn.functional.linear, (None, None), {})[0]
    mean, var, w, w_var, b, b_var = normal(2, 4), 0.3, normal(3, 4), 0.2, normal(3), 0.1
    found, spread = through_weights(
        op,
        mean,
        torch.full_like(mean, var),
        w,
        torch.full_like(w, w_var),
        b,
        torch.full_like(b, b_var),
    )
    x = mean + var**0.5 * normal(DRAWS, 2, 4)
    weights, biases = w + w_var**0.5 * normal(DRAWS, 3, 4), b + b_var**0.5 * normal(DRAWS, 1, 3)
    draws = x @ weights.mT + biases
    has_mean(draws, found)
    has_variance(draws, spread)


def test_a_number_times_a_factor():
    """Both the number and the factor lognormal or normal: only two moments matter."""
    mean, var = torch.tensor(1.5).double(), torch.tensor(0.4).double()
    factor = (0.3 * normal(DRAWS)).exp()
    first, second = torch.tensor(0.045).double().exp(), torch.tensor(0.18).double().exp()
    found, spread = times_factor(mean, var, first, second)
    draws = (mean + var.sqrt() * normal(DRAWS)) * factor
    has_mean(draws, found)
    has_variance(draws, spread)
