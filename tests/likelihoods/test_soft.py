"""Soft targets of every likelihood, and the wrapper whose observations they are."""

import copy

import pytest
import torch
from torch import nn
from zoo.stats import Z

from credo.core.errors import DataError, SettingError
from credo.likelihoods import (
    Bernoulli,
    Categorical,
    ContinuousBernoulli,
    FullGaussian,
    Gaussian,
    Heteroscedastic,
    Laplace,
    Likelihood,
    Pixels,
    Poisson,
    StudentT,
    likelihoods,
)
from credo.likelihoods.soft import Soft

S, N = 5, 4
CASES = {
    "categorical": (Categorical, 3),
    "bernoulli": (Bernoulli, 1),
    "bernoulli-3": (Bernoulli, 3),
    "gaussian": (lambda: Gaussian(0.5), 2),
    "heteroscedastic": (Heteroscedastic, 2),
    "full_gaussian": (lambda: FullGaussian([[0.5, 0.2], [0.2, 0.3]]), 2),
    "laplace": (Laplace, 1),
    "student_t": (StudentT, 2),
    "continuous_bernoulli": (ContinuousBernoulli, 2),
    "poisson": (Poisson, 1),
    "poisson-2": (Poisson, 2),
    "pixels": (lambda: Pixels(4), 8),
}


def outputs(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(params=CASES)
def case(request):
    make, width = CASES[request.param]
    return make(), outputs(S, N, width), outputs(N, width, seed=1)


def test_every_registered_likelihood_has_a_case():
    assert {make().name for make, _ in CASES.values()} == set(likelihoods.names())


def test_soft_log_prob_is_the_mean_over_drawn_y(case):
    """The override, or the default with many copies of every draw, against plain draws: |z| < 5 per
    input.
    """
    likelihood, draws, f = case
    copies = 2000
    many = draws.repeat(copies, 1, 1)
    closed = likelihood.soft_log_prob(f, likelihood.soft_targets(many, likelihood, 1))
    values = likelihood.log_prob(
        f, likelihood.check_targets(likelihood.sample(many, 2).flatten(0, 1)).unflatten(0, (-1, N))
    )
    spread = values.reshape(copies, S, N)
    error = (2 * spread.var(0).sum(0) / copies).sqrt() / S  # twice: the default draws too
    assert closed.shape == (N,)
    assert ((values.mean(0) - closed).abs() < Z * error + 1e-9).all()


def test_default_draws_are_one_of_each_component_and_repeat(case):
    likelihood, draws, f = case
    first, again, other = (
        Likelihood.soft_targets(likelihood, draws, likelihood, seed) for seed in (1, 1, 2)
    )
    assert first.shape[:2] == (N, S)
    assert torch.equal(first, again) and (first.shape[0] * S < 10 or not torch.equal(first, other))
    expected = likelihood.check_targets(likelihood.sample(draws, 1)[2])  # the third draw's y
    torch.testing.assert_close(first[:, 2], expected)
    value = Likelihood.soft_log_prob(likelihood, f, first)
    torch.testing.assert_close(
        value, torch.stack([likelihood.log_prob(f, first[:, s]) for s in range(S)]).mean(0)
    )


def test_leading_axes_and_vmap(case):
    likelihood, draws, f = case
    soft, many = likelihood.soft_targets(draws, likelihood, 0), torch.stack([f, 2 * f])
    expected = torch.stack(
        [likelihood.soft_log_prob(f, soft), likelihood.soft_log_prob(2 * f, soft)]
    )
    torch.testing.assert_close(likelihood.soft_log_prob(many, soft), expected)
    torch.testing.assert_close(
        torch.vmap(lambda g: likelihood.soft_log_prob(g, soft))(many), expected
    )


def test_gradients_are_finite(case):
    likelihood, draws, f = case
    wide = (10 * f).float().requires_grad_()
    likelihood.soft_log_prob(
        wide, likelihood.soft_targets(10 * draws.float(), likelihood, 0)
    ).sum().backward()
    assert wide.grad is not None and bool(wide.grad.isfinite().all())


@pytest.mark.parametrize("name", ["categorical", "bernoulli"])
def test_cross_entropy_is_largest_at_the_teachers_probabilities(name):
    make, width = CASES[name]
    likelihood, draws = make(), outputs(S, N, width)
    soft = likelihood.soft_targets(draws, likelihood)
    torch.testing.assert_close(soft, likelihood.probs(draws).mean(0))
    best = (soft.log() if name == "categorical" else soft.logit()).requires_grad_()
    (slope,) = torch.autograd.grad(likelihood.soft_log_prob(best, soft).sum(), best)
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        -likelihood.soft_log_prob(best, soft), likelihood.marginal_entropy(draws).sum(-1)
    )


@pytest.mark.parametrize(
    ("teacher", "width", "student", "needed"),
    [
        (Gaussian(), 1, "heteroscedastic", 2),
        (Gaussian(), 3, "heteroscedastic", 6),
        (Heteroscedastic(), 4, "heteroscedastic", 4),
        (StudentT(), 2, "heteroscedastic", 4),
        (FullGaussian(num_outputs=2), 2, "heteroscedastic", 4),
        (ContinuousBernoulli(), 2, "continuous_bernoulli", 2),
        (Categorical(), 7, "categorical", 7),
        (Bernoulli(), 3, "bernoulli", 3),
        (Poisson(), 2, "poisson", 2),
        (Pixels(4), 8, "pixels", 8),
    ],
)
def test_the_default_student_and_its_width(teacher, width, student, needed):
    own = teacher.student()
    assert own.name == student and own is not teacher
    assert own.student_outputs(teacher, width) == needed


