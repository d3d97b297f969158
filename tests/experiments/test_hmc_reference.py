import math

import pytest
import torch

from credo.experiments.hmc_reference import hmc, rhat

Z = 4.0  # two-sided failure rate of a correct sampler 6e-5 per number


def test_moments_of_a_correlated_gaussian():
    """Chains are independent, so chain averages give a z-test whatever the correlation within a chain."""
    cover = torch.tensor([[1.0, 0.8], [0.8, 2.0]], dtype=torch.float64)
    precision = torch.linalg.inv(cover)
    centre = torch.tensor([1.0, -2.0], dtype=torch.float64)

    def log_density(q):
        return -0.5 * ((q - centre) @ precision * (q - centre)).sum(1)

    source = torch.Generator().manual_seed(0)
    start = torch.randn(100, 2, generator=source, dtype=torch.float64)
    chains = hmc(log_density, start, 100, 100, 5, source, first_step=0.1)
    assert chains.draws.shape == (100, 100, 2)
    apart = chains.draws - centre
    for values, truth in (
        (apart, torch.zeros(2)),
        (apart.square(), cover.diagonal()),
        (apart.prod(2, keepdim=True), cover[0, 1]),
    ):
        per_chain = values.mean(0)
        z = (per_chain.mean(0) - truth) / (per_chain.std(0) / math.sqrt(len(per_chain)))
        assert z.abs().max() < Z
    assert 0.6 < float(chains.acceptance.mean()) <= 1.0
    assert rhat(chains.draws).max() < 1.05


def test_the_same_seed_gives_the_same_chain():
    def run():
        source = torch.Generator().manual_seed(1)
        return hmc(lambda q: -0.5 * q.square().sum(1), torch.zeros(2, 3, dtype=torch.float64), 5, 5, 3, source).draws

    assert torch.equal(run(), run())


def test_a_trajectory_that_leaves_the_numbers_is_refused_and_the_state_counts_again():
    def log_density(q):
        return -(q**4).sum(1) * 1e8

    chains = hmc(log_density, torch.ones(1, 1, dtype=torch.float64), 0, 3, 50, torch.Generator().manual_seed(0), first_step=10.0)
    assert torch.equal(chains.draws, torch.ones(3, 1, 1, dtype=torch.float64)) and chains.acceptance == 0


def test_rhat_sees_chains_that_disagree():
    torch.manual_seed(0)
    same = torch.randn(200, 4)
    assert rhat(same) == pytest.approx(1.0, abs=0.02)
    assert rhat(same + torch.tensor([0.0, 0.0, 0.0, 5.0])) > 2
