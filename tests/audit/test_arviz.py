"""Export to ArviZ, where it is installed."""

import sys

import pytest
import torch

import credo
from credo import audit


def test_without_arviz_the_error_says_what_to_install(truth, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(credo.CredoError, match="pip install arviz"):
        audit.to_arviz(truth)


def test_a_posterior_that_is_not_chains_is_refused(exact):
    with pytest.raises(credo.CredoError, match="'exact' is no set of chains"):
        audit.to_arviz(exact)


def test_groups_variables_and_dimensions(truth, problem):
    arviz = pytest.importorskip("arviz")
    found = audit.to_arviz(truth, problem.x[:3])
    draws = truth.posterior.factors[0].flat.unflatten(0, (4, -1))
    assert found.posterior["weight"].shape == (4, 400, 1, 3) and found.posterior["bias"].shape == (
        4,
        400,
        1,
    )
    assert torch.equal(torch.tensor(found.posterior["weight"].values).flatten(2), draws[..., :3])
    assert found.predictions["functions"].shape == (4, 400, 3, 1)
    record = [row for row in truth.history if not row["warmup"]]
    assert found.sample_stats["energy"].values[2, 7] == record[7]["energy"][2]
    assert found.sample_stats["lp"].values[1, 5] == record[5]["log_density"][1]
    assert found.sample_stats["diverging"].dtype == bool
    assert (
        found.sample_stats["acceptance_rate"].dims
        == ("draw",)
        == found.sample_stats["step_size"].dims
    )
    ours = audit.diagnose(truth, problem.x[:3])
    assert float(arviz.rhat(found).to_array().max()) == pytest.approx(
        max(row.rhat for row in ours.parameters), rel=1e-6
    )
    assert arviz.bfmi(found).tolist() == pytest.approx(ours.bfmi)
    summary = arviz.summary(found, group="predictions", round_to="none")
    assert float(summary["ess_bulk"].min()) == pytest.approx(ours.functions.ess_bulk, rel=1e-6)


def test_without_inference_data_the_same_groups_are_a_tree(truth, problem, monkeypatch):
    arviz = pytest.importorskip("arviz")
    monkeypatch.delattr(arviz, "InferenceData")
    tree = audit.to_arviz(truth, problem.x[:2])
    assert set(tree.children) == {"posterior", "sample_stats", "predictions"} and tree["posterior"][
        "bias"
    ].shape == (4, 400, 1)


def test_a_history_of_other_draws_is_left_out(truth, monkeypatch):
    pytest.importorskip("arviz")
    monkeypatch.setattr(truth, "history", truth.history[:-1])
    assert "sample_stats" not in audit.to_arviz(truth).groups()
