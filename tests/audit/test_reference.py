"""The reference is the posterior of the very model that was fitted."""

import json
import math
import warnings

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset
from zoo.stats import Z

import credo
from credo import audit
from credo.audit.reference import weights_only
from credo.core.seeds import isolated
from credo.likelihoods import Gaussian
from credo.metrics.chain_diagnostics import mcse_mean, mcse_sd

FEW = {"num_warmup": 20, "num_draws": 12, "num_chains": 2, "num_steps": 2, "progress": False}


@pytest.fixture(scope="module")
def data():
    source = torch.Generator().manual_seed(0)
    x = torch.randn(24, 2, generator=source)
    return x, x[:, :1] - 0.5 * x[:, 1:] + 0.1 * torch.randn(24, 1, generator=source)


def network(norm=False):
    with isolated(0):
        return nn.Sequential(
            nn.Linear(2, 3), *([nn.BatchNorm1d(3)] if norm else []), nn.Tanh(), nn.Linear(3, 1)
        )


def model(**given):
    given = {"net": network(), "likelihood": Gaussian(), "prior": Normal(0.0, 1.0)} | given
    return credo.BNN(given.pop("net"), given.pop("likelihood"), **given)


def fitted(data, method="vi", settings=None, **given):
    return model(**given).fit(data, method, epochs=3, progress=False, **(settings or {}))


