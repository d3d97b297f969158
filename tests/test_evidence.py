import math

import numpy as np
import pytest
import torch
from torch import nn
from zoo.dropout import METHODS
from zoo.regression import PRIOR_STD, bnn, exact, problem
from zoo.stats import Z

import credo
from credo import BNN
from credo.core.errors import CredoError
from credo.likelihoods import Gaussian
from credo.priors import Flat, Normal


@pytest.fixture(scope="module")
def pair():
    """The full model, and one that sees only the first two features."""
    x, y, design = problem(n=20)
    small = BNN(
        nn.Linear(3, 1).double(),
        Gaussian(std=0.5),
        prior={"weight": Normal(0.0, 0.05), "*": Normal(0.0, PRIOR_STD)},
    )
    return x, y, design, bnn().fit((x, y), "exact"), small.fit((x, y), "exact")


def test_the_bayes_factor_of_exact_models_is_the_closed_form(pair):
    x, y, design, large, small = pair
    result = credo.compare([large, small], (x, y))
    stds = np.array([0.05, 0.05, 0.05, 1.25])
    from scipy.stats import multivariate_normal

    cover = design * stds**2 @ design.T + 0.5**2 * np.eye(len(y))
    other = multivariate_normal(np.zeros(len(y)), cover).logpdf(y[:, 0].numpy())
    mine = exact(design, y[:, 0].numpy())[2]
    assert (
        np.allclose(result.log_evidence, [mine, other], rtol=1e-6)
        and result.bound == (False, False)
        and result.error == (0.0, 0.0)
    )
    assert np.isclose(result.bayes_factor(0, 1), math.exp(mine - other), rtol=1e-4)
    assert np.isclose(sum(result.probability), 1.0) and np.isclose(
        result.probability[0], 1 / (1 + math.exp(other - mine))
    )


def test_prior_odds_count(pair):
    x, y, _, large, _ = pair
    assert np.allclose(
        credo.compare([large, large], (x, y), prior_odds=[3, 1]).probability, [0.75, 0.25]
    )


def test_an_elbo_is_a_bound_with_an_error(pair):
    x, y, _, large, _ = pair
    fitted = bnn().fit(
        (x, y), "vi", epochs=300, lr=0.05, batch_size=100, init_std=0.1, progress=False
    )
    result = credo.compare([large, fitted], (x, y))
    assert result.bound == (False, True) and result.error[1] > 0
    assert result.log_evidence[1] < result.log_evidence[0] + Z * result.error[1]


def test_huge_differences_do_not_overflow(pair):
    x, y, _, large, _ = pair
    bad = bnn(std=0.001).fit((x, y), "exact")
    assert credo.compare([large, bad], (x, y)).probability == (1.0, 0.0)


def test_what_has_no_evidence_is_refused(pair):
    x, y, _, large, _ = pair
    point = bnn().fit((x, y), "map", epochs=1, progress=False)
    with pytest.raises(CredoError, match="Model 1 is a point estimate"):
        credo.compare([large, point], (x, y))
    flat = bnn(prior=Flat()).fit((x, y), "vi", epochs=1, progress=False)
    with pytest.raises(CredoError, match=r"Model 0 has an improper prior"):
        credo.compare([flat, large], (x, y))
    with pytest.raises(CredoError, match="at least two models, got 1"):
        credo.compare([large], (x, y))
    with pytest.raises(CredoError, match="expected 2 positive numbers"):
        credo.compare([large, large], (x, y), prior_odds=[1, 0])


def test_an_updated_model_has_the_evidence_of_all_its_data():
    """Comparing on the union after an update must not report the evidence of the last part
    alone.
    """
    x, y, design = problem(n=20)
    updated = bnn().fit((x[:10], y[:10]), "exact").update((x[10:], y[10:]))
    whole = bnn().fit((x, y), "exact")
    result = credo.compare([updated, whole], (x, y))
    assert torch.isfinite(torch.tensor(result.log_evidence)).all()
    assert np.isclose(result.log_evidence[0], result.log_evidence[1], rtol=1e-6)


