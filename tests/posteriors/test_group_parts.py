"""Posteriors of scales: closed KLs against quadrature, moments against draws, gradients where a
scale is gone.
"""

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import gamma, halfcauchy, invgamma
from zoo.models import shaken
from zoo.stats import follows, has_mean, same_mean, same_variance

from credo.core.errors import SettingError
from credo.core.seeds import Ambient, Streams, isolated
from credo.posteriors import scale_parts
from credo.posteriors.group_parts import log_normal_gamma_kl

COUNTS = {"a": 3, "b.c": 2}
SETTINGS = {"normal_jeffreys": {}, "horseshoe": {"tau0": 0.3}}
SIZES = {"a": torch.tensor([0.5, 1.0, 2.0]).double(), "b.c": torch.tensor([1.5, 0.1]).double()}


def make(name, std=0.4, size=0.2):
    part = scale_parts[name](COUNTS, dtype="float64", **SETTINGS[name])
    part.begin(SIZES, std)
    return shaken(part, size=size)


@pytest.fixture(params=list(SETTINGS))
def part(request):
    return make(request.param)


def test_the_table_of_parts():
    assert sorted(scale_parts.names()) == sorted(SETTINGS)


@pytest.mark.parametrize("loc", [-3.0, 0.0, 1.5])
@pytest.mark.parametrize("std", [0.1, 1.0])
@pytest.mark.parametrize("scale", [1.0, 0.04])
def test_kl_of_log_normal_numbers_against_quadrature(loc, std, scale):
    """Over x = log a and x = log b, q(x) normal; p(x) has the Jacobian exp(x)."""

    def integral(log_p):
        def term(x):
            log_q = -0.5 * ((x - loc) / std) ** 2 - math.log(std * math.sqrt(2 * math.pi))
            return math.exp(log_q) * (log_q - log_p(math.exp(x)) - x)

        return quad(term, loc - 12 * std, loc + 12 * std, limit=200)[0]

    at = torch.tensor([loc, std], dtype=torch.float64)
    assert float(log_normal_gamma_kl(at[0], at[1], scale)) == pytest.approx(
        integral(gamma(0.5, scale=scale).logpdf), rel=1e-8
    )
    assert float(log_normal_gamma_kl(-at[0], at[1])) == pytest.approx(
        integral(invgamma(0.5).logpdf), rel=1e-8
    )
    tensor = torch.tensor(scale, dtype=torch.float64)
    assert torch.allclose(
        log_normal_gamma_kl(at[0], at[1], tensor), log_normal_gamma_kl(at[0], at[1], scale)
    )


def test_the_square_of_a_half_cauchy_number_is_the_product_of_those_two():
    torch.manual_seed(0)
    a = torch.distributions.Gamma(0.5, 1 / 0.3**2).sample((4000,))
    b = torch.distributions.InverseGamma(0.5, 1.0).sample((4000,))
    follows((a * b).sqrt(), halfcauchy(scale=0.3).cdf)


@torch.no_grad()
def test_the_horseshoes_kl_is_the_mean_of_log_ratios():
    """log q - log p of the draws themselves, z-test."""
    part = make("horseshoe")
    draws = part.latents(Streams(0, range(20_000)), list(COUNTS))
    log_p = torch.zeros(20_000, dtype=torch.float64)
    for latent in draws.values():
        a, b = latent[:, 0].numpy(), latent[:, 1].numpy()
        tau = torch.tensor([1.0] * (a.shape[1] - 1) + [0.3**2]).numpy()
        terms = (
            gamma(0.5, scale=tau).logpdf(torch.tensor(a).exp().numpy())
            + a
            + invgamma(0.5).logpdf(torch.tensor(b).exp().numpy())
            + b
        )
        log_p += torch.from_numpy(terms).sum(1)
    has_mean(part.log_prob(draws) - log_p, part.kl())


