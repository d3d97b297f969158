"""Checks of descents and of predictions, each on a fit that has the fault."""

import pytest
import torch
from torch import nn
from zoo.findings import X, Y, bnn, names

import credo

pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")


def test_a_fit_that_is_much_too_short():
    found = bnn().fit((X, Y), "vi", epochs=5).diagnose()
    assert [f.name for f in found if f.severity == "serious"][-1] == "spread at its start"
    assert "init_std=0.01" in found[-1].evidence and "train longer" in found[-1].sentence
    assert "still falling" in names(bnn().fit((X, Y), "map", epochs=40, lr=1e-3))


def test_labels_that_inputs_say_nothing_of():
    labels = torch.randint(0, 3, (200,), generator=torch.Generator().manual_seed(3))
    net = nn.Linear(5, 3)
    fitted = bnn(net, "categorical").fit((X, labels), "vi", progress=False)
    (found,) = fitted.diagnose()
    assert found.name == "no better than a constant" and "beside a KL of" in found.evidence


def test_noise_that_drowns_the_data():
    """Many more weights than data, under a prior that lets them say little: the posterior ends
    there.
    """
    digits = credo.data.load("digits")
    data = digits["x"][:100] / 16.0, digits["y"][:100]
    torch.manual_seed(0)
    net, prior = credo.nets.mlp(64, (100,), 10), credo.priors.FanIn(1.0)
    fitted = credo.BNN(net, "categorical", prior).fit(data, "vi", progress=False)
    assert "no better than a constant" in names(fitted)
