"""Findings: none where nothing is wrong, and what becomes of them."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from zoo.findings import X, Y, bnn, case, hidden, moved, names

import credo
from credo.core.errors import CredoError, FindingError, FindingWarning
from credo.engine import diagnose
from credo.engine.diagnose import (
    Case,
    Check,
    chains_not_mixed,
    checks,
    divergent_trajectories,
    few_effective_draws,
    not_a_number,
)
from credo.engine.fit_job import FitJob
from credo.methods import make_method

pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")


def test_nothing_is_found_where_nothing_is_wrong():
    for method in ("map", "vi", "laplace", "hmc", "exact"):
        assert bnn().fit((X, Y), method, progress=False).diagnose() == [], method


@pytest.mark.slow
def test_no_false_alarms_on_well_behaved_fits():
    """100 fits by five methods to linear data of their own: at most 5 may say anything."""
    loud = []
    for seed in range(20):
        source = torch.Generator().manual_seed(100 + seed)
        x = torch.randn(60 + 20 * seed, 4, generator=source)
        y = (x @ torch.randn(4, 1, generator=source)).tanh()
        y = y + 0.2 * torch.randn(len(x), 1, generator=source)
        for method in ("map", "vi", "laplace", "ivon", "deep_ensemble"):
            torch.manual_seed(seed)
            fitted = credo.BNN(nn.Linear(4, 1), "gaussian").fit((x, y), method, seed=seed)
            loud += [(seed, method, *names(fitted))] if fitted.diagnose() else []
    assert len(loud) <= 5, loud


def test_strict_makes_them_an_error_and_the_fit_is_kept():
    strict = bnn()
    with pytest.raises(FindingError, match="spread at its start"):
        strict.fit((X, Y), "vi", epochs=5, strict=True)
    assert strict.is_fitted and names(strict)[-1] == "spread at its start"
    bnn().fit((X, Y), "vi", strict=True, progress=False)


def test_they_are_warned_of():
    with pytest.warns(FindingWarning, match=r"spread at its start \(serious\): .*; train longer"):
        bnn().fit((X, Y), "vi", epochs=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bnn().fit((X, Y), "vi", progress=False)


def test_they_are_stored_with_the_fit(tmp_path):
    fitted = bnn().fit((X, Y), "vi", epochs=5, run=tmp_path / "run")
    fitted.save(tmp_path / "saved")
    for place in ("run", "saved"):
        assert credo.load(tmp_path / place, nn.Linear(5, 1)).diagnose() == fitted.diagnose()
    again = bnn().fit((X, Y), "vi", epochs=5, run=tmp_path / "run")
    assert again.diagnose() == fitted.diagnose() != []


def test_without_a_fit_there_is_nothing_to_diagnose():
    with pytest.raises(CredoError, match="has no posterior yet"):
        bnn().diagnose()


def test_every_check_says_what_it_looks_for():
    assert all(check.run.__doc__ for check in checks.values())


def test_a_check_that_cannot_be_made_is_a_finding_and_the_fit_is_kept(monkeypatch):
    def broken(case):
        raise RuntimeError("no copy of this\nmore")

    monkeypatch.setitem(checks, "members alike", Check(broken))
    (found,) = bnn().fit((X, Y), "map", progress=False).diagnose()
    assert found.name == "not checked"
    assert found.evidence == "'members alike' could not be checked: no copy of this"


def test_rows_are_evenly_spaced_and_few_for_large_networks(monkeypatch):
    fitted = bnn().fit((X, Y), "vi", epochs=1, progress=False)
    assert torch.equal(case(fitted).rows[0], X)
    monkeypatch.setattr(diagnose, "ROWS", 50)
    x, y = case(fitted).rows
    assert torch.equal(x, X[::4]) and torch.equal(y, Y[::4])
    monkeypatch.setattr(diagnose, "PRODUCTS", 1.0)
    monkeypatch.setattr(diagnose, "FEW", 10)
    assert torch.equal(case(fitted).rows[0], X[::20])


def test_rows_of_a_loader_are_those_of_its_first_batch():
    batches = [(X[:60], Y[:60]), (X[60:], Y[60:])]
    fitted = bnn().fit(batches, "vi", epochs=1, num_data=200, progress=False)
    assert torch.equal(case(fitted, batches).rows[0], X[:60])


def test_predictions_are_made_once_and_as_the_method_makes_them():
    fitted = bnn(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)))
    fitted.fit((X, Y), "laplace", epochs=2, progress=False)
    found = case(fitted)
    assert fitted.method.shortcut == "linear" and found.predictive is found.predictive
    expected = fitted.predict(X, num_samples=diagnose.DRAWS)
    assert torch.allclose(found.predictive.mean, expected.mean, atol=1e-5)
    assert found.nll == pytest.approx(-float(expected.log_prob(Y).mean()), rel=1e-4)


def test_the_nll_is_in_the_units_of_the_history():
    """Of targets on a wild scale, where the model is one of standardised ones."""
    wild = credo.BNN(nn.Linear(5, 1), "gaussian").fit((X, 1e4 * Y), "map", progress=False)
    assert wild.standardised is not None and wild.diagnose() == []


def test_normalisation_that_no_data_have_set():
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    fitted = bnn(net).fit((X, Y), "sgld", num_warmup=5, num_draws=4, thin=1)
    assert "untrained normalisation" in names(fitted)


def test_a_number_that_is_none():
    fitted = bnn(hidden()).fit((X, Y), "map", epochs=1, progress=False)
    assert not_a_number(case(fitted)) is None
    found = not_a_number(case(moved(fitted, float("nan"))))
    assert found.severity == "serious" and "are NaN" in found.evidence


def test_an_overparameterised_fit_is_told_by_one_finding_with_its_kl():
    """A KL that dwarfs the data has no check of its own: "no better than a constant" says it."""
    data = X[:40], Y[:40]
    torch.manual_seed(0)
    net = credo.nets.mlp(5, (100, 100), 1)
    fitted = credo.BNN(net, "gaussian", torch.distributions.Normal(0.0, 1.0))
    fitted.fit(data, "vi", progress=False, epochs=800)
    told = {finding.name: finding.evidence for finding in fitted.diagnose()}
    assert "beside a KL of" in told["no better than a constant"]


def test_chains_that_have_not_mixed():
    fitted = bnn().fit((X, Y), "metropolis", num_warmup=0, num_draws=60, init="prior")
    assert {"chains not mixed", "few effective draws"} <= set(names(fitted))


def recorded(**last):
    """A sampler's case with 4 chains of 100 draws that agree, and these numbers in its last row."""
    rng = np.random.default_rng(0)
    rows = [{"log_density": rng.normal(size=4).tolist(), "warmup": False} for _ in range(100)]
    rows[-1] |= last
    fit_job = FitJob(None, 1, None, 0.1, history=rows)
    return Case(SimpleNamespace(), make_method("hmc", {}), SimpleNamespace(), fit_job)


