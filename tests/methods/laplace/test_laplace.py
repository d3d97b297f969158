"""Laplace's approximation from data to predictions: exact where it must be, for every structure,
subset and way to predict.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset
from zoo.curvature import ggn
from zoo.laplace import DESCENT, FORMS, STILL, classes, classifier, network
from zoo.regression import bnn, exact, flat_mean, problem

from credo import BNN
from credo.core.errors import CredoError, SettingError
from credo.likelihoods import (
    Bernoulli,
    Categorical,
    FullGaussian,
    Gaussian,
    Heteroscedastic,
    Poisson,
)
from credo.likelihoods import StudentT as StudentTNoise
from credo.posteriors import EigenKron, Full, LowRankPrecision, MeanField


def flat(params, names):
    return torch.cat([params[n].reshape(-1) for n in names]).detach()


# --- exact where it must be -----------------------------------------------------------------------


def test_conjugate_regression_is_exact():
    x, y, design = problem()
    fitted = bnn().fit((x, y), "laplace", structure="full", tune="none", **DESCENT)
    mean, cov, evidence = exact(design, y[:, 0].numpy())
    assert np.allclose(flat_mean(fitted), mean, rtol=1e-5)  # as far as the descent has come
    assert np.allclose(fitted.posterior.factors[0].covariance(), cov, rtol=1e-6, atol=1e-12)
    assert np.isclose(fitted.history[-1]["log_evidence"], evidence, rtol=1e-9)
    theirs = bnn().fit((x, y), "exact")
    assert np.isclose(
        fitted.history[-1]["log_evidence"], theirs.history[-1]["log_evidence"], rtol=1e-9
    )
    torch.testing.assert_close(
        fitted.predict(x).std, theirs.predict(x, shortcut="linear").std, rtol=1e-6, atol=0
    )


def test_independent_weights_have_the_inverse_of_the_diagonal():
    x, y, design = problem()
    fitted = bnn().fit((x, y), "laplace", structure="diagonal", tune="none", **DESCENT)
    precision = np.linalg.inv(exact(design, y[:, 0].numpy())[1])
    _, var = fitted.posterior.factors[0].marginals()
    assert np.allclose(flat(var, ("weight", "bias")), 1 / np.diag(precision), rtol=1e-6)


def test_importance_weights_of_an_exact_posterior_are_all_the_evidence():
    """log p(D, w) - log q(w) is the same for every w: the draws behind it must be those of the
    weights, not points of predictions.
    """
    x, y, _ = problem()
    fitted = bnn().fit((x, y), "laplace", structure="full", tune="none", **DESCENT)
    weights = fitted.log_weights((x, y), 20)
    assert float((weights - fitted.history[-1]["log_evidence"]).abs().max()) < 1e-5
    parts = fitted.objective((x, y), samples=2000)
    assert abs(parts["elbo"] - fitted.history[-1]["log_evidence"]) < 5 * parts["error"]


LIKELIHOODS = {
    "heteroscedastic": (Heteroscedastic, 2, lambda x: x[:, :1].sin()),
    "student_t": (lambda: StudentTNoise(4.0, 0.3), 1, lambda x: x[:, :1].sin()),
    "poisson": (Poisson, 1, lambda x: x[:, 0].exp().round().long()),
    "full_gaussian": (lambda: FullGaussian([[0.5, 0.2], [0.2, 0.3]]), 2, lambda x: x[:, :2]),
    "bernoulli": (Bernoulli, 3, lambda x: (x > 0).long()),
    "categorical": (Categorical, 3, lambda x: (x[:, 0] > 0).long() + (x[:, 1] > 1).long()),
    "gaussian": (lambda: Gaussian([0.2, 0.7]), 2, lambda x: x[:, :2]),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood_by_brute_force(name):
    make, outputs, target = LIKELIHOODS[name]
    net, (x, _) = network(outputs), classes(20)
    fitted = BNN(net, make(), prior=Normal(0.0, 0.5)).fit(
        (x, target(x)), "laplace", structure="full", **STILL
    )
    precision = (
        ggn(net, x, fitted.model)
        + 4.0 * torch.eye(sum(p.numel() for p in net.parameters())).double()
    )
    torch.testing.assert_close(
        fitted.posterior.factors[0].covariance(), torch.linalg.inv(precision), rtol=1e-6, atol=1e-9
    )
    assert all(np.isfinite(v) for v in fitted.evaluate((x, target(x))).values())


# --- structures, subsets, networks that are trained already ---------------------------------------


@pytest.mark.parametrize("structure", FORMS)
@pytest.mark.parametrize("subset", ["all", "last", ("0.*",)])
def test_structures_and_subsets(structure, subset):
    x, y = classes()
    fitted = classifier().fit(
        (x, y), "laplace", structure=structure, subset=subset, epochs=30, lr=0.02, progress=False
    )
    kinds = {"diagonal": MeanField, "kfac": EigenKron, "low_rank": LowRankPrecision, "full": Full}
    spread = [m for m in fitted.posterior.factors if m.atoms is None]
    assert {type(m) for m in spread} == {kinds[structure]}
    random = {"all": {"0.weight", "0.bias", "2.weight", "2.bias"}, "last": {"2.weight", "2.bias"}}
    assert {n for m in spread for n in m.names} == random.get(
        subset if isinstance(subset, str) else "", {"0.weight", "0.bias"}
    )
    assert fitted.evaluate((x, y))["accuracy"] > 0.5
    p = fitted.predict(x)
    assert p.num_samples == 100 and float(p.epistemic.min()) >= 0 and float(p.epistemic.max()) > 0


@pytest.mark.parametrize("structure", FORMS)
def test_a_trained_network_stays_as_it_is(structure):
    x, y = classes()
    net = network()
    before = copy.deepcopy(net.state_dict())
    fitted = BNN(net, "categorical").fit(
        (x, y), "laplace", structure=structure, train=False, progress=False
    )
    assert all(torch.equal(v, before[n]) for n, v in fitted.posterior.mean().items())
    assert all(torch.equal(v, before[n]) for n, v in net.state_dict().items())
    torch.testing.assert_close(fitted.predict(x, shortcut="mean").outputs[0], net(x).detach())
    torch.testing.assert_close(
        fitted.predict(x).outputs.mean(0), net(x).detach()
    )  # the linearised network is centred there
    assert [row["epoch"] for row in fitted.history] == [0]


def test_a_trained_network_may_come_as_a_state():
    x, y = classes()
    trained = {n: v + 0.1 for n, v in network().state_dict().items()}
    fitted = classifier().fit((x, y), "laplace", init=trained, **STILL)
    assert all(torch.equal(v, trained[n]) for n, v in fitted.posterior.mean().items())


def test_learned_noise_of_a_trained_network_is_its_residuals():
    x, y, _ = problem(n=60)
    model = bnn(likelihood=Gaussian())
    fitted = model.fit((x, y), "laplace", structure="full", **STILL)
    rms = float((fitted.net(x).detach() - y).square().mean().sqrt())
    assert float(fitted.model.likelihood.std(y).detach()) == pytest.approx(rms, rel=1e-4)
    tuned = bnn(likelihood=Gaussian()).fit(
        (x, y), "laplace", structure="full", train=False, progress=False
    )
    assert float(tuned.model.likelihood.std(y).detach()) != pytest.approx(
        rms, rel=1e-4
    )  # the evidence counts what was fitted


def test_a_parameter_that_reaches_nothing_keeps_its_prior():
    class Extra(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.extra = network(), nn.Linear(3, 2).double()

        def forward(self, x):
            return self.net(x)

    x, y = classes()
    for structure in FORMS:
        fitted = BNN(Extra(), "categorical", prior=Normal(0.0, 0.5)).fit(
            (x, y), "laplace", structure=structure, **STILL
        )
        for family in fitted.posterior.factors:
            for name, var in family.marginals()[1].items():
                if name.startswith("extra"):
                    torch.testing.assert_close(var, torch.full_like(var, 0.25))


def test_loaders_and_arrays_give_the_same():
    x, y = classes()
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    one, other = (classifier().fit(data, "laplace", **STILL) for data in ((x, y), loader))
    torch.testing.assert_close(one.predict(x).mean, other.predict(x).mean)


# --- predictions ----------------------------------------------------------------------------------


def test_predictions_are_linearised_unless_asked_otherwise():
    x, y = classes()
    fitted = classifier().fit((x, y), "laplace", **STILL)
    assert torch.equal(fitted.predict(x).outputs, fitted.predict(x, shortcut="linear").outputs)
    drawn = fitted.predict(x, samples=5, seed=2, shortcut="weights").outputs
    weights = fitted.posterior.sample(5, seed=2)
    for place in range(5):
        expected = torch.func.functional_call(
            fitted.net, {n: w[place] for n, w in weights.items()}, x
        )
        torch.testing.assert_close(drawn[place], expected)
    assert torch.equal(
        classifier().fit((x, y), "laplace", predictive="weights", **STILL).predict(x, 5, 2).outputs,
        drawn,
    )
    probit = classifier().fit((x, y), "laplace", predictive="probit", **STILL)
    assert torch.equal(probit.predict(x).outputs, fitted.predict(x, shortcut="probit").outputs)
    assert probit.predict(x).num_samples == 1


@pytest.mark.parametrize("shortcut", ["linear", "probit", "weights", "mean"])
def test_batches_do_not_change_predictions(shortcut):
    x, y = classes()
    fitted = classifier().fit((x, y), "laplace", **STILL)
    whole = fitted.predict(x, 20, shortcut=shortcut).outputs
    torch.testing.assert_close(
        fitted.predict(x, 20, shortcut=shortcut, batch_size=7).outputs, whole
    )
    assert fitted.evaluate((x, y), batch_size=7) == pytest.approx(fitted.evaluate((x, y)))


def test_functions_follow_the_predictions():
    """Draws of functions have the predictions' mean and spread; of weights they are another
    network's.
    """
    x, y = classes()
    fitted = classifier().fit((x, y), "laplace", structure="full", **STILL)
    functions, points = fitted.functions(x[:4], 2000), fitted.predict(x[:4], 2000).outputs
    error = 5 / 2000**0.5
    assert float(((functions.mean(0) - points.mean(0)) / points.std(0)).abs().max()) < error
    assert (
        float((functions.std(0) / points.std(0) - 1).abs().max()) < error
    )  # sd / sqrt(2 n) is smaller still
    weights = classifier().fit((x, y), "laplace", structure="full", predictive="weights", **STILL)
    expected = weights.predict(x[:4], 3, shortcut="weights").outputs
    assert torch.equal(weights.functions(x[:4], 3), expected)
    assert fitted.functions(x[:4], 3, source="prior").shape == (3, 4, 3)


@pytest.mark.parametrize("family", ["mean_field", "low_rank", "kron", "full"])
def test_other_gaussian_posteriors_are_linearised_too(family):
    x, y = classes()
    fitted = classifier().fit((x, y), "vi", posterior=family, epochs=2, progress=False)
    linear = fitted.predict(x, 200, shortcut="linear")
    torch.testing.assert_close(
        linear.outputs.mean(0), fitted.predict(x, shortcut="mean").outputs[0]
    )
    assert float(linear.epistemic.min()) > 0


@pytest.mark.parametrize(
    ("method", "settings", "named"),
    [
        ("deep_ensemble", {"num_members": 2}, "samples"),
        ("map", {}, "a point estimate"),
        ("mc_dropout", {"p": 0.1}, "dropout"),
        ("bnn_ensemble", {"num_members": 2}, "mixture"),
    ],
)
def test_posteriors_without_a_covariance_say_what_to_do(method, settings, named):
    x, y = classes()
    fitted = classifier().fit((x, y), method, epochs=1, progress=False, **settings)
    for shortcut in ("linear", "probit"):
        with pytest.raises(
            CredoError,
            match=f"needs a Gaussian posterior, and this is {named}; predict without shortcut",
        ):
            fitted.predict(x, shortcut=shortcut)


def test_predictions_that_cannot_be():
    x, y, _ = problem()
    fitted = bnn().fit((x, y), "laplace", **STILL)
    with pytest.raises(
        CredoError,
        match="gaussian likelihood has no probit approximation, which is for labels; use 'linear'",
    ):
        fitted.predict(x, shortcut="probit")
    with pytest.raises(SettingError, match="samples=1: a linearised prediction is shown by points"):
        fitted.predict(x, samples=1)
    with pytest.raises(
        SettingError,
        match="shortcut='linear' is about the posterior; with source='prior' leave it out",
    ):
        fitted.predict(x, shortcut="linear", source="prior")
    with pytest.raises(SettingError, match="source='somewhere'; expected 'posterior' or 'prior'"):
        fitted.predict(x, source="somewhere")
    assert fitted.predict(x, samples=1, shortcut="weights").num_samples == 1
    assert fitted.predict(x, source="prior").num_samples == 100
