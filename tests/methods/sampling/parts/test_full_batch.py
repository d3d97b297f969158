import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn
from torch.distributions import Normal
from zoo import regression
from zoo.chains import score
from zoo.stats import Z

from credo import BNN
from credo.core.errors import SettingError
from credo.likelihoods import Gaussian
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.fitted_alongside import SHARE_OF_WARMUP
from credo.methods.sampling.parts.full_batch import FullBatch, Tempered

DOUBLE = torch.float64


def chains(fitted):
    family = fitted.posterior.factors[0]
    return family.flat.reshape(family.chains, -1, family.flat.shape[1])


def fit(method, likelihood=None, **how):
    x, y, design = regression.problem()
    fitted = regression.bnn(likelihood=likelihood).fit((x, y), method, progress=False, **how)
    return fitted, design, y[:, 0].numpy()


# --- the right posterior --------------------------------------------------------------------------


@pytest.mark.parametrize("mass", ["diagonal", "dense"])
@pytest.mark.parametrize("method", ["hmc", "nuts"])
def test_conjugate_regression_has_its_exact_moments(method, mass):
    """MCSE z-tests of every mean and variance, and of the sum of all weights, whose variance needs
    the covariances.
    """
    most = {"max_steps": 40} if method == "hmc" else {"max_depth": 5}
    fitted, design, y = fit(method, mass=mass, num_chains=16, num_warmup=150, num_draws=100, **most)
    mean, cov, _ = (torch.as_tensor(part) for part in regression.exact(design, y))
    draws = torch.cat([chains(fitted), chains(fitted).sum(-1, keepdim=True)], -1)
    mean, variance = (
        torch.cat([mean, mean.sum().reshape(1)]),
        torch.cat([cov.diagonal(), cov.sum().reshape(1)]),
    )
    assert score(draws, mean, variance) < Z < score(draws, mean, 1.5 * variance)
    late = [row for row in fitted.history if not row["warmup"]]
    assert abs(sum(row["acceptance"] for row in late) / len(late) - 0.8) < 0.15
    assert len({row["step_size"] for row in late}) == 1 and not any(
        any(row["divergent"]) for row in late
    )
    if method == "hmc":
        assert len({row["steps"] for row in late}) == 1  # nothing adapts while it counts


@pytest.mark.parametrize("num_warmup", [10, 20, 25, 30, 50])
def test_a_short_warm_up_leaves_steps_that_are_accepted(num_warmup):
    """The last metric needs a step size of its own, however few moves are left to find it: a third
    of the moves must be accepted at least.
    """
    for seed in range(3):
        fitted, *_ = fit(
            "hmc", num_steps=3, num_chains=4, num_warmup=num_warmup, num_draws=10, seed=seed
        )
        late = [row["acceptance"] for row in fitted.history if not row["warmup"]]
        assert sum(late) / len(late) > 1 / 3, f"seed {seed}"


def test_far_starts_do_not_make_long_trajectories():
    """A trajectory beyond the stable step never turns back; that it takes long to leave the numbers
    says nothing about its length. In a problem whose quarter period takes some twenty steps, a
    hundred are far too many.
    """
    x, y, _ = regression.problem()
    fitted = regression.bnn().fit(
        (x, y), "hmc", num_chains=3, num_warmup=6, num_draws=1, progress=False
    )
    assert max(row["steps"] for row in fitted.history) <= 100


def test_sums_over_parts_of_the_data_give_the_same_draws():
    whole, *_ = fit("hmc", num_steps=3, num_chains=2, num_warmup=5, num_draws=5)
    parts, *_ = fit("hmc", num_steps=3, num_chains=2, num_warmup=5, num_draws=5, batch_size=7)
    assert torch.allclose(chains(whole), chains(parts), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["hmc", "nuts"])
def test_compiled_trajectories_give_the_same_draws_while_noise_is_learned(method):
    how = {"num_chains": 2, "num_warmup": 10, "num_draws": 3} | (
        {"num_steps": 3} if method == "hmc" else {"max_depth": 3}
    )
    plain, *_ = fit(method, Gaussian(), **how)
    compiled, *_ = fit(method, Gaussian(), compile=True, **how)
    assert torch.allclose(chains(plain), chains(compiled), atol=1e-6)


