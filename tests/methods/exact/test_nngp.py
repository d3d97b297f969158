"""The method from network to predictions: against linear regression, a dense solve, and its own
evidence.
"""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset
from zoo.regression import PRIOR_STD, exact, problem
from zoo.regression import bnn as linear
from zoo.stats import has_covariance, has_mean

import credo
from credo import BNN
from credo.core.errors import CredoError, DataError, SettingError
from credo.likelihoods import Gaussian
from credo.methods import methods
from credo.nets import mlp
from credo.posteriors.wide_kernel import wide_kernel
from credo.priors import FanIn


def data(num_data=20, outputs=1, std=0.2):
    source = torch.Generator().manual_seed(0)
    x = 2 * torch.randn(num_data, 2, generator=source, dtype=torch.float64)
    f = torch.stack([torch.sin(x[:, 0]) + 0.3 * x[:, 1], torch.cos(x[:, 1])], 1)[:, :outputs]
    return x, f + std * torch.randn(num_data, outputs, generator=source, dtype=torch.float64)


def bnn(likelihood=None, hidden=(4, 4), outputs=1, activation="relu", std=1.2, dtype=torch.float64):
    net = mlp(2, hidden, outputs, activation=activation).to(dtype)
    return BNN(net, Gaussian(std=0.2) if likelihood is None else likelihood, prior=FanIn(std))


def by_hand(x, y, new, activation, std=0.2, scale=1.2, depth=2):
    """Mean, covariance and covariance of the targets, by a dense inverse in numpy."""
    numbers = [scale**2] * (depth + 1), [scale**2] * (depth + 1), [activation] * depth
    cover = wide_kernel(x, x, *numbers).numpy() + std**2 * np.eye(len(x))
    cross, own = wide_kernel(new, x, *numbers).numpy(), wide_kernel(new, new, *numbers).numpy()
    inverse = np.linalg.inv(cover)
    return cross @ inverse @ y.numpy(), own - cross @ inverse @ cross.T, cover


def test_without_a_hidden_layer_it_is_bayesian_linear_regression():
    """The limit of a linear layer is itself: predictions equal those of the conjugate posterior
    over weights, and so does the evidence.
    """
    x, y, design = problem()
    fitted = linear().fit((x, y), "nngp")
    mean, cov, evidence = exact(design, y[:, 0].numpy())
    new = np.random.default_rng(5).normal(size=(6, 3))
    rows = np.concatenate([new, np.ones((6, 1))], 1)
    found, cover = fitted.posterior.process.joint_at(torch.from_numpy(new))
    assert np.allclose(found[:, 0], rows @ mean, rtol=0, atol=1e-8)
    assert np.allclose(cover, rows @ cov @ rows.T, rtol=0, atol=1e-8)
    assert np.isclose(fitted.history[-1]["log_evidence"], evidence, rtol=1e-10)
    theirs = linear().fit((x, y), "exact")
    assert np.isclose(
        fitted.history[-1]["log_evidence"], theirs.history[-1]["log_evidence"], rtol=1e-9
    )
    torch.testing.assert_close(
        fitted.predict(torch.from_numpy(new), shortcut="mean").mean,
        theirs.predict(torch.from_numpy(new), shortcut="mean").mean,
    )


