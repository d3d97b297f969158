"""Group normal-Jeffreys as a user meets it."""

import pytest
import torch
from zoo.group_fits import fit_linear, fits_predicts_and_saves, refuses_prior_draws

import credo
from credo.core.errors import SettingError
from credo.methods import methods


def test_inputs_that_do_not_matter_leave_together():
    bnn, family, (x, y) = fit_linear("group_normal_jeffreys", epochs=500, lr=0.03, threshold=0.0)
    assert family.groups_kept()["weight"].tolist() == [True, True, False, False, False, False]
    assert bnn.history[-1]["kept/weight"] == 2.0 and bnn.history[-1]["sparsity"] == pytest.approx(
        4 / 6
    )
    mean = bnn.posterior.mean()["weight"]
    assert not mean[:, 2:].any() and torch.allclose(
        mean[:, :2], torch.tensor([[2.0, -1.5], [-1.0, 1.0]]).double(), atol=0.05
    )
    assert bnn.evaluate((x, y), 50)["rmse"] < 0.15


def test_outputs_can_be_the_groups_instead():
    _, family, _ = fit_linear("group_normal_jeffreys", groups="output", epochs=3)
    assert family.scales.counts == {"weight": 2} and family.places["weight"].side == "output"


@pytest.mark.parametrize("estimator", ["local", "weights", "per_example"])
def test_it_fits_predicts_and_saves(estimator, tmp_path):
    bnn, data = fits_predicts_and_saves("group_normal_jeffreys", tmp_path, estimator=estimator)
    refuses_prior_draws(bnn, data[0])
    assert not bnn.proper


def test_an_improper_prior_has_no_evidence():
    bnn, _, data = fit_linear("group_normal_jeffreys", epochs=3)
    with pytest.raises(credo.CredoError, match="improper"):
        credo.compare([bnn, bnn], data)


def test_the_posterior_becomes_the_prior():
    bnn, family, data = fit_linear("group_normal_jeffreys", epochs=30)
    before = float(bnn.history[-1]["kl"])
    started = bnn.posterior.factors[0].flat_mean.clone()
    bnn.update(data, epochs=2)
    assert not torch.equal(bnn.posterior.factors[0].flat_mean, started), "and it learns from there"
    assert abs(float(bnn.history[-1]["kl"])) < 0.5 * before, (
        "a sampled KL from the earlier posterior, near which it starts"
    )


def test_bad_settings_are_named():
    with pytest.raises(SettingError, match="group_normal_jeffreys: groups='rows'"):
        methods["group_normal_jeffreys"](groups="rows")
