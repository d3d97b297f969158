"""Simulation-based calibration (Talts et al.

2018): parameters from the prior, data given them, draws given the data.

If the sampler is right, the rank of the true value among independent posterior draws of any
quantity is uniform, because truth and draws are exchangeable. Every simulated data set is one chain
of a batched target, so that all of them are sampled at once. Chi-square test on eight bins of the
ranks; each fails a right sampler with probability 5.7e-7.
"""

from functools import cache

import pytest
import torch
from scipy.stats import chi2
from torch.distributions import Normal
from zoo.chains import KernelMoves, adapted
from zoo.stats import P_VALUE

from credo import BNN
from credo.kernels.log_density import differentiable
from credo.likelihoods import Gaussian

DOUBLE = torch.float64
SETS, HIDDEN, DATA, STD = 240, 3, 8, 0.5
SOME = 120  # data sets of the slower test
BINS, KEPT = 8, 31  # 32 possible ranks, four to a bin
X = torch.linspace(-2.0, 2.0, DATA, dtype=DOUBLE)
PROBES = torch.tensor([-1.5, 0.3, 3.0], dtype=DOUBLE)  # two among the data, one beyond them


def network(w, x):
    """A 1-3-1 network with tanh units, for weights ``(..., 10)`` at inputs ``(N,)``: ``(...,
    N)``.
    """
    first, bias, second, last = w.split([HIDDEN, HIDDEN, HIDDEN, 1], -1)
    hidden = torch.tanh(first.unsqueeze(-2) * x.unsqueeze(-1) + bias.unsqueeze(-2))
    return (hidden * second.unsqueeze(-2)).sum(-1) + last


def log_likelihood(w, y, std=STD):
    return -0.5 * ((y - network(w, X)) / std).square().sum(-1)


def simulate(seed=0):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(SETS, 3 * HIDDEN + 1, generator=generator, dtype=DOUBLE)
    y = network(truth, X) + STD * torch.randn(SETS, DATA, generator=generator, dtype=DOUBLE)
    return truth, y, torch.randn(truth.shape, generator=generator, dtype=DOUBLE)


def quantities(w, y):
    """What is ranked, by name: how well the data are explained, how large the weights are, and
    three function values.
    """
    values = network(w, PROBES)
    out = {"log likelihood": log_likelihood(w, y), "size": w.square().sum(-1)}
    return out | {f"f({float(x):.1f})": values[..., i] for i, x in enumerate(PROBES)}


@cache
def p_values(method, thin, std=STD):
    """Of the chi-square test, by quantity. ``std``: what the sampler believes the noise to be."""
    truth, y, start = simulate()
    target = differentiable(lambda w: -0.5 * w.square().sum(-1) + log_likelihood(w, y, std))
    draws = adapted(method(), target, start, 100, KEPT * thin).draws[:, thin - 1 :: thin]
    return ranked(truth, draws, y)


def ranked(truth, draws, y):
    """p-values of truths ``(S, P)`` among draws ``(S, KEPT, P)``."""
    true, drawn = quantities(truth, y), quantities(draws, y.unsqueeze(1))
    out = {}
    for name in true:
        rank = (drawn[name] < true[name].unsqueeze(1)).sum(1)
        counts = torch.bincount(rank * BINS // (KEPT + 1), minlength=BINS).double()
        expected = len(truth) / BINS
        out[name] = float(chi2.sf(float(((counts - expected) ** 2 / expected).sum()), BINS - 1))
    return out


def hmc():
    return KernelMoves("hmc", 12)


def nuts():
    return KernelMoves("nuts", max_depth=5)


@pytest.mark.parametrize(("method", "thin"), [(hmc, 8), (nuts, 2)], ids=["hmc", "nuts"])
def test_ranks_of_the_truth_are_uniform(method, thin):
    found = p_values(method, thin)
    assert min(found.values()) > P_VALUE, found


def test_a_posterior_under_the_wrong_noise_fails_the_same_test():
    found = p_values(hmc, 5, 0.6 * STD)
    assert found["f(0.3)"] < P_VALUE and found["log likelihood"] < P_VALUE, found


def test_the_network_is_torchs():
    net = torch.nn.Sequential(
        torch.nn.Linear(1, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)
    ).double()
    w = torch.cat([p.detach().flatten() for p in net.parameters()])
    assert torch.allclose(network(w, X), net(X.unsqueeze(-1)).squeeze(-1))


class Many(torch.nn.Module):
    """The small network as often as there are data sets, side by side: one posterior that is a
    product of all of theirs.
    """

    def __init__(self, count):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(count, 3 * HIDDEN + 1, dtype=DOUBLE))

    def reset_parameters(self):
        torch.nn.init.normal_(self.weights)

    def forward(self, x):
        return network(
            self.weights.unsqueeze(0), x.squeeze(-1)[:, None, None].expand(-1, 1, 1)
        ).squeeze(-1)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("method", "thin"), [("hmc", 4), ("nuts", 2)])
def test_ranks_of_the_truth_are_uniform_for_the_methods_themselves(method, thin):
    """Two chains through the whole of ``fit``; a chain's ranks in different data sets are
    independent, since the posterior is a product.
    """
    truth, y = (part[:SOME] for part in simulate(1)[:2])
    bnn = BNN(Many(SOME), Gaussian(std=STD), prior=Normal(0.0, 1.0))
    data = (X.unsqueeze(-1), y.T.contiguous())
    bnn.fit(
        data,
        method,
        num_chains=2,
        num_warmup=150,
        num_draws=(KEPT + 1) // 2 * thin,
        progress=False,
        init="random",
    )
    draws = (
        bnn.posterior.factors[0]
        .flat.reshape(2, -1, SOME, truth.shape[1])[:, thin - 1 :: thin]
        .flatten(0, 1)[:KEPT]
    )
    found = ranked(truth, draws.transpose(0, 1), y)
    assert min(found.values()) > P_VALUE, found
