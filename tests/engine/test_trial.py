"""What a user leaves open is chosen on held-out rows, where that can be afforded, nowhere else."""

import json

import numpy as np
import pytest
import torch
from torch.distributions import Normal

import credo

pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")


def noisy_labels(rows=300, seed=0):
    """Ten inputs of which two say something, weakly: a wide prior learns them by heart."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 10)).astype("float32")
    y = rng.random(rows) < 1 / (1 + np.exp(-x[:, 0] + x[:, 1]))
    return x, y.astype("int64")


def bnn(prior=None, hidden=(20,)):
    torch.manual_seed(0)
    return credo.BNN(credo.nets.mlp(10, hidden, 2), prior=prior)


@pytest.fixture(scope="module")
def fitted():
    return bnn().fit(noisy_labels(), "map", progress=False)


def test_a_prior_that_is_too_wide_is_narrowed(fitted):
    tried, chosen = fitted.trial["tried"], fitted.trial["chosen"]
    assert tried[0]["prior_std"] == 1.0 and chosen["prior_std"] < 1.0
    assert chosen["held_out_nll"] < tried[0]["held_out_nll"] and chosen in tried
    assert fitted.trial["held_out"] == 60
    site = next(iter(fitted.model.sites.values()))
    assert float(fitted.model.prior.at(site).scale) == pytest.approx(chosen["prior_std"])
    test = noisy_labels(2000, seed=1)
    wide = bnn(Normal(0.0, 1.0)).fit(noisy_labels(), "map", progress=False)
    assert fitted.evaluate(test)["nll"] < wide.evaluate(test)["nll"] - 0.1
    assert wide.trial is None


def test_the_trial_is_repeated_stored_and_resumed(fitted, tmp_path):
    again = bnn().fit(noisy_labels(), "map", progress=False, run=tmp_path / "run")
    assert again.trial == fitted.trial
    assert json.loads((tmp_path / "run" / "config.json").read_text())["trial"] == fitted.trial
    resumed = bnn().fit(noisy_labels(), "map", progress=False, run=tmp_path / "run")
    loaded = credo.load(tmp_path / "run", bnn().net)
    for each in (resumed, loaded):
        assert each.trial == fitted.trial
        assert torch.equal(
            each.predict(noisy_labels()[0]).mean, fitted.predict(noisy_labels()[0]).mean
        )


def test_no_trial_where_something_was_asked_for_or_nothing_is_to_be_narrowed():
    data = noisy_labels(80)
    for fit in (
        bnn(Normal(0.0, 1.0)).fit(data, "map", progress=False),
        bnn().fit(data, "map", epochs=3, progress=False),
        bnn(hidden=()).fit(data, "map", progress=False),
        bnn().fit(noisy_labels(40), "map", progress=False),
        bnn().fit(data, "mle", progress=False),
    ):
        assert fit.trial is None


def test_settings_are_tried_after_the_prior():
    dropped = bnn().fit(noisy_labels(100), "mc_dropout", progress=False)
    assert any("p" in row for row in dropped.trial["tried"])
    given = bnn().fit(noisy_labels(100), "mc_dropout", p=0.1, progress=False)
    assert not any("p" in row for row in given.trial["tried"])


def test_points_under_a_random_last_layer_are_narrowed_too():
    fitted = bnn().fit(noisy_labels(), "last_layer", progress=False)
    assert fitted.trial["chosen"]["prior_std"] < 1.0
    assert fitted.evaluate(noisy_labels(2000, seed=1))["nll"] < 0.65
