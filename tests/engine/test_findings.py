"""What checks look at: some rows, drawn from once, in the units of the history."""

import pytest
import torch
from torch import nn
from zoo.findings import X, Y, bnn, case

import credo
from credo.engine import findings

pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")


def test_rows_are_evenly_spaced_and_few_for_large_networks(monkeypatch):
    fitted = bnn().fit((X, Y), "vi", epochs=1, progress=False)
    assert torch.equal(case(fitted).rows[0], X)
    monkeypatch.setattr(findings, "ROWS", 50)
    x, y = case(fitted).rows
    assert torch.equal(x, X[::4]) and torch.equal(y, Y[::4])
    monkeypatch.setattr(findings, "PRODUCTS", 1.0)
    monkeypatch.setattr(findings, "FEW", 10)
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
    expected = fitted.predict(X, num_samples=findings.DRAWS)
    assert torch.allclose(found.predictive.mean, expected.mean, atol=1e-5)
    assert found.nll == pytest.approx(-float(expected.log_prob(Y).mean()), rel=1e-4)


def test_the_nll_is_in_the_units_of_the_history():
    """Of targets on a wild scale, where the model is one of standardised ones."""
    wild = credo.BNN(nn.Linear(5, 1), "gaussian").fit((X, 1e4 * Y), "map", progress=False)
    assert wild.standardised is not None and wild.diagnose() == []