def test_lengths_are_as_asked_for():
    fixed, *_ = fit("hmc", num_steps=7, num_chains=2, num_warmup=3, num_draws=2)
    assert {row["steps"] for row in fixed.history} == {7.0}
    bound, *_ = fit("hmc", max_steps=5, num_chains=2, num_warmup=12, num_draws=2)
    assert max(row["steps"] for row in bound.history) <= 5
    shallow, *_ = fit("nuts", max_depth=2, num_chains=2, num_warmup=3, num_draws=2)
    assert (
        max(row["steps"] for row in shallow.history) <= 3
        and max(row["depth"] for row in shallow.history) <= 2
    )


def test_a_dense_metric_of_too_many_parameters_is_refused():
    with pytest.raises(SettingError, match="mass='dense' over 6060 parameters"):
        BNN(nn.Linear(100, 60), Gaussian(std=1.0)).fit(
            (torch.randn(5, 100), torch.randn(5, 60)), "hmc", mass="dense", progress=False
        )


# --- what is fitted alongside ---------------------------------------------------------------------


def test_learned_noise_goes_to_the_maximum_of_the_evidence():
    """log p(y given std) is known in closed form.

    Adam's last steps are of size lr, and 32 chains leave some noise in each: 3 lr.
    """
    fitted, design, y = fit(
        "hmc", Gaussian(), num_steps=4, num_chains=32, num_warmup=300, num_draws=2, lr=0.02
    )
    best = minimize_scalar(
        lambda s: -regression.exact(design, y, math.exp(s))[2], bounds=(-3, 1), method="bounded"
    ).x
    start = 0.0
    assert abs(float(fitted.likelihood.log_std.detach()) - best) < 0.06 < 0.3 < abs(start - best)


def test_a_point_parameter_goes_to_the_maximum_of_the_evidence():
    """With the bias a point, it is the generalised least squares estimate under the covariance that
    random weights give.
    """
    x, y, _ = regression.problem()
    net = nn.Linear(3, 1).double()
    fitted = BNN(
        net, Gaussian(std=0.5), prior=Normal(0.0, regression.PRIOR_STD), random=["weight"]
    ).fit(
        (x, y),
        "hmc",
        num_steps=4,
        num_chains=32,
        num_warmup=300,
        num_draws=2,
        lr=0.02,
        progress=False,
    )
    cover = torch.linalg.inv(
        regression.PRIOR_STD**2 * x @ x.T + 0.25 * torch.eye(len(x), dtype=DOUBLE)
    )
    best = (cover @ y).sum() / cover.sum()
    error = 1 / cover.sum().sqrt()  # how well the data know it
    assert abs(fitted.posterior.mean()["bias"] - best) < 0.3 * error
    assert abs(net.bias - best) > 2 * error or abs(float(best)) > 0.3  # it had some way to go


def test_what_is_fitted_alongside_is_fixed_before_the_warm_up_ends():
    x, y, _ = regression.problem()
    bnn, seen = regression.bnn(likelihood=Gaussian()), []
    bnn.fit(
        (x, y),
        "hmc",
        num_steps=3,
        num_chains=2,
        num_warmup=20,
        num_draws=5,
        progress=False,
        callbacks=[lambda row: seen.append(float(bnn.likelihood.log_std.detach()))],
    )
    until = int(SHARE_OF_WARMUP * 20)
    assert (
        len(set(seen[:until])) == until
        and set(seen[until - 1 :]) == {seen[-1]}
        and bnn.likelihood.log_std.requires_grad
    )


# --- rungs ----------------------------------------------------------------------------------------


def test_every_rung_has_its_power_of_the_likelihood():
    x, y, _ = regression.problem()
    model = regression.bnn().model
    target = FullBatch(Density(model, model.values()), [(x, y)])
    tempered = Tempered(target, num_rungs=3, num_chains=2)
    flat = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    powers = torch.tensor([1.0, 0.3, 0.1], dtype=DOUBLE)
    point = tempered.at(powers, flat)
    log_prior, log_likelihood = target.parts(flat)
    wanted = log_prior + torch.tensor([1.0, 1.0, 0.3, 0.3, 0.1, 0.1]).double() * log_likelihood
    assert torch.allclose(point.value, wanted) and torch.equal(point.value, tempered(flat)[0])
    assert torch.allclose(target.log_density(flat), log_prior + log_likelihood)
    tempered.set_powers(torch.zeros(3, dtype=DOUBLE))
    assert torch.allclose(tempered(flat)[0], log_prior)
