"""Deep kernel learning from network to predictions."""

import importlib.util

import pytest
import torch
from torch import nn
from zoo.processes import exact
from zoo.stats import has_covariance, has_mean

import credo
from credo import BNN
from credo.conformance import check
from credo.core.errors import CredoError, NetworkError, SettingError
from credo.core.seeds import isolated
from credo.likelihoods import Gaussian
from credo.methods.exact.parts.process_fit import as_they_start
from credo.nets import mlp

needs_gpytorch = pytest.mark.skipif(
    importlib.util.find_spec("gpytorch") is None, reason="the gp extra is not installed"
)


def data(num_data=30, dtype=torch.float64):
    source = torch.Generator().manual_seed(0)
    x = torch.randn(num_data, 2, generator=source, dtype=torch.float64)
    y = (
        torch.sin(2 * x[:, :1])
        + x[:, 1:] ** 2 / 2
        + 0.3 * torch.randn(num_data, 1, generator=source, dtype=torch.float64)
    )
    return x.to(dtype), y.to(dtype)


def perceptron(outputs=1, hidden=(8,), seed=0):
    with isolated(seed):
        return mlp(2, hidden, outputs).double()


def quick(net, likelihood, pair, **how):
    return BNN(net, likelihood).fit(
        pair, "dkl", **{"epochs": 3, "num_inducing": 8, "progress": False} | how
    )


@needs_gpytorch
def test_on_the_inputs_themselves_it_is_gaussian_process_regression():
    """One layer is no features at all; with an inducing point per datum and enough steps q is exact
    for the learned kernel and noise.

    0.02 and 0.02 nats are what a thousand steps leave: ten times less after two thousand, while
    values and noise are of order 1 and 0.3.
    """
    x, y = data()
    net = nn.Linear(2, 1).double()
    fitted = BNN(net, Gaussian(initial_std=0.5)).fit(
        (x, y), "dkl", epochs=1000, lr=0.05, faster=1.0, progress=False
    )
    layer, new = fitted.posterior.process.gp, data(20)[0] + 0.5
    std = float(fitted.likelihood.log_std.detach().exp())
    mean, cover, evidence = exact(layer, x, y, std, new)
    found, spread = fitted.posterior.process.joint_at(new)
    torch.testing.assert_close(found[:, 0], mean, rtol=0, atol=0.02)
    torch.testing.assert_close(spread[0], cover, rtol=0, atol=0.02)
    assert evidence - 0.02 < fitted.history[-1]["elbo"] < evidence and 0.2 < std < 0.45
    draws = fitted.functions(new[:5], 4000, seed=1)[..., 0]
    has_mean(draws, found[:5, 0])
    has_covariance(draws, spread[0, :5, :5])


@needs_gpytorch
def test_uncertainty_grows_away_from_the_data_and_ends_at_the_prior():
    x, y = data(60)
    fitted = BNN(nn.Linear(2, 1).double(), Gaussian(std=0.3)).fit(
        (x, y), "dkl", epochs=150, lr=0.03, faster=1.0, progress=False
    )
    line = torch.tensor([[0.0, 0.0], [1.5, 1.5], [2.5, 2.5], [60.0, 60.0]]).double()
    var = fitted.posterior.process.marginals_at(line)[1][:, 0]
    assert bool((var.diff() > 0).all()) and var[0] < 0.1 * var[-1]
    torch.testing.assert_close(
        var[-1:], fitted.posterior.process.gp.covar_module.outputscale, rtol=0, atol=1e-4
    )


@needs_gpytorch
def test_it_learns_classes():
    source = torch.Generator().manual_seed(1)
    x = torch.randn(150, 2, generator=source)
    y = (x.square().sum(1) > 1.2).long() + (x[:, 0] > 1.0).long()
    with isolated(0):
        net = mlp(2, (16,), 3)
    fitted = BNN(net, "categorical").fit(
        (x, y), "dkl", epochs=60, batch_size=50, lr=5e-3, num_inducing=24, progress=False
    )
    found = fitted.evaluate((x, y))
    assert found["accuracy"] > 0.9 and fitted.history[-1]["elbo"] > fitted.history[0]["elbo"]


