"""Checks of samplers, and the two numbers that they go by."""

import numpy as np
import pytest
from zoo.findings import X, Y, bnn, names

from credo.engine.chain_checks import effective_draws, split_r_hat

pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")


def test_chains_that_have_not_mixed():
    fitted = bnn().fit((X, Y), "metropolis", num_warmup=0, num_draws=60, init="prior")
    assert {"chains not mixed", "few effective draws"} <= set(names(fitted))


def test_r_hat_and_effective_draws():
    """Of 4 independent chains, of chains around different means, and of AR(1) with 0.9, whose
    draws count as 1/19; within a quarter, five standard errors at this length.
    """
    rng = np.random.default_rng(0)
    free = rng.normal(size=(4, 2000))
    assert abs(split_r_hat(free) - 1) < 0.01 and effective_draws(free) > 6000
    assert split_r_hat(free + np.arange(4)[:, None]) > 1.3
    slow = np.zeros((4, 20_000))
    for t in range(1, slow.shape[1]):
        slow[:, t] = 0.9 * slow[:, t - 1] + rng.normal(size=4)
    assert abs(effective_draws(slow) / (slow.size / 19) - 1) < 0.25
