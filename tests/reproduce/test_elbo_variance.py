import torch

from credo_reproduce.base import make_experiment, perform
from credo_reproduce.elbo_variance import KINDS, SIZES, _slope


def test_quick_run_measures_every_size_under_every_estimator():
    result = perform(make_experiment("elbo_variance", {"quick": True}))
    (table,) = result.outcome.tables
    assert len(table.rows) == len(SIZES) and set(table.columns) >= set(KINDS)
    assert all(value > 0 for row in table.rows for value in row.measured.values())
    assert len(result.outcome.figures[0]["lines"]) == 6


def test_shared_noise_covaries_and_theory_agrees_at_one_example():
    """Var is the variance at M = 1 and Cov lies between 0 and Var, by construction."""
    result = perform(make_experiment("elbo_variance", {"quick": True}))
    first, last = (
        result.outcome.tables[0].rows[0].measured,
        result.outcome.tables[0].rows[-1].measured,
    )
    assert first["single sample, theory"] == first["local, theory"]
    assert last["single sample, theory"] > last["local, theory"]


def test_slope_of_a_power_law():
    assert torch.isclose(torch.tensor(_slope([3.0 / m for m in SIZES])), torch.tensor(-1.0))
