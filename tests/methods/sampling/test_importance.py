import math
import warnings
from functools import cache

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo import regression
from zoo.chains import draws_of, noise_error
from zoo.stats import Z, has_mean, has_variance

from credo import BNN
from credo.conformance.problems import conjugate
from credo.core.errors import CredoError, SettingError
from credo.likelihoods import Gaussian
from credo.posteriors import Full, Posterior

DOUBLE = torch.float64
SHAPES = {"weight": (1, 3), "bias": (1,)}


@cache
def problem():
    return conjugate()


def gaussian(shift=0.0, size=1.0):
    """The exact posterior, moved by ``shift`` and stretched by ``size`` standard deviations, as a
    proposal.
    """
    exact = problem()
    mean = exact.mean + shift * exact.covariance.diagonal().sqrt()
    return Posterior(
        [Full(SHAPES, "float64").set(mean, size * torch.linalg.cholesky(exact.covariance))]
    )


def fit(proposal, bnn=None, **how):
    bnn = problem().bnn() if bnn is None else bnn
    how = {"num_proposals": 4000, "progress": False} | how
    return bnn.fit((problem().x, problem().y), "importance", proposal=proposal, **how)


def row(fitted):
    return fitted.history[-1]


def test_the_posterior_itself_as_proposal_has_equal_weights():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = row(fit(gaussian()))
    assert math.isclose(found["log_evidence_estimate"], problem().log_evidence, abs_tol=1e-8)
    assert math.isclose(found["ess"], 4000, rel_tol=1e-6)


@pytest.mark.parametrize(("shift", "size"), [(0.0, 1.3), (0.3, 1.2), (-0.5, 1.5)])
def test_a_wider_proposal_gives_the_evidence_within_its_error(shift, size):
    """The relative variance of the mean weight is 1 / ess - 1 / S: z-test.

    The effective number is the exact one, within a tenth.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # these can be trusted
        found = row(fit(gaussian(shift, size)))
    error = math.sqrt(1 / found["ess"] - 1 / 4000)
    assert abs(found["log_evidence_estimate"] - problem().log_evidence) < Z * error < 0.2
    assert found["pareto_k"] < 0.5
    # E[w^2] of N(0, I) over N(m, s^2 I): per axis s^2 / sqrt(2 s^2 - 1) exp(d^2 / (2 s^2 - 1)), d
    # of the whitened shift
    exact = problem()
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(exact.covariance),
        shift * exact.covariance.diagonal().sqrt().unsqueeze(1),
        upper=False,
    )
    second = (
        size**8 / (2 * size**2 - 1) ** 2 * math.exp(float(white.square().sum()) / (2 * size**2 - 1))
    )
    assert abs(found["ess"] * second / 4000 - 1) < 0.1


def test_resampled_draws_have_the_posteriors_moments():
    """Not the proposal's. Systematic resampling of 4,000 draws with ess above 1,000: a z-test as of
    500 independent ones is lenient.
    """
    found = fit(gaussian(0.5, 1.5), num_draws=500)
    draws = draws_of(found)[0]
    assert draws.shape == (500, 4) and row(found)["ess"] > 1000
    has_mean(draws, problem().mean)
    has_variance(draws, problem().covariance.diagonal())
    with pytest.raises(AssertionError):
        has_variance(draws, 1.5**2 * problem().covariance.diagonal())


@pytest.mark.parametrize(("shift", "size"), [(3.0, 0.5), (0.0, 0.3)])
def test_a_narrow_proposal_is_warned_about(shift, size):
    with pytest.warns(UserWarning, match=r"Pareto k is .*above 0.7.*too far from the posterior"):
        found = row(fit(gaussian(shift, size)))
    assert found["pareto_k"] > 0.7 and found["ess"] < 400


def test_a_named_method_is_fitted_first():
    bnn = problem().bnn()
    found = fit("vi", bnn, epochs=200, lr=0.05, batch_size=100)
    assert [r["epoch"] for r in found.history] == [*range(200), 200]
    assert abs(row(found)["log_evidence_estimate"] - problem().log_evidence) < Z * math.sqrt(
        1 / row(found)["ess"]
    )


def test_several_batches_of_data_are_one_sum():
    a, b = (
        row(fit(gaussian(0.3, 1.2), batch_size=size))["log_evidence_estimate"] for size in (7, 40)
    )
    assert math.isclose(a, b, abs_tol=1e-9)


@pytest.mark.parametrize("method", ["map", "svgd", "importance"])
def test_points_and_sets_of_points_are_refused(method):
    with pytest.raises(
        CredoError,
        match=r"^importance needs a proposal with a density; '(delta|samples)' has none: use 'vi' "
        r"or 'flow'\.$",
    ):
        fit(method, epochs=2, num_proposals=100)


def test_a_fitted_point_is_refused():
    point = problem().bnn().fit((problem().x, problem().y), "map", epochs=2, progress=False)
    with pytest.raises(CredoError, match="needs a proposal with a density"):
        fit(point.posterior)


def test_an_unknown_name_is_refused():
    with pytest.raises(SettingError, match="Unknown method 'vii'. Did you mean 'vi'"):
        fit("vii")


def test_a_posterior_of_another_network_is_refused():
    """In one sentence that names what does not fit, not by an exception from deep inside."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    other = BNN(net, Gaussian(std=0.5)).fit(
        (problem().x, problem().y), "vi", epochs=1, progress=False
    )
    with pytest.raises(CredoError, match="proposal"):
        fit(other.posterior)
    wide = Posterior(
        [
            Full({"weight": (1, 2), "bias": (1,)}, "float64").set(
                torch.zeros(3, dtype=DOUBLE), torch.eye(3, dtype=DOUBLE)
            )
        ]
    )
    with pytest.raises(CredoError, match="proposal"):
        fit(wide)


def test_a_proposal_that_spreads_what_the_model_holds_is_refused():
    """The bias is a point in the model and has a density in the proposal: weights p / q would count
    it on one side only.
    """
    bnn = BNN(problem().bnn().net, Gaussian(std=0.5), prior=Normal(0.0, 1.0), random=["weight"])
    with pytest.raises(CredoError, match="bias"):
        fit(gaussian(), bnn)


def test_a_proposal_that_draws_the_noise_is_refused():
    """Likewise the noise variance, which ``exact`` draws with the weights where it is unknown."""
    bnn = BNN(problem().bnn().net, Gaussian(), prior=Normal(0.0, 1.0))
    with pytest.raises(CredoError, match="noise|likelihood"):
        fit("exact", bnn)


def test_points_beside_a_random_layer_come_from_the_proposal():
    x, y, _ = regression.problem()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    bnn = BNN(net, Gaussian(std=0.5), random="last").fit(
        (x, y), "vi", epochs=150, lr=0.05, posterior="full", progress=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = BNN(net, Gaussian(std=0.5), random="last").fit(
            (x, y), "importance", proposal=bnn.posterior, progress=False
        )
    assert again.posterior.fixed == {"0.weight", "0.bias"}
    assert all(
        torch.equal(again.posterior.mean()[name], bnn.posterior.mean()[name])
        for name in ("0.weight", "0.bias")
    )


def test_learned_noise():
    """That of the variational fit, whose bound is not the evidence but near it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert noise_error("importance", epochs=400, lr=0.02, batch_size=100, num_proposals=500) < 1
