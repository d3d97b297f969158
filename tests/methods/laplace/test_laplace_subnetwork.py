"""Laplace's approximation over single weights, from data to predictions: exact where it must be,
stored, and refused where it cannot be.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.distributions import Normal
from zoo.curvature import columns, ggn
from zoo.laplace import DESCENT, STILL, classes, classifier, network, width
from zoo.regression import PRIOR_STD, bnn, exact, flat_mean, problem
from zoo.stats import has_mean, has_variance

import credo
from credo import BNN
from credo.core.errors import CredoError, RunError, SettingError
from credo.likelihoods import Gaussian
from credo.posteriors import Delta, Subnetwork

FULL = {"structure": "full"}
TRAINED = {"structure": "full", "epochs": 40, "lr": 0.02, "progress": False}


def everything(net):
    return {n: torch.ones_like(p, dtype=torch.bool) for n, p in net.named_parameters()}


def every_third(net):
    return {
        n: (torch.arange(p.numel()) % 3 == 0).reshape(p.shape) for n, p in net.named_parameters()
    }


def numel(net):
    return sum(p.numel() for p in net.parameters())


def same(ours, other, x, y):
    """Evidence, covariance, predictions, functions and draws; also of the prior."""
    assert ours.history[-1]["log_evidence"] == pytest.approx(
        other.history[-1]["log_evidence"], rel=1e-6
    )
    torch.testing.assert_close(
        ours.posterior.factors[0].covariance(),
        other.posterior.factors[0].covariance(),
        rtol=1e-6,
        atol=1e-9,
    )
    for shortcut in ("linear", "weights", "mean"):
        one, two = (b.predict(x, 20, shortcut=shortcut).outputs for b in (ours, other))
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(ours.functions(x, 3), other.functions(x, 3), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        ours.predict(x, source="prior").outputs, other.predict(x, source="prior").outputs
    )
    assert ours.objective((x, y)) == pytest.approx(other.objective((x, y)), rel=1e-6)


# --- exact where it must be -----------------------------------------------------------------------


@pytest.mark.parametrize("tune", ["none", "evidence", "online", "validation"])
@pytest.mark.parametrize("subset", ["largest_variance", "largest_magnitude", "masks"])
def test_all_weights_are_the_full_structure(subset, tune):
    x, y = classes()
    how = {**TRAINED, "tune": tune, "validation": classes(30, seed=1)}
    chosen = (
        {"subset": everything(network())}
        if subset == "masks"
        else {"subset": subset, "size": numel(network())}
    )
    same(
        classifier().fit((x, y), "laplace", **chosen, **how),
        classifier().fit((x, y), "laplace", **how),
        x,
        y,
    )


@pytest.mark.parametrize("per", ["global", "layer", "tensor"])
def test_masks_of_the_last_layer_are_the_last_layer(per):
    x, y = classes()
    masks = {n: m for n, m in everything(network()).items() if n.startswith("2.")}
    ours = classifier().fit((x, y), "laplace", subset=masks, per=per, **TRAINED)
    other = classifier().fit((x, y), "laplace", subset="last", per=per, **TRAINED)
    same(ours, other, x, y)
    assert list(ours.model.random) == list(other.model.random)
    assert {n: width(ours, n) for n in ours.model.random} == pytest.approx(
        {n: width(other, n) for n in other.model.random}
    )


def test_conjugate_regression_is_exact():
    x, y, design = problem()
    fitted = bnn().fit(
        (x, y), "laplace", subset="largest_variance", size=4, tune="none", **FULL, **DESCENT
    )
    mean, cov, evidence = exact(design, y[:, 0].numpy())
    assert np.allclose(flat_mean(fitted), mean, rtol=1e-5)  # as far as the descent has come
    assert np.allclose(fitted.posterior.factors[0].covariance(), cov, rtol=1e-6, atol=1e-12)
    assert np.isclose(fitted.history[-1]["log_evidence"], evidence, rtol=1e-9)


def test_some_weights_of_a_regression_have_their_exact_posterior_given_the_others():
    """p(w_s given D, w_rest) and p(D given w_rest), with the rest where the joint density is
    largest.
    """
    x, y, design = problem()
    masks = {"weight": torch.tensor([[True, False, True]]), "bias": torch.tensor([False])}
    start = bnn().fit((x, y), "laplace", tune="none", **FULL, **DESCENT).posterior.mean()
    fitted = bnn().fit((x, y), "laplace", subset=masks, init=start, **FULL, **STILL)
    whole, some = flat_mean(fitted).numpy(), [0, 2]
    left = y[:, 0].numpy() - design[:, [1, 3]] @ whole[[1, 3]]
    precision = np.eye(2) / PRIOR_STD**2 + design[:, some].T @ design[:, some] / 0.25
    family = fitted.posterior.factors[0]
    assert isinstance(family, Subnetwork) and np.allclose(
        family.covariance(), np.linalg.inv(precision), rtol=1e-6
    )
    assert np.allclose(
        whole[some], np.linalg.solve(precision, design[:, some].T @ left / 0.25), rtol=1e-5
    )
    cover = PRIOR_STD**2 * design[:, some] @ design[:, some].T + 0.25 * np.eye(len(left))
    evidence = stats.multivariate_normal(np.zeros(len(left)), cover).logpdf(left)
    assert np.isclose(fitted.history[-1]["log_evidence"], evidence, rtol=1e-7)
    # log p(D, w) - log q(w) is the same for every draw: neither counts the weights that stay.
    assert float((fitted.log_weights((x, y), 20) - evidence).abs().max()) < 1e-5
    parts = fitted.objective((x, y), samples=2000)
    assert abs(parts["elbo"] - evidence) < 5 * parts["error"]


@pytest.mark.parametrize("subset", ["largest_variance", "largest_magnitude", "masks"])
def test_any_choice_by_brute_force(subset):
    net, (x, y) = network(), classes()
    chosen = {"subset": every_third(net)} if subset == "masks" else {"subset": subset, "size": 11}
    fitted = BNN(net, "categorical", prior=Normal(0.0, 0.5)).fit(
        (x, y), "laplace", **chosen, **FULL, **STILL
    )
    (family,) = fitted.posterior.factors
    at = columns(family.local(), fitted.model)
    curve = ggn(net, x, fitted.model)[at][:, at]
    torch.testing.assert_close(
        family.covariance(), torch.linalg.inv(curve + 4.0 * torch.eye(len(at)).double())
    )
    assert len(at) == (family.varying if subset == "masks" else 11)


# --- an ordinary posterior ------------------------------------------------------------------------


def test_only_the_chosen_weights_vary():
    x, y = classes()
    masks = every_third(network())
    fitted = classifier().fit((x, y), "laplace", subset=masks, **TRAINED)
    draws, mean = fitted.posterior.sample(5), fitted.posterior.mean()
    for name, mask in masks.items():
        assert torch.equal(draws[name][:, ~mask], mean[name][~mask].expand(5, -1))
        assert bool((draws[name][:, mask] != mean[name][mask]).all())
    assert fitted.posterior.log_prob(draws).shape == (5,)
    prior = fitted.predict(x, 50, source="prior").outputs
    assert prior.shape == (50, 40, 3) and float(prior.std(0).min()) > 0
    p = fitted.predict(x)
    assert float(p.epistemic.min()) >= 0 and float(p.epistemic.max()) > 0
    assert fitted.evaluate((x, y))["accuracy"] > 0.5


def test_parameters_without_chosen_weights():
    """With masks they are points that no prior holds; else they are trained under the prior and
    stay.
    """
    x, y = classes()
    masks = {"0.bias": torch.tensor([True, False, True, False, False])}
    fitted = classifier().fit((x, y), "laplace", subset=masks, **TRAINED)
    assert [type(m) for m in fitted.posterior.factors] == [Subnetwork, Delta] and list(
        fitted.model.random
    ) == ["0.bias"]
    largest = classifier(prior={"2.weight": Normal(0.0, 9.0), "*": Normal(0.0, 0.1)})
    largest.fit((x, y), "laplace", subset="largest_variance", size=3, tune="none", **TRAINED)
    (family,) = largest.posterior.factors
    assert family.fixed == {"0.weight", "0.bias", "2.bias"} and len(largest.model.random) == 4
    functions, points = largest.functions(x[:4], 4000), largest.predict(x[:4]).outputs
    has_mean(functions, points.mean(0))
    has_variance(functions, points.var(0, correction=0))


@pytest.mark.parametrize("predictive", ["linear", "weights", "probit"])
@pytest.mark.parametrize("subset", ["largest_variance", "masks"])
def test_save_and_load_bring_everything_back(subset, predictive, tmp_path):
    x, y = classes()
    chosen = (
        {"subset": every_third(network())} if subset == "masks" else {"subset": subset, "size": 9}
    )
    fitted = classifier().fit(
        (x, y), "laplace", per="layer", predictive=predictive, **chosen, **TRAINED
    )
    fitted.save(tmp_path / "model")
    again = credo.load(tmp_path / "model", network())
    for name in ("predict", "functions"):
        one, two = (
            b.predict(x).outputs if name == "predict" else b.functions(x[:3], 4)
            for b in (again, fitted)
        )
        assert torch.equal(one, two)
    assert torch.equal(
        again.predict(x, source="prior").outputs, fitted.predict(x, source="prior").outputs
    )
    assert {n: width(again, n) for n in again.model.random} == {
        n: width(fitted, n) for n in fitted.model.random
    }
    assert (
        again.history == fitted.history
        and again.posterior.factors[0].chosen == fitted.posterior.factors[0].chosen
    )


def test_a_run_is_of_its_masks(tmp_path):
    x, y = classes()
    masks = every_third(network())
    first = classifier().fit((x, y), "laplace", subset=masks, run=tmp_path / "run", **FULL, **STILL)
    again = classifier().fit((x, y), "laplace", subset=masks, run=tmp_path / "run", **FULL, **STILL)
    assert torch.equal(first.predict(x).outputs, again.predict(x).outputs)
    with pytest.raises(RunError, match=r"holds another run \(fit.held"):
        classifier().fit(
            (x, y), "laplace", subset=everything(network()), run=tmp_path / "run", **FULL, **STILL
        )


# --- prior and noise ------------------------------------------------------------------------------


@pytest.mark.parametrize("per", ["global", "layer", "tensor"])
def test_the_evidence_of_the_chosen_weights_is_largest_at_the_tuned_width(per):
    x, y = classes()
    masks = {n: m for n, m in every_third(network()).items() if n != "0.bias"}
    net = classifier().fit((x, y), "map", epochs=100, lr=0.05, progress=False).posterior.mean()
    tuned = classifier().fit(
        (x, y), "laplace", subset=masks, init=net, per=per, train=False, progress=False, **FULL
    )
    best = tuned.history[-1]["log_evidence"]
    widths = {n: width(tuned, n) for n in tuned.model.random}
    for factor in (0.8, 1.25):
        for name in widths:
            moved = widths | (
                {n: w * factor for n, w in widths.items()}
                if per == "global"
                else {name: widths[name] * factor}
            )
            if per == "layer":
                moved |= {
                    n: w * factor
                    for n, w in widths.items()
                    if n.split(".")[0] == name.split(".")[0]
                }
            prior = {n: Normal(torch.tensor(0.0).double(), w) for n, w in moved.items()}
            other = classifier(prior=prior | {"*": Normal(0.0, 1.0)})
            other.fit((x, y), "laplace", subset=masks, init=net, **FULL, **STILL)
            assert other.history[-1]["log_evidence"] < best


def test_noise_is_set_for_the_weights_that_were_chosen_first():
    """Widths that differ by layer would choose other weights the second time; the evidence that is
    told is that of the posterior.
    """
    x, y, _ = problem(n=60)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    how = {"subset": "largest_variance", "size": 8, "per": "tensor", **TRAINED, "epochs": 200}
    fitted = BNN(net, Gaussian()).fit((x, y), "laplace", **how)
    (family,) = fitted.posterior.factors
    places = {n: torch.zeros(s.numel, dtype=torch.bool) for n, s in fitted.model.random.items()}
    for name, at in family.local().items():
        places[name][at] = True
    masks = {n: m.reshape(fitted.model.random[n].shape) for n, m in places.items()}
    prior = {n: Normal(torch.tensor(0.0).double(), width(fitted, n)) for n in fitted.model.random}
    std = float(fitted.model.likelihood.std(y).detach())
    other = BNN(net, Gaussian(std=std), prior=prior).fit(
        (x, y), "laplace", subset=masks, init=fitted.posterior.mean(), **FULL, **STILL
    )
    assert other.history[-1]["log_evidence"] == pytest.approx(
        fitted.history[-1]["log_evidence"], rel=1e-6
    )


def test_an_earlier_posterior_of_independent_weights_is_the_prior():
    x, y = classes()
    fitted = classifier().fit(
        (x[:20], y[:20]), "laplace", structure="diagonal", tune="none", epochs=20, progress=False
    )
    before = fitted.posterior.factors[0].marginals()[1]
    fitted.update((x[20:], y[20:]), subset=every_third(network()), train=False, **FULL)
    (family,) = fitted.posterior.factors
    at = columns(family.local(), fitted.model)
    net = network()
    net.load_state_dict(fitted.posterior.mean())
    curve = ggn(net, x[20:], fitted.model)[at][:, at]
    diagonal = torch.cat([before[n].reshape(-1) for n in fitted.model.random])[at]
    torch.testing.assert_close(
        family.covariance(), torch.linalg.inv(curve + torch.diag(1 / diagonal))
    )


# --- what is refused ------------------------------------------------------------------------------


def test_more_data_cannot_be_added():
    x, y = classes()
    fitted = classifier().fit((x, y), "laplace", subset="largest_variance", size=4, **FULL, **STILL)
    with pytest.raises(
        SettingError,
        match="single weights to an earlier posterior of the family 'subnetwork'; fit all data at "
        "once",
    ):
        fitted.update((x, y), progress=False)
    with pytest.raises(
        SettingError,
        match="structure='full' cannot add data to an earlier posterior of the family 'subnetwork'",
    ):
        fitted.update((x, y), subset="all", size=None, progress=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "laplace: size=0 is not valid; expected a whole number >= 1"),
        ({"size": 2.5}, "laplace: size=2.5 is not valid; expected a whole number"),
        ({"size": 39}, "size=39 is more than the 38 random weights there are"),
        ({"size": None}, "subset='largest_variance' needs size="),
        ({"structure": "kfac", "size": 3}, "structure='kfac' is not for single weights"),
        ({"subset": "last", "size": 3}, "size=3 is how many single weights"),
        (
            {"subset": {"0.weight": torch.ones(2, dtype=torch.bool)}},
            r"mask of '0.weight' has shape \(2,\); expected .* \(5, 3\)",
        ),
        (
            {"subset": {"9.weight": torch.ones(2, dtype=torch.bool)}},
            "a mask is given for '9.weight', which is no trainable parameter",
        ),
        (
            {"subset": {"2.bias": torch.zeros(3, dtype=torch.bool)}},
            "the masks of 2.bias choose no weight",
        ),
        ({"subset": 3}, "laplace: subset=3 is not valid"),
        (
            {"subset": "lost.*"},
            r"subset: the pattern 'lost\.\*' matches no parameter. Known: 0.bias, 0.weight, "
            r"2.bias, 2.weight",
        ),
    ],
)
def test_wrong_settings_say_what_to_do(settings, message):
    x, y = classes()
    seen = []
    how = {"subset": "largest_variance", **FULL, **settings}
    with pytest.raises(CredoError, match=message):
        classifier().fit(
            (x, y), "laplace", epochs=1, progress=False, callbacks=[seen.append], **how
        )
    assert not seen  # before any training


def test_moments_say_that_there_is_no_rule():
    x, y = classes()
    fitted = classifier().fit((x, y), "laplace", subset="largest_variance", size=4, **FULL, **STILL)
    with pytest.raises(CredoError, match="this one is 'subnetwork': draw samples instead"):
        fitted.predict(x, shortcut="moments")
