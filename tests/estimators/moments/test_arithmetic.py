"""Sums, products and linear functions against Monte Carlo."""

import pytest
import torch
import torch.nn.functional as F
from zoo.moments import agrees, gaussian, matches, sample

from credo.core.errors import NetworkError

ROW = torch.tensor([0.5, -2.0, 1.5], dtype=torch.float64)
FUNCTIONS = {
    "x + 1": lambda x: x + 1.0,
    "1 + x": lambda x: 1.0 + x,
    "x - row": lambda x: x - ROW,
    "row - x": lambda x: ROW - x,
    "1 - x": lambda x: 1.0 - x,
    "row + x": lambda x: ROW + x,
    "x * row": lambda x: x * ROW,
    "row * x": lambda x: ROW * x,
    "x / row": lambda x: x / ROW,
    "x / 2": lambda x: x / 2,
    "-x": lambda x: -x,
    "add alpha": lambda x: torch.add(x, ROW, alpha=0.5),
    "x + x": lambda x: x + x,
    "x - x": lambda x: x - x,
    "sum": lambda x: x.sum(-1),
    "sum keep": lambda x: x.sum((1, 2), keepdim=True),
    "mean": lambda x: x.mean(1),
    "mean all": lambda x: torch.mean(x, (1, -1)),
    "pad": lambda x: F.pad(x, (1, 2)),
}


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_against_monte_carlo(name, full):
    agrees(FUNCTIONS[name], gaussian((2, 2, 3), full))


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_two_random_operands_are_taken_as_independent(full):
    a, b = gaussian((2, 3), full, seed=1), gaussian((2, 3), full, seed=2)
    draws = sample(a, seed=3), sample(b, seed=4)
    matches(a + b, draws[0] + draws[1])
    matches(a - b, draws[0] - draws[1])


def test_augmented_assignment_rebinds():
    x = gaussian((2, 3), False)
    y = x + 0.0
    y += 1.0
    y *= 2.0
    assert torch.equal(y.expected, (x.expected + 1) * 2) and torch.equal(
        y.var_or_cov, 4 * x.var_or_cov
    )


def test_products_need_different_sources():
    a, b = gaussian((2, 3), False, seed=1), gaussian((2, 3), False, seed=2)
    with pytest.raises(NetworkError, match="both factors depend on x"):
        a * b
    b.sources = frozenset(["other"])
    matches(a * b, sample(a, seed=3) * sample(b, seed=4))


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: 1.0 / x, "div|reciprocal|rtruediv"),
        (lambda x: x**3, "pow"),
        (lambda x: x + torch.zeros(4, 2, 3), "broadcasts"),
        (lambda x: torch.cat([x, x]), "cat"),
        (lambda x: x.sum(0), "example axis"),
        (lambda x: x * x, "both factors"),
        (lambda x: F.pad(x, (1, 1), value=1.0), "pad"),
    ],
)
def test_refusals_name_the_operation(function, named):
    with pytest.raises(NetworkError, match=named):
        function(gaussian((2, 3), True))


def test_cat_stack_and_padding_in_diagonal_mode():
    x, known = gaussian((2, 3), False), torch.ones(2, 3, dtype=torch.float64)
    both = torch.cat([x, known], 1)
    assert torch.equal(both.var_or_cov, torch.cat([x.var_or_cov, torch.zeros_like(known)], 1))
    assert torch.stack([x, x]).shape == (2, 2, 3)
    agrees(lambda v: F.pad(v, (1, 1), value=2.0), x)
    agrees(lambda v: F.pad(v.unsqueeze(1), (1, 1), mode="circular"), x)