@pytest.mark.parametrize("activation", ["relu", "erf"])
def test_predictions_equal_a_dense_solve(activation):
    x, y = data()
    new = torch.randn(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    fitted = bnn(activation=activation).fit((x, y), "nngp")
    mean, cover, targets = by_hand(x, y, new, activation)
    found, ours = fitted.posterior.process.joint_at(new)
    assert np.allclose(found, mean, rtol=0, atol=1e-8) and np.allclose(
        ours, cover, rtol=0, atol=1e-8
    )
    assert np.allclose(fitted.predict(new, shortcut="mean").mean, mean, rtol=0, atol=1e-8)
    evidence = multivariate_normal(np.zeros(len(x)), targets).logpdf(y[:, 0])
    assert np.isclose(fitted.history[-1]["log_evidence"], evidence, rtol=1e-10)
    draws = fitted.functions(new, 4000, seed=2)[..., 0]
    has_mean(draws, mean[:, 0])
    has_covariance(draws, torch.from_numpy(cover))


def test_the_width_of_the_network_changes_nothing():
    x, y = data()
    narrow, wide = (bnn(hidden=(width, width)).fit((x, y), "nngp") for width in (2, 64))
    torch.testing.assert_close(narrow.predict(x).outputs, wide.predict(x).outputs)


def test_predictions_do_not_depend_on_batches():
    x, y = data()
    fitted = bnn().fit((x, y), "nngp")
    whole, parts = fitted.predict(x, 10).outputs, fitted.predict(x, 10, batch_size=3).outputs
    torch.testing.assert_close(whole, parts)
    loader = DataLoader(TensorDataset(x, y), batch_size=6)
    torch.testing.assert_close(bnn().fit(loader, "nngp").predict(x, 10).outputs, whole)
    torch.testing.assert_close(
        bnn().fit((x, y), "nngp", batch_size=7).predict(x, 10).outputs, whole
    )


def test_saved_and_loaded_it_predicts_the_same(tmp_path):
    x, y = data(outputs=2)
    fitted = bnn(Gaussian(num_outputs=2), outputs=2).fit((x, y), "nngp", run=tmp_path / "run")
    fitted.save(tmp_path / "model")
    for path in ("model", "run"):
        again = credo.load(tmp_path / path, mlp(2, (4, 4), 2).double())
        assert torch.equal(again.predict(x, 7).outputs, fitted.predict(x, 7).outputs)
        assert torch.equal(again.likelihood.log_std, fitted.likelihood.log_std)
        assert again.history == fitted.history


def test_single_precision_networks_give_single_precision():
    x, y = data()
    single = (
        bnn(dtype=torch.float32).fit((x.float(), y.float()), "nngp").predict(x.float(), 5).outputs
    )
    assert single.dtype == torch.float32
    # 1e-4: the data are rounded to 1e-7, and 20 points at noise 0.2 make of that no more than a
    # thousandfold.
    torch.testing.assert_close(
        single.double(), bnn().fit((x, y), "nngp").predict(x, 5).outputs, atol=1e-4, rtol=1e-4
    )


def test_learned_noise_maximises_the_evidence():
    x, y = data(num_data=40)
    learned = bnn(Gaussian()).fit((x, y), "nngp")
    best, std = (
        learned.history[-1]["log_evidence"],
        float(learned.likelihood.log_std.detach().double().exp()),
    )
    assert 0.05 < std < 0.8
    for factor in (0.5, 0.99, 1.01, 2.0):
        assert (
            bnn(Gaussian(std=factor * std)).fit((x, y), "nngp").history[-1]["log_evidence"] < best
        )
    again = bnn(Gaussian(std=std)).fit((x, y), "nngp")
    assert np.isclose(again.history[-1]["log_evidence"], best, rtol=1e-12)
    torch.testing.assert_close(again.predict(x).outputs, learned.predict(x).outputs)


def test_noise_of_each_output_is_learned_for_itself():
    x, y = data(num_data=30, outputs=2)
    both = bnn(Gaussian(num_outputs=2), outputs=2).fit((x, y), "nngp")
    each = [bnn(Gaussian()).fit((x, y[:, d : d + 1]), "nngp") for d in range(2)]
    for d, one in enumerate(each):
        torch.testing.assert_close(both.likelihood.log_std[d], one.likelihood.log_std)
    assert np.isclose(
        both.history[-1]["log_evidence"],
        sum(one.history[-1]["log_evidence"] for one in each),
        rtol=1e-10,
    )


def test_evidences_choose_between_limits():
    """Targets linear in x: the linear network explains them better than the deep one."""
    x, _ = data(num_data=30)
    y = x @ torch.tensor([[1.0], [-0.5]], dtype=torch.float64) + 0.2 * torch.cos(37 * x[:, :1])
    flat = BNN(nn.Linear(2, 1).double(), Gaussian(std=0.2), prior=Normal(0.0, PRIOR_STD)).fit(
        (x, y), "nngp"
    )
    deep = bnn(hidden=(4, 4, 4)).fit((x, y), "nngp")
    found = credo.compare([flat, deep], (x, y))
    assert found.best == 0 and found.bound == (False, False) and found.error == (0.0, 0.0)


def test_validation_is_scored_and_callbacks_see_the_row():
    x, y = data()
    rows = []
    fitted = bnn().fit(
        (x[:15], y[:15]), "nngp", validation=(x[15:], y[15:]), callbacks=[rows.append]
    )
    assert rows == fitted.history and np.isfinite(rows[0]["validation_nll"])


def test_images_are_flattened_as_the_network_does():
    x, y = data()
    net = nn.Sequential(nn.Flatten(), mlp(2, (4, 4), 1)).double()
    square = x.reshape(-1, 1, 2)
    fitted = BNN(net, Gaussian(std=0.2), prior=FanIn(1.2)).fit((square, y), "nngp")
    torch.testing.assert_close(
        fitted.predict(square).outputs, bnn().fit((x, y), "nngp").predict(x).outputs
    )


def test_it_does_not_pass_for_the_posterior_of_the_finite_network():
    assert methods["nngp"].fidelity == "approximate"


def test_what_is_refused():
    x, y = data()
    with pytest.raises(SettingError, match="nngp needs a Gaussian likelihood, got 'categorical'"):
        BNN(mlp(2, (4,), 2).double(), "categorical", prior=FanIn()).fit(
            (x, (y[:, 0] > 0).long()), "nngp"
        )
    with pytest.raises(SettingError, match="nngp needs a Gaussian likelihood, got 'student_t'"):
        bnn("student_t").fit((x, y), "nngp")
    with pytest.raises(SettingError, match=r"use prior=credo.priors.FanIn"):
        BNN(mlp(2, (4,), 1).double(), Gaussian(std=0.2)).fit((x, y), "nngp")
    with pytest.raises(SettingError, match="saw 20 examples in one pass, but num_data is 100"):
        bnn().fit((x, y), "nngp", num_data=100)
    with pytest.raises(CredoError, match="between all 20001 inputs"):
        bnn().fit((torch.zeros(20_001, 2).double(), torch.arange(20_001.0)), "nngp")
    with pytest.raises(
        DataError, match=r"first layer takes 2 numbers, but an example has 6 \(flattened\)"
    ):
        bnn(outputs=1).fit((torch.randn(20, 3, 2).double(), y), "nngp")
    fitted = bnn().fit((x, y), "nngp")
    with pytest.raises(CredoError, match="no weights to draw"):
        fitted.posterior.sample(2)
    with pytest.raises(CredoError, match="update needs a posterior with a density"):
        fitted.update((x, y))
