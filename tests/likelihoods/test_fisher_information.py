"""Fisher information: closed forms against Monte Carlo, against second derivatives, and their
roots.
"""

import pytest
import torch
from zoo.stats import has_mean

from credo.core.roots import semidefinite_root
from credo.likelihoods import (
    Bernoulli,
    Categorical,
    ContinuousBernoulli,
    FullGaussian,
    Gaussian,
    Heteroscedastic,
    Laplace,
    Pixels,
    Poisson,
    StudentT,
    likelihoods,
)
from credo.likelihoods.base import Likelihood
from credo.likelihoods.categorical import softmax_root
from credo.likelihoods.fisher_information import DRAWS, drawn_information, score

CASES = {
    "categorical": (Categorical, 4),
    "bernoulli": (Bernoulli, 1),
    "bernoulli-3": (Bernoulli, 3),
    "continuous_bernoulli": (ContinuousBernoulli, 2),
    "continuous_bernoulli-limit": (lambda: ContinuousBernoulli(limit=3.0), 2),
    "gaussian": (Gaussian, 2),
    "gaussian-each": (lambda: Gaussian([0.3, 0.6]), 2),
    "full_gaussian": (lambda: FullGaussian([[0.5, 0.2], [0.2, 0.3]]), 2),
    "heteroscedastic": (Heteroscedastic, 4),
    "laplace": (lambda: Laplace(0.5), 2),
    "student_t": (lambda: StudentT(3.5, 0.4), 2),
    "poisson": (Poisson, 2),
    "pixels": (lambda: Pixels(3), 6),
}
CANONICAL = (
    "categorical",
    "bernoulli",
    "bernoulli-3",
    "continuous_bernoulli",
    "gaussian",
    "gaussian-each",
    "full_gaussian",
    "poisson",
)
N = 3