def test_a_variational_model_fitted_in_parts_is_refused():
    x, y = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)), torch.arange(20.0)
    net = torch.nn.Linear(2, 1)
    parts = credo.BNN(net, credo.likelihoods.Gaussian(std=1.0)).fit(
        (x[:10], y[:10]), epochs=2, progress=False
    )
    parts.update((x[10:], y[10:]), epochs=2, progress=False)
    with pytest.raises(credo.CredoError, match="fitted in parts"):
        credo.compare([parts, parts], (x, y))


def test_factors_probabilities_and_lengths_carry_their_errors(pair):
    x, y, _, large, small = pair
    fitted = bnn().fit(
        (x, y), "vi", epochs=300, lr=0.05, batch_size=100, init_std=0.1, progress=False
    )
    result = credo.compare([large, fitted, small], (x, y))
    factor = result.factor(1, 0)
    assert (
        factor.log == result.log_evidence[1] - result.log_evidence[0]
        and factor.error == result.error[1] > 0
    )
    assert result.factor(1, 1).error == 0.0 and np.isclose(factor.value, result.bayes_factor(1, 0))
    assert np.allclose(result.bits, [-v / math.log(2) for v in result.log_evidence])
    assert result.best == int(np.argmax(result.log_evidence))


def test_the_error_of_a_probability_is_the_delta_methods():
    """Against a finite difference of the softmax in the one uncertain log evidence."""
    x, y, _ = problem(n=20)
    exact_model = bnn().fit((x, y), "exact")
    fitted = bnn().fit(
        (x, y), "vi", epochs=300, lr=0.05, batch_size=100, init_std=0.1, progress=False
    )
    result = credo.compare([exact_model, fitted], (x, y))
    step = 1e-4
    shifted = 1 / (1 + math.exp(result.log_evidence[1] + step - result.log_evidence[0]))
    slope = abs(shifted - result.probability[0]) / step
    assert np.allclose(result.probability_error, slope * result.error[1], rtol=1e-3)


def test_importance_sampling_tightens_the_bound(pair):
    """Between ELBO and evidence; with the exact posterior every weight is the evidence itself."""
    x, y, _, large, _ = pair
    fitted = bnn().fit(
        (x, y), "vi", epochs=300, lr=0.05, batch_size=100, init_std=0.1, progress=False
    )
    bound = credo.compare([large, fitted], (x, y))
    tighter = credo.compare([large, fitted], (x, y), evidence="importance")
    assert bound.log_evidence[1] < tighter.log_evidence[1] + Z * tighter.error[1]
    assert abs(tighter.log_evidence[1] - large.history[-1]["log_evidence"]) < Z * max(
        tighter.error[1], 1e-6
    )
    assert torch.allclose(
        large.log_weights((x, y), 50).float(),
        torch.tensor(large.history[-1]["log_evidence"]).float(),
    )
    with pytest.raises(CredoError, match="expected 'elbo' or 'importance'"):
        credo.compare([large, fitted], (x, y), evidence="laplace")


def test_few_draws_with_all_the_weight_are_warned_about(pair):
    x, y, _, large, _ = pair
    far = bnn().fit((x, y), "vi", epochs=1, lr=1e-4, batch_size=100, init_std=0.01, progress=False)
    with pytest.warns(UserWarning, match="of 1000 draws carry the importance weight"):
        credo.compare([large, far], (x, y), evidence="importance")


@pytest.mark.parametrize("method", [*METHODS, "stochastic"])
def test_masks_and_noisy_passes_have_no_evidence(pair, method):
    """Their KL leaves out an infinite constant, or their prior is improper."""
    x, y, _, large, _ = pair
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1)).double()
    noisy = BNN(net, Gaussian(std=0.5), prior=Normal(0.0, 1.0)).fit(
        (x, y), method, epochs=1, progress=False
    )
    words = (
        "improper prior"
        if method == "variational_dropout"
        else "Model 1 has points or masks under its prior.*bounds no evidence"
    )
    for kind in ("elbo", "importance"):
        with pytest.raises(CredoError, match=words):
            credo.compare([large, noisy], (x, y), evidence=kind)


def test_points_beside_a_posterior_do_not_stand_in_its_way(pair):
    """Without a prior they leave out no constant."""
    x, y, _, large, _ = pair
    partly = BNN(nn.Linear(3, 1).double(), Gaussian(std=0.5), random="weights").fit(
        (x, y), "vi", epochs=2, progress=False
    )
    assert credo.compare([large, partly], (x, y), samples=10).bound == (False, True)