def quiet(bnn, data, **settings):
    """A reference too short to have converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return audit.reference(bnn, data, **(FEW | settings))


def test_draws_are_those_of_the_exact_posterior(problem, truth):
    draws = truth.posterior.members[0].flat.unflatten(0, (4, -1))
    for estimate, error, known in (
        (draws.flatten(0, 1).mean(0), mcse_mean(draws), problem.mean),
        (draws.flatten(0, 1).std(0), mcse_sd(draws), problem.covariance.diagonal().sqrt()),
    ):
        assert float(((estimate - known) / error).abs().max()) < Z
    assert truth.history[-1]["reference"]["ok"]


def test_what_was_fitted_beside_the_weights_is_held(data):
    bnn = fitted(data, random="weights", settings={"lr": 0.1})
    before = {name: value.clone() for name, value in bnn.net.state_dict().items()}
    truth = quiet(bnn, data)
    assert (
        not truth.likelihood.log_std.requires_grad
        and truth.likelihood.log_std == bnn.model.likelihood.log_std
    )
    assert (
        list(truth.random) == ["0.weight", "2.weight"] == list(truth.posterior.names)
        and not truth.point
    )
    points = dict(truth.net.named_parameters())
    for name in ("0.bias", "2.bias"):
        assert (
            torch.equal(points[name], bnn.posterior.mean()[name]) and not points[name].requires_grad
        )
    assert all(torch.equal(value, before[name]) for name, value in bnn.net.state_dict().items())
    assert (
        bnn.likelihood.log_std.requires_grad and bnn.method.name == "vi" and len(bnn.history) == 3
    )


def test_the_network_is_run_with_the_buffers_of_the_fit(data):
    bnn = fitted(data, net=network(norm=True))
    truth = weights_only(bnn)
    assert torch.equal(truth.net[1].running_mean, bnn.buffers["1.running_mean"])
    assert not torch.equal(truth.net[1].running_mean, bnn.net[1].running_mean)


@pytest.mark.parametrize("prior", ["ard", "optimal"])
def test_a_learned_prior_is_fixed_at_what_it_learned(data, prior):
    kind = credo.priors.Optimal(per="layer") if prior == "optimal" else prior
    bnn = fitted(data, prior=kind, settings={"lr": 0.1})
    truth = quiet(bnn, data)
    assert truth.model.prior.parts() == []
    for name, site in truth.model.sites.items():
        ours, theirs = bnn.model.prior.at(site), truth.model.prior.at(site)
        torch.testing.assert_close(
            ours.scale.detach().expand(site.shape), theirs.scale.expand(site.shape)
        )
        assert not theirs.scale.requires_grad, name


def test_a_method_that_narrows_is_audited_on_what_it_made_random(data):
    assert list(weights_only(fitted(data, "last_layer")).random) == ["2.weight", "2.bias"]


def test_an_updated_model_keeps_the_earlier_posterior_as_its_prior(data):
    bnn = fitted(data).update(data, epochs=2, progress=False)
    truth = quiet(bnn, data)
    assert (
        truth.model.prior is bnn.model.prior
        and truth.model.prior.describe() == "posterior: mean_field"
    )


def test_noise_in_the_network_plays_no_part(data):
    bnn = fitted(data, "mc_dropout")
    assert list(weights_only(bnn).random) == list(bnn.random)
    normed = fitted(data, "mc_batchnorm", net=network(norm=True))
    assert quiet(normed, data).posterior.noisy_modules == frozenset()


def test_a_model_that_is_not_fitted_has_a_reference_too(data):
    bnn = model(random="weights")
    truth = quiet(bnn, data)
    assert "not fitted" in repr(bnn) and list(truth.random) == ["0.weight", "2.weight"]
    assert set(truth.point) == {"0.bias", "2.bias"} and truth.likelihood.log_std.requires_grad


def test_a_loaded_model_is_audited_as_the_one_that_was_saved(data, tmp_path):
    bnn = fitted(data, random="weights", settings={"lr": 0.1})
    bnn.save(tmp_path / "model")
    first, second = quiet(bnn, data), quiet(credo.load(tmp_path / "model", network()), data)
    assert torch.equal(first.posterior.members[0].flat, second.posterior.members[0].flat)


def test_what_was_done_is_on_record_and_survives_saving(data, tmp_path):
    truth = quiet(fitted(data), data, rows=10, seed=3)
    record = truth.history[-1]["reference"]
    assert (
        record["rows"] == record["num_data"] == 10 and record["seed"] == 3 and record["ok"] is False
    )
    assert "Not converged" in record["text"] and math.isfinite(record["rhat"])
    truth.save(tmp_path / "truth")
    stored = credo.load(tmp_path / "truth", truth.net).history[-1]["reference"]
    assert json.dumps(stored) == json.dumps(record)


def test_chains_that_have_not_converged_are_warned_about(data):
    with pytest.warns(UserWarning, match="no ground truth yet.*R-hat"):
        audit.reference(fitted(data), data, **FEW)


def test_a_subsample_is_the_same_for_both_sides(data):
    x, y = data
    first, second = (
        audit.subsample(data, 9, seed=4),
        audit.subsample(DataLoader(TensorDataset(x, y), batch_size=5), 9, seed=4),
    )
    assert (
        torch.equal(first[0], second[0]) and torch.equal(first[1], second[1]) and len(first[1]) == 9
    )
    other, whole = audit.subsample(data, 9, seed=5), audit.subsample(data, 24)
    assert not torch.equal(first[0], other[0]) and torch.equal(
        whole[0].sort(0).values, x.sort(0).values
    )
    tree, _ = audit.subsample(({"a": x, "b": (x[:, :1],)}, y), 9, seed=4)
    assert torch.equal(tree["a"], first[0]) and torch.equal(tree["b"][0], first[0][:, :1])
    bnn = fitted(data)
    sub = quiet(bnn, first), quiet(bnn, data, rows=9, seed=0)
    assert len(sub[1].history) == len(sub[0].history)


def test_the_subsample_is_what_the_reference_sees(data):
    bnn = fitted(data)
    one, two = (
        quiet(bnn, data, rows=9, seed=4),
        quiet(bnn, audit.subsample(data, 9, seed=4), seed=4),
    )
    assert torch.equal(one.posterior.members[0].flat, two.posterior.members[0].flat)


@pytest.mark.parametrize("rows", [0, 25, 2.5])
def test_impossible_subsamples_are_refused(data, rows):
    with pytest.raises(credo.SettingError, match=f"rows={rows}"):
        audit.subsample(data, rows)


def test_an_approximate_method_is_no_ground_truth(data):
    with pytest.raises(credo.SettingError, match="'vi' is approximate.*hmc.*nuts"):
        audit.reference(fitted(data), data, method="vi")
    with pytest.raises(credo.SettingError, match="Unknown method 'hmv'.*'hmc'"):
        audit.reference(fitted(data), data, method="hmv")


def test_models_without_a_posterior_of_weights_alone_are_refused(data):
    with pytest.raises(credo.CredoError, match="does not integrate to one"):
        weights_only(fitted(data, "mle"))
    linear = credo.BNN(nn.Linear(2, 1), Gaussian(), prior=Normal(0.0, 1.0)).fit(data, "exact")
    with pytest.raises(credo.CredoError, match="likelihood/log_std.*noise='known'"):
        weights_only(linear)
    with pytest.raises(credo.CredoError, match="0.bias, 2.bias.*components"):
        weights_only(fitted(data, "bnn_ensemble", random="weights"))