def test_the_normal_jeffreys_kl_is_the_integral_within_the_fit():
    """KL[N(mu, sigma^2), c / |z|] with c such that it vanishes as alpha grows; the fit is within
    0.01 nats of each.
    """
    part = make("normal_jeffreys")
    total = 0.0
    for mean, std in zip(part.loc.tolist(), part.std().tolist(), strict=True):

        def term(eps, mean=mean, std=std):
            return (
                math.exp(-0.5 * eps * eps)
                / math.sqrt(2 * math.pi)
                * math.log(abs(mean + std * eps) or 1e-300)
            )

        root = -mean / std
        expected = quad(term, -12, 12, points=[root] if abs(root) < 12 else None, limit=400)[0]
        total += expected - math.log(std) + 0.5 * (math.log(2.0) + 0.5772156649015329)
    assert abs(float(part.kl().detach()) - total) < 0.01 * part.loc.numel()


@torch.no_grad()
def test_moments_are_those_of_draws(part):
    draws = part.latents(Streams(1, range(40_000)), list(COUNTS))
    for bank in COUNTS:
        z = part.scale(bank, draws[bank])
        assert z.shape == (40_000, COUNTS[bank])
        has_mean(z, part.first(bank))
        has_mean(z**2, part.second(bank))


@torch.no_grad()
def test_inverse_moments_of_the_horseshoe():
    part = make("horseshoe")
    draws = part.latents(Streams(2, range(40_000)), list(COUNTS))
    for bank in COUNTS:
        z = part.scale(bank, draws[bank])
        log, inverse = part.inverse(bank)
        has_mean(z.log(), log)
        has_mean(z**-2, inverse)


@torch.no_grad()
def test_local_draws_are_distributed_as_draws_for_weights(part):
    """Covariance over groups included: what a bank shares is one number per row."""
    z = part.scale("a", part.latents(Streams(3, range(20_000)), ["a"])["a"])
    with isolated(0):
        local = part.local("a", Ambient(), (20_000, 3), (20_000, 1), lambda values: values)
    same_mean(z, local)
    same_variance(z, local)
    cross = [(d - d.mean(0)).unsqueeze(-1) * (d - d.mean(0)).unsqueeze(-2) for d in (z, local)]
    same_mean(*cross)


@torch.no_grad()
def test_scales_begin_at_their_sizes(part):
    part.begin(SIZES, 1e-4)
    for bank, size in SIZES.items():
        assert torch.allclose(part.first(bank), size, rtol=1e-4)
        assert torch.allclose(
            (part.second(bank) - part.first(bank) ** 2).sqrt() / size,
            torch.tensor(1e-4).double(),
            rtol=0.5,
        )


def test_alpha_is_bounded_and_its_gradient_finite_where_the_mean_is_zero():
    part = make("normal_jeffreys")
    with torch.no_grad():
        part.loc[0], part.loc[1], part.raw_std[1] = 0.0, 1e-6, 3.0
    score = part.score("a", *[torch.ones(3).double()] * 2, False)
    assert score[:2].tolist() == [8.0, 8.0]
    assert torch.allclose(part.std()[1], torch.tensor(1e-6 * math.exp(4.0)).double())
    for gradient in torch.autograd.grad(
        part.kl() + part.second("a").sum() + part.first("a").sum(), list(part.parameters())
    ):
        assert gradient.isfinite().all()
    kl = torch.autograd.grad(part.kl(), list(part.parameters()))
    assert all(not g[:2].any() for g in kl), "groups at the limit feel nothing of the KL"


@pytest.mark.parametrize("centred", [True, False])
def test_the_horseshoes_score_is_noise_against_signal(centred):
    part = make("horseshoe", std=0.01, size=0.0)
    square, spread = (
        torch.tensor([4.0, 0.0, 1.0]).double(),
        torch.tensor([20.0, 2.0, 30.0]).double(),
    )
    score = part.score("a", square, spread, centred)
    first, second = (
        (torch.ones(3).double(),) * 2 if centred else (part.first("a"), part.second("a"))
    )
    expected = ((second * (square + spread) - first**2 * square) / (first**2 * square)).log()
    assert (
        torch.allclose(score[[0, 2]], expected[[0, 2]]) and score[1].isfinite() and score[1] > 100
    )


def test_gaussian_scales_have_no_inverse_moments():
    with pytest.raises(
        SettingError,
        match="centred=True needs E.1 / z.2., which q of the normal-Jeffreys scales does not have",
    ):
        make("normal_jeffreys").inverse("a")
