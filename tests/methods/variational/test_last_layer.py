"""The last layer as Bayesian linear regression on learned features, against numpy."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Laplace, Normal
from zoo.classification import QUICK, classes, classifier
from zoo.regression import bnn, problem

from credo import BNN, load
from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.data import load as load_set
from credo.likelihoods import Gaussian
from credo.posteriors import Delta, Full

DATA = problem(n=40)
FIT = {"epochs": 60, "lr": 0.02, "batch_size": 16, "progress": False}


def net():
    with isolated(0):
        return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()


@pytest.mark.parametrize("likelihood", [Gaussian(std=0.5), Gaussian()])
@pytest.mark.parametrize("prior", [Normal(0.0, 1.0), Normal(0.25, 2.0)])
def test_regression_on_the_learned_features(likelihood, prior):
    x, y, _ = DATA
    fitted = BNN(net(), likelihood, prior).fit((x, y), "last_layer", **FIT)
    point = fitted.posterior.mean()
    hidden = np.tanh(x.numpy() @ point["0.weight"].numpy().T + point["0.bias"].numpy())
    assert not np.allclose(point["0.weight"], net()[0].weight.detach()), "the features were learned"
    design = np.concatenate([hidden, np.ones((40, 1))], 1)
    std = float(fitted.likelihood.std(torch.zeros(1).double()).detach())
    assert (abs(std - 0.5) < 1e-12) == (len(list(likelihood.parameters())) == 0)
    precision = np.eye(7) / float(prior.scale) ** 2 + design.T @ design / std**2
    mean = np.linalg.solve(
        precision,
        float(prior.loc) / float(prior.scale) ** 2 * np.ones(7)
        + design.T @ y[:, 0].numpy() / std**2,
    )
    family = fitted.posterior.factors[0]
    assert np.allclose(family.flat_mean, mean, rtol=1e-6, atol=1e-9)
    assert np.allclose(family.covariance(), np.linalg.inv(precision), rtol=1e-6, atol=1e-9)


def test_only_the_last_layer_is_random(tmp_path):
    x, y, _ = DATA
    fitted = BNN(net(), Gaussian(std=0.5)).fit((x, y), "last_layer", **FIT)
    assert set(fitted.model.random) == {"2.weight", "2.bias"} and set(fitted.model.point) == {
        "0.weight",
        "0.bias",
    }
    assert [type(m) for m in fitted.posterior.factors] == [Full, Delta]
    fitted.save(tmp_path / "model")
    again = load(tmp_path / "model", net())
    assert set(again.model.random) == {"2.weight", "2.bias"}
    assert torch.equal(fitted.predict(x, 5).outputs, again.predict(x, 5).outputs)
    assert fitted.objective((x, y)) == again.objective((x, y))


def test_chosen_layers():
    x, y, _ = DATA
    fitted = BNN(net(), Gaussian(std=0.5)).fit((x, y), "last_layer", layers="2.weight", **FIT)
    assert set(fitted.model.random) == {"2.weight"}
    first = BNN(net(), Gaussian(std=0.5)).fit(
        (x, y), "last_layer", layers=("0.*", "2.*"), epochs=3, progress=False
    )
    assert len(first.model.random) == 4 and len(first.history) == 3, (
        "not linear in all layers: what the descent found stays"
    )
    with pytest.raises(SettingError, match="pattern 'nope' matches no parameter"):
        BNN(net(), Gaussian(std=0.5)).fit((x, y), "last_layer", layers="nope", epochs=1)


def test_classification_keeps_what_the_descent_found():
    x, y = classes()
    fitted = BNN(classifier(), "categorical").fit((x, y), "last_layer", **QUICK)
    start = classifier()[3].weight
    assert (fitted.posterior.mean()["3.weight"] - start).abs().max() < 0.1, (
        "three epochs move it a little; no closed form jumps"
    )
    assert fitted.predict(x, 4).probs.shape == (4, 60, 3)


@pytest.mark.parametrize("how", [{"posterior": "mean_field"}, {"posterior": "kron"}, {"beta": 0.5}])
def test_there_is_no_closed_form_for_other_families_or_tempered_posteriors(how):
    x, y, _ = DATA
    fitted = BNN(net(), Gaussian(std=0.5)).fit((x, y), "last_layer", **(FIT | {"epochs": 2}), **how)
    exact = BNN(net(), Gaussian(std=0.5)).fit((x, y), "last_layer", **(FIT | {"epochs": 2}))
    assert not torch.allclose(
        fitted.posterior.mean()["2.weight"], exact.posterior.mean()["2.weight"], atol=1e-3
    )


def test_priors_that_are_not_normal_keep_what_the_descent_found():
    x, y, _ = DATA
    fitted = BNN(net(), Gaussian(std=0.5), Laplace(0.0, 1.0)).fit(
        (x, y), "last_layer", epochs=2, progress=False
    )
    assert len(fitted.history) == 2


def test_without_all_data_in_one_pass_the_descent_stays_and_says_so():
    x, y, _ = problem()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10)
    with pytest.warns(
        UserWarning, match="last_layer keeps the posterior of the descent: .*num_data"
    ):
        fitted = bnn().fit(loader, "last_layer", epochs=2, num_data=2 * len(x), progress=False)
    assert torch.isfinite(fitted.predict(x, samples=3).mean).all()


def test_the_covariance_does_not_outgrow_the_layer_on_digits():
    """510 weights with one draw a step: were the factor's entries absolute, their noise would drown
    the layer (10 % accuracy then).
    """
    data = load_set("digits")
    x, y = torch.tensor(data["x"] / 16.0, dtype=torch.float32), torch.tensor(data["y"])
    with isolated(0):
        net = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    fitted = BNN(net).fit(
        (x[:1400], y[:1400]), "last_layer", epochs=40, batch_size=64, progress=False
    )
    accuracy = fitted.evaluate((x[1400:], y[1400:]), samples=50)["accuracy"]
    print(f"accuracy {accuracy:.3f}")
    assert accuracy > 0.8
