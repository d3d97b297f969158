"""Adapted samplers on targets with known moments: MCSE z-tests of first and second moments, each
failing a right sampler once in 1.7 million.
"""

from functools import cache

import pytest
import torch
from zoo.chains import KNOWN, Careless, KernelMoves, adapted, banana, fixed, pair, score, settled
from zoo.stats import Z

from credo.kernels.hamiltonian import Integrator
from credo.metrics.chain_diagnostics import ess_bulk, rhat

DOUBLE = torch.float64
CHAINS = 64
METHODS = {"hmc": KernelMoves("hmc", 6), "nuts": KernelMoves("nuts", max_depth=5)}


def far(known, seed=1, chains=CHAINS):
    """Starts twice as wide as the target."""
    return 2 * known.exact(chains, torch.Generator().manual_seed(seed))


@cache
def run(method, name, dense):
    known = KNOWN[name]()
    steps = (
        KernelMoves("hmc", 16)
        if (method, name, dense) == ("hmc", "fifty", False)
        else METHODS[method]
    )  # neighbours stay correlated
    return adapted(steps, known.target, far(known), 160, 150, dense=dense)


@pytest.mark.parametrize("dense", [False, True], ids=["diagonal", "dense"])
@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("method", METHODS)
def test_moments(method, name, dense):
    chains = run(method, name, dense)
    settled(chains.draws, KNOWN[name]())
    assert (
        float(rhat(chains.draws).max()) < 1.05 and float(ess_bulk(chains.draws).min()) > 800
    )  # or the test would have no power
    assert abs(chains.rate - 0.8) < 0.12  # the step size is what was asked for


@pytest.mark.parametrize("method", METHODS)
def test_the_same_test_fails_a_sampler_that_takes_every_end(method):
    """Every point of a trajectory as good as another, at a step size that the right sampler can
    live with.
    """
    known = pair()
    begin, scale = (
        known.exact(CHAINS, torch.Generator().manual_seed(1)),
        torch.ones(2, dtype=DOUBLE),
    )
    right, wrong = (
        fixed(KernelMoves(method, 3), make(known.target), begin, 0.7, scale, 100)
        for make in (Integrator, Careless)
    )
    assert score(right, known.mean, known.variance) < Z < score(wrong, known.mean, known.variance)


@pytest.mark.parametrize("method", METHODS)
def test_the_test_of_moments_has_power(method):
    """Against variances that are a third larger than the target's it fails the right draws."""
    known, draws = pair(), run(method, "pair", False).draws
    assert (
        score(draws, known.mean, known.variance)
        < Z
        < score(draws, known.mean, 1.3 * known.variance)
    )


def test_the_metric_learned_is_the_targets():
    """Diagonal: variances; dense: the covariance.

    64 chains over 90 moves are some 500 independent draws, whose variances are known to 6 %: a
    quarter is four standard errors.
    """
    ratio = run("nuts", "fifty", False).adaptation.scale.square() / KNOWN["fifty"]().variance
    assert torch.allclose(ratio, torch.ones(50, dtype=DOUBLE), atol=0.25)
    dense = run("nuts", "pair", True).adaptation.scale
    assert torch.allclose(
        dense @ dense.T, torch.tensor([[1.0, 2.7], [2.7, 9.0]], dtype=DOUBLE), rtol=0.25
    )


def test_single_precision_samples_the_same():
    known = banana()
    begin = far(known).float()
    chains = adapted(METHODS["hmc"], known.target, begin, 150, 200)
    assert chains.draws.dtype == torch.float32
    settled(chains.draws.double(), known)