def test_chains_are_judged_by_what_they_predict_where_that_is_known():
    far = {"r_hat": 2.1, "ess": 12.0}
    assert chains_not_mixed(recorded(**far, r_hat_y=1.09, ess_y=26.0)) is None
    assert few_effective_draws(recorded(**far, r_hat_y=1.09, ess_y=26.0)) is None
    found = chains_not_mixed(recorded(**far, r_hat_y=1.23, ess_y=26.0))
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


def test_divergent_trajectories_are_counted_after_the_warm_up():
    case = recorded()
    for place, row in enumerate(case.history):
        row |= {"divergent": 0.1 * (place % 2), "warmup": place < 50}
    assert "5.0 % of the draws" in divergent_trajectories(case).evidence


def test_chains_are_not_asked_of_what_has_none():
    descent = replace(recorded(r_hat=3.0), method=make_method("vi", {}))
    assert not checks["chains not mixed"].fits(descent)
    assert checks["chains not mixed"].fits(recorded())
    assert not checks["still falling"].fits(recorded())


def test_chains_that_do_not_move_have_no_draws():
    case = recorded(r_hat_y=1.0, ess_y=400.0)
    for row in case.history:
        row["log_density"][1] = -3.0
    assert few_effective_draws(case).evidence == "1 of 4 chains have not moved"
