"""Findings: none where nothing is wrong, and what becomes of them."""

import warnings

import pytest
import torch
from torch import nn
from zoo.findings import X, Y, bnn, names

import credo
from credo.core.errors import CredoError, FindingError, FindingWarning
from credo.engine.diagnose import checks

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
    assert all(check.__doc__ for check in checks.values())


def test_a_check_that_cannot_be_made_is_a_finding_and_the_fit_is_kept(monkeypatch):
    def broken(case):
        raise RuntimeError("no copy of this\nmore")

    monkeypatch.setitem(checks, "members alike", broken)
    (found,) = bnn().fit((X, Y), "map", progress=False).diagnose()
    assert found.name == "not checked"
    assert found.evidence == "'members alike' could not be checked: no copy of this"
