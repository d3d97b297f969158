"""Annealed importance sampling on a linear-Gaussian model, where log p(x) and the posterior are
known.
"""

import pytest
import torch
from zoo.latent import Linear, network
from zoo.stats import Z, has_covariance, has_mean

from credo.core.seeds import isolated
from credo.generative.annealed import Chains, Density, anneal, both_ways, density, ladder
from credo.generative.codes import Diagonal

MODEL = Linear()
NET = MODEL.network(shift=5.0, stretch=0.1)  # the encoder is useless, and must not matter
X = MODEL.data(4)
CPU = torch.device("cpu")


def start(chains, n, seed=0):
    with isolated(seed):
        return torch.randn(chains, n, MODEL.latent_dim, dtype=torch.float64)


def test_the_ladder_rises_from_zero_to_one():
    for steps in (1, 2, 50):
        b = ladder(steps, CPU)
        assert (
            len(b) == steps + 1
            and float(b[0]) == 0.0
            and float(b[-1]) == 1.0
            and (b.diff() > 0).all()
        )
        torch.testing.assert_close(b + b.flip(0), torch.ones_like(b))


@pytest.mark.parametrize("b", [0.0, 0.3, 1.0])
def test_a_step_leaves_its_target_as_it_is(b):
    """From exact draws of p(z) p(x given z)^b, after some steps still its mean and covariance; from
    elsewhere it moves there.
    """
    x = X[:1]
    inner = torch.eye(2, dtype=torch.float64) + b * MODEL.weight.T @ MODEL.weight / MODEL.std**2
    cover = torch.linalg.inv(inner)
    mean = b * cover @ MODEL.weight.T @ (x[0] - MODEL.bias) / MODEL.std**2
    with isolated(0):
        z = mean + torch.randn(20_000, 1, 2, dtype=torch.float64) @ torch.linalg.cholesky(cover).T
        chains = Chains(density(NET, x), 1, 3, z)
        size = torch.full((1,), 0.7 * float(cover.diagonal().min().sqrt()), dtype=torch.float64)
        rates = []
        for _ in range(5):
            z, rate = chains._step(z, torch.tensor(b, dtype=torch.float64), size)
            rates.append(float(rate))
    assert 0.3 < min(rates) < 0.999, "proposals are refused now and then, or nothing is tested"
    has_mean(z[:, 0], mean)
    has_covariance(z[:, 0], cover)


def test_a_step_moves():
    z = start(500, 4)
    chains = Chains(density(NET, X), 1, 5, z)
    with isolated(0):
        moved, rate = chains._step(
            z, torch.tensor(1.0, dtype=torch.float64), torch.full((4,), 0.2, dtype=torch.float64)
        )
    assert moved.shape == z.shape and rate.shape == (4,)
    still = (moved == z).all(-1).double().mean(0)
    assert ((still - (1 - rate)).abs() < Z * (0.25 / 500) ** 0.5).all()


def test_a_density_that_is_nan_somewhere_is_never_entered():
    where = Density(
        lambda z: -0.5 * z.square().sum(-1),
        lambda z: torch.where(z[..., 0] > 0, torch.nan, 0.0 * z[..., 0]),
    )
    z = -start(50, 3).abs()
    chains = Chains(where, 2, 3, z)
    with isolated(0):
        for _ in range(20):
            z, rate = chains._step(
                z,
                torch.tensor(1.0, dtype=torch.float64),
                torch.full((3,), 0.5, dtype=torch.float64),
            )
    assert (z[..., 0] <= 0).all() and torch.isfinite(rate).all()


@pytest.mark.parametrize(("steps", "leapfrog"), [(1, 1), (5, 3)])
def test_the_weight_of_a_chain_is_unbiased_even_with_few_steps(steps, leapfrog):
    with isolated(0):
        chains = Chains(density(NET, X), steps, leapfrog, start(50, 4))
        chains.tune(start(50, 4, seed=9))
        log_w = chains.up(start(50_000, 4, seed=10))
    has_mean((log_w - MODEL.log_evidence(X)).exp(), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize(("steps", "leapfrog"), [(5, 3)])
def test_the_weight_of_a_reverse_chain_is_unbiased_for_the_inverse(steps, leapfrog):
    mean, cover = MODEL.posterior(X)
    with isolated(0):
        z = mean + torch.randn(50_000, 4, 2, dtype=torch.float64) @ torch.linalg.cholesky(cover).T
        chains = Chains(density(NET, X), steps, leapfrog, z[:50])
        chains.tune(start(50, 4, seed=9))
        log_w = chains.down(z)
    has_mean((log_w + MODEL.log_evidence(X)).exp(), torch.ones(4, dtype=torch.float64))


def test_tuning_reaches_the_wished_acceptance():
    with isolated(0):
        chains = Chains(density(NET, X), 60, 3, start(100, 4))
        chains.tune(start(100, 4, seed=9))
        chains.up(start(100, 4, seed=10))
    assert ((chains.accepted > 0.45) & (chains.accepted < 0.9)).all(), chains.accepted


def test_counting_does_not_tune():
    with isolated(0):
        chains = Chains(density(NET, X), 5, 2, start(10, 4))
        chains.tune(start(10, 4))
        before = chains.sizes.clone()
        chains.up(start(10, 4))
        chains.down(start(10, 4))
    assert torch.equal(before, chains.sizes)


def test_many_steps_reach_the_truth():
    with torch.no_grad(), isolated(0):
        found = anneal(NET, X, 32, 60, 3)
    # With 60 temperatures the log weights of this model have a standard deviation below 0.5.
    torch.testing.assert_close(found, MODEL.log_evidence(X), rtol=0, atol=Z * 0.5 / 32**0.5)


def test_the_truth_lies_between_in_the_mean():
    n = 300
    with isolated(0):
        z = torch.randn(n, 2, dtype=torch.float64)
        x = z @ MODEL.weight.T + MODEL.bias + MODEL.std * torch.randn(n, 4, dtype=torch.float64)
        lower, upper = both_ways(NET, z, x, 2, 5, 3)
    exact = MODEL.log_evidence(x)
    below, above = exact - lower, upper - exact
    assert (
        float(below.mean() / below.std() * n**0.5) > -Z
        and float(above.mean() / above.std() * n**0.5) > -Z
    )
    assert float((below + above).mean() / (below + above).std() * n**0.5) > Z, (
        "so few steps leave a gap that can be seen"
    )


def test_more_steps_close_the_gap():
    with isolated(0):
        z = torch.randn(50, 2, dtype=torch.float64)
        x = z @ MODEL.weight.T + MODEL.bias + MODEL.std * torch.randn(50, 4, dtype=torch.float64)
        gaps = [
            float((lambda pair: (pair[1] - pair[0]).mean())(both_ways(NET, z, x, 4, steps, 3)))
            for steps in (3, 60)
        ]
    assert gaps[1] < gaps[0] / 4


@pytest.mark.parametrize("prior", ["mixture", "vamp"])
def test_learned_priors_are_annealed_from(prior):
    net = network(Diagonal(2), prior, components=3).eval().requires_grad_(False)
    x = torch.tensor([[0.3, -0.5, 0.8]], dtype=torch.float64)
    from credo.generative.marginal import log_weights

    with torch.no_grad(), isolated(0):
        log_p = torch.logsumexp(log_weights(net, x, 40_000, "prior"), 0) - torch.log(
            torch.tensor(40_000.0)
        )
        found = anneal(net, x, 64, 40, 3)
    torch.testing.assert_close(found, log_p, rtol=0, atol=0.3)
