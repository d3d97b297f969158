"""Checks of models of real targets, each on a fit that has the fault."""

import pytest
import torch
from torch import nn
from zoo.findings import X, Y, bnn, case, hidden

import credo
from credo.engine.diagnose import checks
from credo.engine.value_checks import noise_exploded, wider_than_targets

pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")


def test_noise_of_weights_that_is_wider_than_the_targets():
    """Draws of N(0, 1) weights, a fit that has learned nothing: a sum of 20 units is wider than
    targets of sd 0.5.
    """
    fitted = bnn(hidden()).fit((X, 0.1 * Y), "vi", epochs=1, init_std=1.0, progress=False)
    found = wider_than_targets(case(fitted, (X, 0.1 * Y)))
    assert found.severity == "serious" and "times that of the targets" in found.evidence


def test_widths_are_not_asked_of_few_rows_or_of_labels():
    fitted = bnn(hidden()).fit((X[:10], 0.1 * Y[:10]), "vi", epochs=1, init_std=1.0)
    assert wider_than_targets(case(fitted, (X[:10], 0.1 * Y[:10]))) is None
    labels = torch.arange(200) % 3
    fitted = credo.BNN(nn.Linear(5, 3), "categorical").fit((X, labels), "vi", epochs=1)
    assert not checks["wider than the targets"].fits(case(fitted, (X, labels)))


def test_learned_noise_that_is_wider_than_the_targets():
    noisy = credo.likelihoods.Gaussian(initial_std=50.0)
    fitted = bnn(hidden(), noisy).fit((X, Y), "map", epochs=1, progress=False)
    found = noise_exploded(case(fitted))
    assert found.severity == "serious" and "learned noise of y" in found.evidence
    assert wider_than_targets(case(fitted)) is None
