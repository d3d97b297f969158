"""What flows through the network: reading it, refusing what has no rule, and the table of rules in
the docs.
"""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from zoo.moments import gaussian, shell_and_posterior
from zoo.networks import make

from credo.core.errors import NetworkError
from credo.estimators.moments import RULES, make_moments, propagate, rule, table
from credo.posteriors import MeanField

PAGE = Path(__file__).parents[3] / "docs" / "moments.md"


def test_moments_read_as_their_mean():
    x = gaussian((2, 3), True)
    assert (
        x.shape == (2, 3)
        and x.dim() == x.ndim == 2
        and x.dtype == torch.float64
        and x.size(1) == 3
        and len(x) == 2
    )
    assert x.is_floating_point() and x.numel() == 6 and type(x.expected) is torch.Tensor
    assert torch.equal(x.variance, x.var_or_cov.diagonal(dim1=1, dim2=2)) and "full" in repr(x)
    assert torch.equal(gaussian((2, 3), False).variance, gaussian((2, 3), False).var_or_cov)


def test_gradients_reach_both_moments():
    mean, var = torch.zeros(2, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    out = torch.relu(make_moments(mean, var, False, frozenset()))
    (out.expected.sum() + out.var_or_cov.sum()).backward()
    assert mean.grad.abs().min() > 0 and var.grad.abs().min() > 0


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize(
    ("name", "operation", "module"),
    [
        ("lstm", "lstm", "LSTM 'rnn'"),
        ("attention", "", "MultiheadAttention 'attention'"),
        ("transformer", "", "'encoder"),
        ("matmul", "matmul", "Matmul"),
        ("weight_norm_new", "", ""),
    ],
)
def test_errors_name_the_operation_and_the_module(name, operation, module, covariance):
    net, x = make(name)
    shell, posterior = shell_and_posterior(net, lambda v: MeanField.start(v, 0.1))
    with pytest.raises(NetworkError, match="Moments cannot pass") as caught:
        propagate(shell, posterior, x, covariance)
    assert operation in str(caught.value) and module in str(caught.value)


def test_a_use_that_python_does_not_see_is_not_its_mean():
    net, x = make("hidden")
    shell, posterior = shell_and_posterior(net, lambda v: MeanField.start(v, 0.1))
    mean, _ = propagate(shell, posterior, x)
    assert torch.isnan(mean).all()


@torch.no_grad()
def test_a_bare_random_parameter_may_be_added_and_multiplied():
    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale, self.shift = (
                nn.Linear(3, 3),
                nn.Parameter(torch.ones(3)),
                nn.Parameter(torch.zeros(3)),
            )

        def forward(self, x):
            return self.layer(x) * self.scale + self.shift

    shell, posterior = shell_and_posterior(Shift().double(), lambda v: MeanField.start(v, 0.1))
    x = torch.randn(2, 3).double()
    mean, var = propagate(shell, posterior, x)
    inner = (x.square().sum(-1, keepdim=True) + 1) * 0.01
    assert torch.allclose(var, inner + 0.01 * mean.square() + 0.01 * inner + 0.01)
    with pytest.raises(NetworkError, match="'scale' meets it"):
        propagate(shell, posterior, x, "full")


def test_one_rule_per_function():
    with pytest.raises(ValueError, match="torch.relu has two rules"):
        rule(torch.relu, name="again", diagonal="", full="")(lambda *a: None)
    assert RULES[torch.relu].name == "relu"


def test_the_docs_list_every_rule():
    listed = [line for line in PAGE.read_text().splitlines() if re.match(r"\|.*\|.*\|.*\|$", line)]
    assert all(line in listed for line in table().splitlines()), (
        f"put this table into {PAGE.name}:\n{table()}"
    )
