"""Checks of samplers, and the two numbers that they go by."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from zoo.findings import X, Y, bnn, names

from credo.engine.chain_checks import (
    chains_not_mixed,
    divergent_trajectories,
    effective_draws,
    few_effective_draws,
    split_r_hat,
)
from credo.engine.findings import Case
from credo.engine.fit_job import FitJob
from credo.methods import make_method

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


def recorded(**last):
    """A sampler's case with 4 chains of 100 draws that agree, and these numbers in its last row."""
    rng = np.random.default_rng(0)
    rows = [{"log_density": rng.normal(size=4).tolist(), "warmup": False} for _ in range(100)]
    rows[-1] |= last
    fit_job = FitJob(None, 1, None, 0.1, history=rows)
    return Case(SimpleNamespace(), make_method("hmc", {}), SimpleNamespace(), fit_job)


def test_chains_are_judged_by_what_they_predict_where_that_is_known():
    far = {"r_hat": 2.1, "ess": 12.0}
    assert chains_not_mixed(recorded(**far, r_hat_y=1.09, ess_y=41.0)) is None
    assert few_effective_draws(recorded(**far, r_hat_y=1.09, ess_y=41.0)) is None
    found = chains_not_mixed(recorded(**far, r_hat_y=1.23, ess_y=41.0))
    assert found.severity == "serious"
    assert found.evidence == ("predictions of y by 4 chains have R-hat 1.230 (worst output 2.100)")
    found = few_effective_draws(recorded(**far, r_hat_y=1.0, ess_y=22.0))
    assert found.evidence == (
        "400 draws count as 22 by their predictions of y (as 12 by their worst output)"
    )


def test_chains_are_judged_by_outputs_and_then_by_their_density():
    assert "worst output of 4 chains has R-hat 1.060" in (
        chains_not_mixed(recorded(r_hat=1.06)).evidence
    )
    assert "as 99 by their worst output" in few_effective_draws(recorded(ess=99.0)).evidence
    assert chains_not_mixed(recorded()) is None and few_effective_draws(recorded()) is None
    apart = recorded()
    for row in apart.history:
        row["log_density"][0] += 10.0
    assert "log density of 4 chains" in chains_not_mixed(apart).evidence


def test_chains_are_not_asked_of_what_has_none():
    descent = replace(recorded(r_hat=3.0), method=make_method("vi", {}))
    assert chains_not_mixed(descent) is None and few_effective_draws(descent) is None


def test_divergent_trajectories_are_counted_after_the_warm_up():
    case = recorded()
    for place, row in enumerate(case.history):
        row |= {"divergent": 0.1 * (place % 2), "warmup": place < 50}
    assert "5.0 % of the draws" in divergent_trajectories(case).evidence
