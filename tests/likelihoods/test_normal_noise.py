"""Normal noise: what a student learns of a teacher's mean and variance, against drawn y."""

import pytest
import torch
from zoo.stats import Z, has_mean

from credo.likelihoods import FullGaussian, Gaussian, Heteroscedastic, Laplace, StudentT

N, S = 4, 6
STUDENTS = {"gaussian": (lambda: Gaussian([0.4, 0.9]), 2), "heteroscedastic": (Heteroscedastic, 4)}
TEACHERS = {
    "gaussian": (lambda: Gaussian(0.7), 2),
    "heteroscedastic": (Heteroscedastic, 4),
    "laplace": (lambda: Laplace(0.3), 2),
    "student_t": (
        lambda: StudentT(9.0, 0.5),
        2,
    ),  # the fourth moment must exist for a test of variances
    "full_gaussian": (lambda: FullGaussian([[0.5, 0.2], [0.2, 0.3]]), 2),
}


def outputs(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("student", STUDENTS)
def test_closed_form_is_the_mean_over_draws_of_the_teacher(student, teacher):
    """E log q(y) over the mixture, by 4,000 draws per component; one z-test of |z| < 5 per
    input.
    """
    ours, width = STUDENTS[student]
    theirs, their_width = TEACHERS[teacher]
    likelihood, other, draws = ours(), theirs(), outputs(S, N, their_width)
    f = outputs(N, width, seed=1)
    exact = likelihood.soft_log_prob(f, likelihood.soft_targets(draws, other))
    y = other.sample(draws.expand(4000, S, N, their_width), 3)
    values = likelihood.log_prob(
        f, y
    )  # (4000, S, N): components in equal shares, so the error is that of their means
    error = (values.var(0) / len(values)).sum(0).sqrt() / S
    assert ((values.mean((0, 1)) - exact).abs() < Z * error).all()


def test_soft_targets_are_mean_and_total_variance():
    teacher, draws = Heteroscedastic(), outputs(S, N, 4)
    soft = Gaussian().soft_targets(draws, teacher)
    assert soft.shape == (N, 2, 2)
    has_mean(teacher.sample(draws.expand(4000, S, N, 4), 4).flatten(0, 1), soft[:, 0])
    _, aleatoric, epistemic = teacher.mixture_moments(draws)
    torch.testing.assert_close(soft[:, 1], aleatoric + epistemic)
    assert (epistemic > 0).all()


@pytest.mark.parametrize("student", STUDENTS)
def test_a_certain_teacher_is_an_observation(student):
    make, width = STUDENTS[student]
    likelihood, f, y = make(), outputs(3, N, width), outputs(N, 2, seed=2)
    soft = torch.stack([y, torch.zeros_like(y)], -2)
    torch.testing.assert_close(
        likelihood.soft_log_prob(f, soft), likelihood.log_prob(f, y)
    )  # leading axes kept


def test_the_optimum_is_the_teachers_mean_and_variance():
    likelihood, soft = (
        Heteroscedastic(),
        torch.stack([outputs(N, 1), outputs(N, 1, seed=1).exp()], -2),
    )
    std = soft[:, 1].sqrt() - likelihood.min_std
    best = torch.cat([soft[:, 0], std.expm1().log()], -1).requires_grad_()
    (slope,) = torch.autograd.grad(likelihood.soft_log_prob(best, soft).sum(), best)
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-10)


def test_few_draws_estimate_the_objective_without_bias():
    """The loss is linear in E y and E y^2, so soft targets from two draws at a time average to
    those of all of them: an identity.
    """
    likelihood, teacher, draws, f = (
        Heteroscedastic(),
        Gaussian(0.5),
        outputs(4, N, 2),
        outputs(N, 4, seed=1),
    )
    pairs = [[i, j] for i in range(4) for j in range(i)]
    values = [
        likelihood.soft_log_prob(f, likelihood.soft_targets(draws[pair], teacher)) for pair in pairs
    ]
    torch.testing.assert_close(
        torch.stack(values).mean(0),
        likelihood.soft_log_prob(f, likelihood.soft_targets(draws, teacher)),
    )
