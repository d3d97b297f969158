"""Budgets of candidates: steps, and what effort scales."""

import pytest

from credo_reproduce.uci_candidates import Candidate, epochs


@pytest.mark.parametrize(
    ("num_data", "batch", "wanted"),
    [(200, 512, 400), (1000, 500, 200), (4000, 500, 100), (1000, None, 400)],
)
def test_steps_grow_with_the_root_of_the_data(num_data, batch, wanted):
    assert epochs(400, num_data, batch, 1.0) == wanted
    assert epochs(400, num_data, batch, 1e-6) == 1


def test_effort_scales_whatever_takes_time():
    candidate = Candidate(
        "c", {"num_warmup": 100, "num_draws": 50, "num_cycles": 3, "thin": 7}, batch=None
    )
    given = candidate.arguments(100, 0.2)
    # draws are a multiple of the cycles
    assert (given["num_warmup"], given["num_draws"], given["thin"]) == (20, 12, 7)
    assert candidate.arguments(100, 1e-3)["num_warmup"] == 4
    assert Candidate("d", steps=100, least=5).arguments(100, 0.01)["epochs"] == 5