@needs_gpytorch
@pytest.mark.parametrize("likelihood", ["heteroscedastic", "student_t", "poisson", "bernoulli"])
def test_any_likelihood_will_do(likelihood):
    x, y = data(60)
    y = {"poisson": y.abs().round(), "bernoulli": (y > 0).double()}.get(likelihood, y)
    fitted = quick(
        perceptron(2 if likelihood == "heteroscedastic" else 1),
        likelihood,
        (x, y),
        epochs=40,
        lr=3e-3,
    )
    elbos = [row["elbo"] for row in fitted.history]
    assert elbos[-1] > elbos[0] and bool(torch.isfinite(fitted.predict(x, 10).log_prob(y)).all())


@needs_gpytorch
def test_batches_change_no_prediction():
    x, y = data()
    fitted = quick(perceptron(), "gaussian", (x, y))
    torch.testing.assert_close(
        fitted.predict(x, 9, batch_size=7).outputs, fitted.predict(x, 9).outputs
    )
    assert fitted.predict(x, shortcut="mean").outputs.shape == (1, 30, 1)


@needs_gpytorch
def test_saved_and_loaded_it_predicts_the_same(tmp_path):
    x, y = data()
    fitted = quick(perceptron(), "gaussian", (x, y), run=tmp_path / "run")
    fitted.save(tmp_path / "model")
    for path in ("model", "run"):
        again = credo.load(tmp_path / path, perceptron(seed=5))
        assert torch.equal(again.predict(x, 7).outputs, fitted.predict(x, 7).outputs)
        assert (
            torch.equal(again.functions(x[:4], 3), fitted.functions(x[:4], 3))
            and again.history == fitted.history
        )


@needs_gpytorch
def test_a_killed_run_goes_on_to_the_same_end():
    (result,) = check("dkl", "resume")
    assert result.status == "passed", result.reason


@needs_gpytorch
def test_the_last_layer_and_its_prior_play_no_part():
    x, y = data()
    one, other = perceptron(), perceptron()
    nn.init.constant_(other[-1].weight, 7.0)
    fits = [quick(net, Gaussian(std=0.3), (x, y)) for net in (one, other)]
    assert torch.equal(fits[0].predict(x, 5).outputs, fits[1].predict(x, 5).outputs)
    assert set(fits[0].posterior.names) == {"0.weight", "0.bias"}
    narrow = BNN(perceptron(), Gaussian(std=0.3), prior=torch.distributions.Normal(0.0, 0.01))
    narrow.fit((x, y), "dkl", epochs=3, num_inducing=8, progress=False)
    assert torch.equal(narrow.predict(x, 5).outputs, fits[0].predict(x, 5).outputs)


@needs_gpytorch
def test_the_layers_below_are_learned_and_the_network_is_left_alone():
    x, y = data()
    net = perceptron()
    before = net[0].weight.detach().clone()
    fitted = quick(net, "gaussian", (x, y))
    assert torch.equal(net[0].weight, before) and not torch.equal(
        fitted.posterior.mean()["0.weight"], before
    )
    state = {n: v + 1 for n, v in net.state_dict().items()}
    moved = quick(net, "gaussian", (x, y), init=state, lr=1e-9)
    torch.testing.assert_close(moved.posterior.mean()["0.weight"], before + 1, rtol=0, atol=1e-6)
    fresh = quick(net, "gaussian", (x, y), init="random", lr=1e-9)
    assert (fresh.posterior.mean()["0.weight"] - before).abs().max() > 0.01


@needs_gpytorch
def test_frozen_layers_stay_as_they_are():
    x, y = data()
    net = perceptron()
    net[0].requires_grad_(False)
    fitted = quick(net, "gaussian", (x, y))
    assert fitted.posterior.names == () and fitted.predict(x, 3).outputs.shape == (3, 30, 1)


@needs_gpytorch
def test_single_precision_networks_give_single_precision():
    x, y = data(dtype=torch.float32)
    fitted = quick(mlp(2, (8,), 1), "gaussian", (x, y))
    assert fitted.predict(x, 3).outputs.dtype == fitted.functions(x, 2).dtype == torch.float32


class Head(nn.Module):
    """Another layer owns the last parameters than the one that answers."""

    def __init__(self):
        super().__init__()
        self.answer, self.other = nn.Linear(2, 1), nn.Linear(2, 2)

    def forward(self, x):
        return self.answer(self.other(x))


