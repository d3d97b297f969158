"""Deep Gaussian processes from inputs to predictions."""

import importlib.util
import math

import pytest
import torch
from torch import nn

import credo
from credo import BNN
from credo.conformance import check
from credo.core.errors import CredoError, DataError, SettingError
from credo.core.seeds import isolated
from credo.engine.fit_job import Problem
from credo.likelihoods import Gaussian
from credo.nets import lstm_classifier, mlp

needs_gpytorch = pytest.mark.skipif(
    importlib.util.find_spec("gpytorch") is None, reason="the gp extra is not installed"
)


def data(num_data=30):
    source = torch.Generator().manual_seed(0)
    x = torch.randn(num_data, 2, generator=source, dtype=torch.float64)
    return x, torch.sin(2 * x[:, :1]) + 0.3 * torch.randn(
        num_data, 1, generator=source, dtype=torch.float64
    )


def net(outputs=1, seed=0):
    with isolated(seed):
        return nn.Linear(2, outputs).double()


def quick(likelihood="gaussian", pair=None, network=None, **how):
    settings = {"epochs": 3, "num_inducing": 8, "widths": (2,), "progress": False} | how
    return BNN(net() if network is None else network, likelihood).fit(
        data() if pair is None else pair, "deep_gp", **settings
    )


@needs_gpytorch
def test_without_hidden_layers_it_is_a_sparse_process_on_the_inputs():
    pair = data()
    deep = quick(Gaussian(), pair, epochs=30, widths=())
    flat = BNN(net(), Gaussian()).fit(
        pair, "dkl", epochs=30, num_inducing=8, lr=1e-2, faster=1.0, progress=False
    )
    torch.testing.assert_close(deep.predict(pair[0], 5).outputs, flat.predict(pair[0], 5).outputs)
    torch.testing.assert_close(deep.functions(pair[0], 5), flat.functions(pair[0], 5))
    assert deep.history[-1]["elbo"] == pytest.approx(flat.history[-1]["elbo"])


@needs_gpytorch
def test_two_layers_learn_a_step_better_than_one():
    """One RBF kernel has one length for flat and steep; a hidden layer stretches the inputs.

    0.3 nats: a third of what they are apart.
    """
    source = torch.Generator().manual_seed(0)
    x, new = (torch.linspace(-1, 1, n, dtype=torch.float64).unsqueeze(1) for n in (60, 201))
    y, there = (
        torch.sign(each) + 0.05 * torch.randn(each.shape, generator=source, dtype=torch.float64)
        for each in (x, new)
    )
    scores = []
    for widths in ((), (1,)):
        fitted = BNN(nn.Linear(1, 1).double(), Gaussian(initial_std=0.3))
        fitted.fit(
            (x, y), "deep_gp", epochs=700, lr=0.03, widths=widths, num_inducing=12, progress=False
        )
        scores.append(fitted.evaluate((new, there))["nll"])
    assert scores[1] < scores[0] - 0.3


@needs_gpytorch
def test_it_learns_classes():
    source = torch.Generator().manual_seed(1)
    x = torch.randn(120, 2, generator=source, dtype=torch.float64)
    y = (x.square().sum(1) > 1.2).long()
    fitted = quick(
        "categorical",
        (x, y),
        net(2),
        epochs=60,
        batch_size=40,
        lr=0.02,
        num_inducing=16,
        train_samples=2,
    )
    assert fitted.evaluate((x, y))["accuracy"] > 0.9


@needs_gpytorch
def test_batches_change_no_prediction():
    x, _ = data()
    fitted = quick(widths=(3, 2))
    torch.testing.assert_close(
        fitted.predict(x, 9, batch_size=7).outputs, fitted.predict(x, 9).outputs
    )
    torch.testing.assert_close(
        fitted.predict(x, shortcut="mean", batch_size=7).outputs,
        fitted.predict(x, shortcut="mean").outputs,
    )


@needs_gpytorch
def test_saved_and_loaded_it_predicts_the_same(tmp_path):
    x, _ = data()
    fitted = quick(widths=(3, 2), run=tmp_path / "run")
    fitted.save(tmp_path / "model")
    for path in ("model", "run"):
        again = credo.load(tmp_path / path, net(seed=3))
        assert (
            torch.equal(again.predict(x, 7).outputs, fitted.predict(x, 7).outputs)
            and again.history == fitted.history
        )
        assert again.method is not None and tuple(again.method.widths) == (3, 2)


@needs_gpytorch
def test_a_killed_run_goes_on_to_the_same_end():
    (result,) = check("deep_gp", "resume")
    assert result.status == "passed", result.reason


@needs_gpytorch
def test_the_network_only_counts_outputs():
    x, y = data()
    with isolated(1):
        other = mlp(2, (7, 7), 1).double()
    fits = [quick(network=network) for network in (net(), other)]
    assert torch.equal(fits[0].predict(x, 5).outputs, fits[1].predict(x, 5).outputs)
    assert fits[1].posterior.names == ()
    square = BNN(nn.Sequential(nn.Flatten(), net()), "gaussian")
    square.fit(
        (x.reshape(-1, 1, 2), y), "deep_gp", epochs=3, num_inducing=8, widths=(2,), progress=False
    )
    assert torch.equal(
        square.predict(x.reshape(-1, 1, 2), 5).outputs, fits[0].predict(x, 5).outputs
    )


@needs_gpytorch
def test_uncertainty_grows_away_from_the_data():
    fitted = quick(Gaussian(std=0.3), epochs=200, lr=0.02)
    near, far = fitted.predict(torch.tensor([[0.0, 0.0], [20.0, -20.0]]).double(), 500).epistemic[
        :, 0
    ]
    assert far > 3 * near


@needs_gpytorch
def test_what_is_refused():
    assert (
        quick(widths=[2.0]).posterior.config() == quick(widths=(2,)).posterior.config()
    )  # as a command line gives it
    for widths in ((0,), (2.5,), (True,), (5, -1), ("a",), (math.nan,), (math.inf,)):
        with pytest.raises(
            SettingError, match="deep_gp: widths=.* is not valid; expected whole numbers from 1"
        ):
            quick(widths=widths)
    with pytest.raises(SettingError, match="widths='5' is not valid"):
        quick(widths="5")
    with pytest.raises(SettingError, match="train_samples=0 is not valid"):
        quick(train_samples=0)
    words = torch.randint(0, 11, (24, 6), generator=torch.Generator().manual_seed(0))
    with pytest.raises(
        DataError, match="these are torch.int64: give real numbers, not codes or tokens"
    ):
        quick(
            "categorical",
            (words, torch.arange(24) % 3),
            lstm_classifier(vocab=11, hidden=6, outputs=3, width=4),
        )
    with pytest.raises(CredoError, match="update needs a posterior with a density"):
        quick().update(data())


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        SettingError, match=r"deep_gp needs the package 'gpytorch': pip install 'credo-bayes\[gp\]'"
    ):
        quick()


@pytest.mark.parametrize("name", ["deep_gp", "dkl"])
def test_the_work_of_large_data_is_bounded(name):
    method, problem = credo.methods.make_method(name, {}), Problem(20_000, 301)
    assert method.usual_steps(problem, 128) == 5000 < problem.num_steps(128)