def test_a_student_keeps_the_arguments_of_its_teacher():
    assert Heteroscedastic(min_std=0.2).student().min_std == 0.2 and Pixels(4).student().levels == 4


@pytest.mark.parametrize(
    ("student", "teacher", "message"),
    [
        (
            Gaussian(),
            Categorical(),
            "gaussian likelihood describes continuous values.*categorical, discrete "
            "labels.*'categorical'",
        ),
        (
            Poisson(),
            Gaussian(),
            "poisson likelihood describes discrete values.*gaussian, continuous "
            "values.*'heteroscedastic'",
        ),
        (
            Bernoulli(),
            Categorical(),
            "bernoulli likelihood cannot state the labels.*likelihood='categorical'",
        ),
        (Categorical(), Gaussian(), "categorical likelihood cannot state the labels"),
    ],
)
def test_likelihoods_of_another_kind_are_refused(student, teacher, message):
    with pytest.raises(SettingError, match=message):
        student.student_outputs(teacher, 2)


def test_draws_that_the_student_cannot_take_are_refused():
    with pytest.raises(
        DataError,
        match="gaussian likelihood predicts y that the student's cannot take.*'heteroscedastic'",
    ):
        ContinuousBernoulli().soft_targets(outputs(S, N, 1) * 5, Gaussian())


# --- the wrapper ----------------------------------------------------------------------------------


def test_it_looks_like_what_is_inside_and_is_in_no_registry(case):
    likelihood, draws, f = case
    soft = Soft(likelihood, 9)
    assert (soft.name, soft.discrete, soft.metric_family) == (
        likelihood.name,
        likelihood.discrete,
        likelihood.metric_family,
    )
    assert (
        soft.config() == likelihood.config()
        and soft.state_dict().keys() == likelihood.state_dict().keys()
    )
    assert [n for n, _ in soft.named_parameters()] == [n for n, _ in likelihood.named_parameters()]
    assert Soft not in [entry for _, entry in likelihoods.items()] and "soft" not in likelihoods
    targets = soft.check_training_targets(likelihood.soft_targets(draws, likelihood, 0))
    assert torch.equal(soft.log_prob(f, targets), likelihood.soft_log_prob(f, targets))
    assert soft.num_outputs(targets) == 9 and not soft.accepts(8, targets)
    torch.testing.assert_close(soft.moments(draws)[0], likelihood.marginals(draws).mean)
    assert torch.equal(soft.sample(draws, 1), likelihood.sample(draws, 1))


def test_parameters_stay_shared_when_copied_moved_and_replaced():
    soft = copy.deepcopy(Soft(Gaussian(), 1)).to(torch.float64)
    inside = soft.inside
    assert isinstance(inside, Gaussian) and inside.log_std.dtype == torch.float64
    with torch.no_grad():
        soft.log_std.add_(1.0)
    assert inside.log_std.item() == 1.0
    soft.log_std = nn.Parameter(torch.tensor(0.5))
    assert inside.log_std.item() == 0.5
    soft.load_state_dict({"log_std": torch.tensor(2.0)})
    assert inside.log_std.item() == 2.0
    frozen = soft.frozen()
    with torch.no_grad():
        soft.log_std.add_(1.0)
    assert frozen.inside.log_std.item() == 2.0 and not frozen.log_std.requires_grad


def test_expected_log_prob_under_normal_outputs_by_quadrature():
    """What the moments estimator asks for; against draws of f, |z| < 5 per input."""
    likelihood, draws, mean = Categorical(), outputs(S, N, 3), outputs(N, 3, seed=1)
    soft, var = Soft(likelihood, 3), torch.full((N, 3), 0.3, dtype=torch.float64)
    targets = likelihood.soft_targets(draws, likelihood)
    f = mean + var.sqrt() * outputs(20_000, N, 3, seed=2)
    values = likelihood.soft_log_prob(f, targets)
    gap = values.mean(0) - soft.expected_log_prob(mean, var, targets)
    assert (gap.abs() < Z * (values.var(0) / len(values)).sqrt()).all()


def test_curvature_is_that_of_what_is_inside(case):
    likelihood, _, f = case
    soft = Soft(likelihood, f.shape[-1])
    assert soft.observed is likelihood and likelihood.observed is likelihood
    assert torch.equal(soft.information(f), likelihood.information(f))
    assert torch.equal(soft.information_root(f), likelihood.information_root(f))


def test_noise_and_probit_are_those_of_what_is_inside():
    """A teacher that is sure of its mean says what observations of that mean would."""
    gaussian = Gaussian(initial_std=0.4)
    soft, f, y = Soft(gaussian, 2), outputs(N, 2), outputs(N, 2, seed=1)
    sure = torch.stack([y, torch.zeros_like(y)], -2)
    nll = [
        -float(part.sum())
        for part in (soft.log_prob(f, sure).detach(), gaussian.log_prob(f, y).detach())
    ]
    assert soft.noise_terms(nll[0], N, 2) == pytest.approx(gaussian.noise_terms(nll[1], N, 2))
    soft.widen_noise(2.0)
    assert float(gaussian.log_std.detach().exp()) == pytest.approx(0.8)
    mean, var = outputs(N, 3), outputs(N, 3, seed=1).square()
    assert torch.equal(
        Soft(Categorical(), 3).softened(mean, var), Categorical().softened(mean, var)
    )
