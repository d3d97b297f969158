import torch

from credo_reproduce.base import make_experiment, perform
from credo_reproduce.mean_field import BETAS, STARTS, MeanFieldFailings


def test_quick_run_has_all_three_parts():
    result = perform(make_experiment("mean_field", {"quick": True}))
    tables = result.outcome.tables
    assert [table.title[:3] for table in tables] == ["(a)", "(b)", "(a)", "(b)", "(c)"]
    assert len(tables[0].rows) == len(STARTS) + 1 and len(tables[1].rows) == len(BETAS)
    assert len(result.outcome.checks) == 10


def test_test_points_are_in_the_units_of_the_training_points():
    problem = MeanFieldFailings().regression(0)
    assert abs(float(problem.train[0].mean())) < 1e-5
    # 1,000 inputs of standardised deviation 1: the mean has standard error 0.03, and the clusters
    # keep it near zero.
    assert abs(float(problem.test[0].mean())) < 0.2 and torch.isfinite(problem.test[1]).all()