def problem(name, *lead, dtype=torch.float64):
    make, width = CASES[name]
    outputs = torch.randn(
        *lead, N, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return make().to(dtype), outputs.to(dtype)


def products(likelihood, outputs, draws, seed):
    """Outer products of the score ``(S, N, F, F)`` for y drawn at these outputs."""
    stacked = outputs.expand(draws, *outputs.shape)
    s = score(likelihood, stacked, likelihood.sample(stacked, seed))
    return s.unsqueeze(-1) * s.unsqueeze(-2)


def test_every_registered_likelihood_is_here():
    assert {type(make()) for make, _ in CASES.values()} == {kind for _, kind in likelihoods.items()}


@pytest.mark.parametrize("name", [name for name in CASES if name != "pixels"])
def test_closed_forms_equal_the_mean_square_of_the_score(name):
    likelihood, outputs = problem(name)
    assert type(likelihood).information is not Likelihood.information
    has_mean(products(likelihood, outputs, 20_000, 5), likelihood.information(outputs).detach())


@pytest.mark.parametrize("name", CASES)
def test_the_estimate_where_no_closed_form_is_known(name):
    """From fixed draws, within their error of the truth, the same at every call and without a trace
    in the global state.
    """
    likelihood, outputs = problem(name)
    state = torch.get_rng_state()
    drawn = drawn_information(likelihood, outputs)
    assert torch.equal(drawn, drawn_information(likelihood, outputs)) and torch.equal(
        state, torch.get_rng_state()
    )
    assert drawn.shape == (N, outputs.shape[-1], outputs.shape[-1]) and not drawn.requires_grad
    assert float(torch.linalg.eigvalsh(drawn).min()) > -1e-12
    spread = products(likelihood, outputs, 20_000, 6)
    error = spread.std(0) / DRAWS**0.5
    # The truth is known to within 1/6 of the estimate's error: 5 sqrt(1 + 1/39) is the same failure
    # rate as one z-test at 5.
    assert float(((drawn - spread.mean(0)).abs() / (error + 1e-9)).max()) < 5.07


@pytest.mark.parametrize("name", CANONICAL)
def test_for_natural_parameters_it_is_minus_the_second_derivative_whatever_y_is(name):
    likelihood, outputs = problem(name)
    for seed in (0, 1):
        y = likelihood.check_targets(likelihood.sample(outputs, seed))
        for n in range(N):
            hessian = torch.autograd.functional.hessian(
                lambda f, n=n, y=y: likelihood.log_prob(f[None], y[n : n + 1])[0], outputs[n]
            )
            # The continuous Bernoulli's variance is a difference of near numbers, with 1e-9 of
            # error at most.
            torch.testing.assert_close(
                likelihood.information(outputs)[n], -hessian, rtol=1e-7, atol=1e-9
            )


def test_pixels_are_categorical_one_by_one():
    """The estimate's target, from the outputs level by level: column l D + d is level l of pixel
    d.
    """
    likelihood, outputs = problem("pixels")
    exact = torch.zeros(N, 6, 6).double()
    for d in range(2):
        own = torch.arange(d, 6, 2)
        exact[:, own.unsqueeze(-1), own] = Categorical().information(outputs[:, own])
    has_mean(products(likelihood, outputs, 20_000, 7), exact)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_roots_and_leading_axes(name, dtype):
    likelihood, outputs = problem(name, 2, dtype=dtype)
    root, information = likelihood.information_root(outputs), likelihood.information(outputs)
    width = outputs.shape[-1]
    assert information.shape == (2, N, width, width) and root.shape[:3] == (2, N, width)
    assert information.dtype == root.dtype == dtype
    rounding = 1e-12 if dtype == torch.float64 else 1e-5 * float(information.detach().abs().max())
    torch.testing.assert_close(root @ root.mT, information, rtol=0, atol=rounding)
    one = likelihood.information(outputs[1])
    if name != "pixels":  # its draws are shared out over all data of a call
        torch.testing.assert_close(one, information[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "logits",
    [
        [0.0, 0.0, 0.0, 0.0],
        [1.0, -2.0, 0.5, 3.0],
        [200.0, 0.0, 0.0, -50.0],
        [0.0, 200.0, -5.0, 1.0],
        [-30.0, -30.0, 0.0, 0.0],
    ],
)
def test_the_root_of_a_softmax_has_one_column_less(logits, dtype):
    probs = torch.tensor([logits], dtype=dtype).softmax(-1)
    root = softmax_root(probs)
    assert root.shape == (1, 4, 3) and bool(torch.isfinite(root).all())
    expected = torch.diag_embed(probs) - probs.unsqueeze(-1) * probs.unsqueeze(-2)
    torch.testing.assert_close(root @ root.mT, expected, rtol=0, atol=4 * torch.finfo(dtype).eps)


def test_two_classes_are_one_direction():
    p = torch.tensor([0.3, 0.7]).double()
    root = softmax_root(p)
    assert root.shape == (2, 1)
    torch.testing.assert_close(root[:, 0].abs(), torch.full((2,), (0.3 * 0.7) ** 0.5).double())


def test_roots_of_singular_and_rounded_matrices():
    factor = torch.randn(4, 2).double()
    matrix = factor @ factor.mT
    root = semidefinite_root(matrix)
    torch.testing.assert_close(root @ root.mT, matrix)
    assert float(semidefinite_root(torch.tensor([[-1e-20]]))) == 0.0
    assert float(semidefinite_root(torch.tensor([[4.0]]))) == 2.0


@pytest.mark.parametrize("name", CASES)
def test_the_score_is_the_gradient(name):
    likelihood, outputs = problem(name)
    y = likelihood.check_targets(likelihood.sample(outputs, 2))
    jacobian = torch.autograd.functional.jacobian(lambda f: likelihood.log_prob(f, y), outputs)
    torch.testing.assert_close(
        score(likelihood, outputs, y), torch.stack([jacobian[n, n] for n in range(N)])
    )
    assert score(likelihood, outputs, y).mean(0).requires_grad is False


def test_normal_noise_of_one_size_in_terms_of_the_nll():
    likelihood, outputs, y = (
        Gaussian(initial_std=0.4).double(),
        torch.randn(N, 2).double(),
        torch.randn(N, 2).double(),
    )
    nll = -float(likelihood.log_prob(outputs, y).detach().sum())
    terms = likelihood.noise_terms(nll, N, 2)
    assert terms is not None and terms.count == 2 * N
    assert terms.misfit == pytest.approx(float((outputs - y).square().sum()) / 0.16, rel=1e-6)
    likelihood.widen_noise(1.5)
    assert float(likelihood.std(outputs).detach()) == pytest.approx(0.6, rel=1e-6)


@pytest.mark.parametrize(
    "likelihood",
    [Gaussian(0.5), Gaussian(num_outputs=2), StudentT(), Categorical()],
    ids=lambda one: one.name,
)
def test_other_noise_has_no_such_terms(likelihood):
    assert likelihood.noise_terms(1.0, N, 2) is None


def test_noise_that_is_not_there_cannot_be_widened():
    from credo.core.errors import CredoError

    with pytest.raises(CredoError, match="categorical likelihood has no noise of one size"):
        Categorical().widen_noise(2.0)


def test_labels_can_be_softened_and_others_say_what_to_do():
    mean, var = torch.tensor([[2.0, -1.0]]), torch.tensor([[3.0, 0.0]])
    for likelihood in (Categorical(), Bernoulli()):
        expected = mean / (1 + torch.pi / 8 * var).sqrt()
        torch.testing.assert_close(likelihood.softened(mean, var), expected)
    from credo.core.errors import CredoError

    for likelihood in (Gaussian(), Poisson(), Heteroscedastic()):
        with pytest.raises(
            CredoError,
            match=f"{likelihood.name} likelihood has no probit approximation, which is for "
            "labels; use 'linear'",
        ):
            likelihood.softened(mean, var)
