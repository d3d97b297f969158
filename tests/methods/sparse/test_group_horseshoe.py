"""The group horseshoe as a user meets it."""

import math

import pytest
import torch
from zoo.group_fits import fit_linear, fits_predicts_and_saves, refuses_prior_draws

import credo
from credo.core.errors import SettingError
from credo.methods import methods


@pytest.mark.parametrize("centred", [True, False])
def test_inputs_that_do_not_matter_are_told_apart(centred):
    """Noise to signal is e^2 times that of the inputs that do; with two weights a group, not yet
    enough to prune it.
    """
    bnn, family, _ = fit_linear("group_horseshoe", centred=centred, threshold=9.0)
    scores = family.group_scores()["weight"].detach()
    assert float(scores[2:].min()) > float(scores[:2].max()) + 2, scores
    mean = bnn.posterior.mean()["weight"]
    assert torch.allclose(mean[:, :2], torch.tensor([[2.0, -1.5], [-1.0, 1.0]]).double(), atol=0.4)
    assert family.centred == centred and bnn.history[-1]["kept/weight"] == 6.0


def test_the_global_scale_is_a_setting_of_the_prior():
    kl = {
        tau0: fit_linear("group_horseshoe", tau0=tau0, epochs=1, lr=1e-9)[0].history[0]["kl"]
        for tau0 in (1.0, 1e-3)
    }
    assert kl[1e-3] > kl[1.0] + 3, "one number per layer: E[a] / tau0^2 and log tau0 of it"


@pytest.mark.parametrize(
    "how",
    [
        {"estimator": "local"},
        {"estimator": "weights"},
        {"estimator": "per_example"},
        {"centred": True},
    ],
)
def test_it_fits_predicts_and_saves(how, tmp_path):
    bnn, data = fits_predicts_and_saves("group_horseshoe", tmp_path, **how)
    refuses_prior_draws(bnn, data[0])
    assert bnn.proper


def test_the_objective_counts_bits_of_weights_and_scales():
    bnn, _, data = fit_linear("group_horseshoe", epochs=30)
    parts = bnn.objective(data, precision=0.01)
    assert parts["bits_weights"] == pytest.approx(parts["kl"] / math.log(2)) and parts["kl"] > 0
    assert math.isfinite(parts["bits_sent"])


def test_bad_settings_are_named():
    with pytest.raises(SettingError, match="group_horseshoe: tau0=0.0"):
        methods["group_horseshoe"](tau0=0.0)
    assert credo.methods.GroupHorseshoe().scale_lr == 5.0