@needs_gpytorch
def test_what_is_refused():
    x, y = data()
    with pytest.raises(
        NetworkError, match=r"The last layer, 'other' \(Linear\), owns the network's last trainable"
    ):
        quick(Head().double(), "gaussian", (x, y))
    with pytest.raises(
        NetworkError, match=r"The last layer, '0' \(Linear\), is given \(\d+, 2, 1\)"
    ):
        quick(
            nn.Sequential(nn.Linear(1, 1), nn.Flatten()).double(),
            Gaussian(num_outputs=2),
            (x.unsqueeze(2), torch.cat([y, y], 1)),
        )
    with pytest.raises(SettingError, match="num_inducing=0 is not valid"):
        quick(perceptron(), "gaussian", (x, y), num_inducing=0)
    with pytest.raises(SettingError, match="faster=-1.0 is not valid"):
        quick(perceptron(), "gaussian", (x, y), faster=-1.0)
    fitted = quick(perceptron(), "gaussian", (x, y))
    with pytest.raises(CredoError, match="update needs a posterior with a density"):
        fitted.update((x, y))
    with pytest.raises(CredoError, match="no weights to draw"):
        fitted.posterior.sample(2)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        SettingError, match=r"dkl needs the package 'gpytorch': pip install 'credo-bayes\[gp\]'"
    ):
        quick(perceptron(), "gaussian", data())


def test_the_objective_counts_the_processes():
    x = torch.linspace(-2, 2, 30).unsqueeze(1)
    bnn = credo.BNN(credo.nets.mlp(1, (8,), 1), credo.likelihoods.Gaussian(std=0.1))
    bnn.fit((x, torch.sin(2 * x)), "dkl", epochs=20, progress=False)
    parts = bnn.objective((x, torch.sin(2 * x)))
    assert parts["kl"] == pytest.approx(float(bnn.posterior.process.own_kl())) and parts["kl"] > 0
    with pytest.raises(credo.CredoError, match="no importance weights"):
        bnn.log_weights((x, torch.sin(2 * x)))
    with pytest.raises(credo.CredoError, match="The prior of 'sparse_gp' is a Gaussian process"):
        bnn.predict(x, source="prior")


def few(num_data, seed):
    """A table of five columns, standardised, and 500 rows to test on."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(num_data + 500, 5, generator=source)
    y = torch.sin(x @ torch.randn(5, 1, generator=source)) + 0.5 * x[:, :1]
    y = y + 0.3 * torch.randn(len(y), 1, generator=source)
    return (x[:num_data], y[:num_data]), (x[num_data:], y[num_data:])


def above_constant(method, num_data, seed):
    """By how much the test nll at defaults is above that of one normal."""
    train, test = few(num_data, seed)
    with isolated(seed):
        fitted = BNN(mlp(5, (50,), 1), "gaussian").fit(train, method, seed=seed, progress=False)
    constant = torch.distributions.Normal(train[1].mean(), train[1].std(correction=0))
    return fitted.evaluate(test)["nll"] + float(constant.log_prob(test[1]).mean())


@needs_gpytorch
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("num_data", [20, 60, 1000])
def test_defaults_are_no_worse_than_a_constant(num_data, seed):
    assert above_constant("dkl", num_data, seed) < 0.1


@needs_gpytorch
def test_features_of_few_data_stay_and_others_are_held_by_a_prior():
    x, y = data(20)
    net = perceptron()
    fitted = BNN(net, "gaussian").fit((x, y), "dkl", max_seconds=0.2, progress=False)
    assert torch.equal(fitted.posterior.mean()["0.weight"], net[0].weight)
    wide, narrow = (
        quick(perceptron(), "gaussian", (x, y), epochs=200, lr=0.01),
        BNN(perceptron(), "gaussian", prior={"0.*": torch.distributions.Normal(0.0, 1e-2)}),
    )
    narrow.fit((x, y), "dkl", epochs=200, lr=0.01, num_inducing=8, progress=False)
    sizes = [bnn.posterior.mean()["0.weight"].abs().max() for bnn in (wide, narrow)]
    assert sizes[1] < 0.2 < sizes[0] < 3.0
    model = wide.model
    (points,) = (family for family in wide.posterior.factors if family.atoms == 1)
    expected = sum(
        torch.distributions.Normal(0.0, 6**-0.5).log_prob(v).sum() for v in points.mean().values()
    )
    assert float(credo.posteriors.kl(points, as_they_start(model, points))) == pytest.approx(
        -float(expected)
    )
