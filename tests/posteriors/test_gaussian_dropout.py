"""Gaussian factors: their KL against quadrature, counted per factor; how alpha is shared.

z-tests as in ``zoo.stats``.
"""

import math

import pytest
import torch
from scipy.integrate import quad
from torch.distributions import Laplace, Normal, StudentT
from zoo.dropout import Residual, begin
from zoo.stats import has_mean, has_variance

from credo.core.linear_map import bind
from credo.core.seeds import Ambient, generator, isolated
from credo.posteriors import Dropout, GaussianDropout, Places
from credo.priors import log_uniform

W = torch.randn(2, 3, generator=generator("w"), dtype=torch.float64)
B = torch.randn(2, generator=generator("b"), dtype=torch.float64)
PLACES = Places(axes={"w": (1, 1)})
SHARING = [
    ("input", "layer"),
    ("input", "unit"),
    ("weight", "layer"),
    ("weight", "unit"),
    ("weight", "weight"),
]
LOG_UNIFORM = {"w": log_uniform(), "b": log_uniform()}


def family_of(noise="input", per="unit", learn=True, p=0.3, places=PLACES):
    family = GaussianDropout.start(
        {"w": W, "b": B}, places, dict.fromkeys([*places.axes, *places.masks], p), noise, per, learn
    )
    with torch.no_grad():
        for index, raw in enumerate(family.raw_alpha):
            raw += 0.7 * torch.randn(
                raw.shape, generator=generator("alpha", index), dtype=torch.float64
            )
    return family


def integral(alpha):
    """KL[N(1, alpha), c / |s|] with c such that it vanishes as alpha grows: E[log |s|] - log(alpha)
    / 2 - E[log |eps|].
    """
    std = math.sqrt(alpha)

    def term(eps):
        return (
            math.exp(-0.5 * eps * eps)
            / math.sqrt(2 * math.pi)
            * math.log(abs(1 + std * eps) or 1e-300)
        )

    mean = quad(term, -12, 12, points=[-1 / std] if 1 / std < 12 else None, limit=400)[0]
    return mean - 0.5 * math.log(alpha) - (-0.5 * (math.log(2.0) + 0.5772156649015329))


@pytest.mark.parametrize(("noise", "per"), SHARING)
def test_the_log_uniform_kl_is_the_integral_of_every_factor(noise, per):
    """Noise on inputs counts one factor per unit (3), noise on weights one per weight (6).

    The fit is within 0.01 nats of each.
    """
    family = family_of(noise, per)
    alpha = family.excess("w").detach()
    whole = {"layer": alpha.expand(2, 3), "unit": alpha.expand(2, 3), "weight": alpha}[per]
    factors = whole if noise == "weight" else whole[0]
    exact = sum(integral(float(a)) for a in factors.flatten())
    assert abs(float(family.kl(LOG_UNIFORM).detach()) - exact) < 0.01 * factors.numel()
    assert factors.numel() == (6 if noise == "weight" else 3)


def test_the_log_uniform_kl_does_not_hold_back_the_weights():
    family = family_of()
    gradient = torch.autograd.grad(
        family.kl(LOG_UNIFORM), [family.flat_mean, *family.raw_alpha], allow_unused=True
    )
    assert gradient[0] is None or not gradient[0].any()
    assert (gradient[1] < 0).all()  # towards larger alpha


def test_every_learned_alpha_has_a_kl_whether_or_not_a_weight_reads_its_mask_directly():
    """A mask whose units are added to others before a layer reads them is noise all the same, and
    has its price.
    """
    family = family_of(
        places=Places(masks={"d.mask0": (1, 3), "e.mask0": (1, 3)}, feeds={"w": "d.mask0"})
    )
    prior = LOG_UNIFORM
    for raw, gradient in zip(
        family.raw_alpha,
        torch.autograd.grad(family.kl(prior), list(family.raw_alpha), allow_unused=True),
        strict=True,
    ):
        assert gradient is not None and (gradient < 0).all(), tuple(raw.shape)


def test_the_same_in_a_network():
    with isolated(0):
        net, x = Residual().double(), torch.randn(3, 5).double()
    _, posterior = begin("variational_dropout", net, x)
    family = posterior.factors[0]
    count = torch.autograd.grad(
        family.kl(dict.fromkeys(family.names, log_uniform())),
        list(family.raw_alpha),
        allow_unused=True,
    )
    assert family.noised == ("before.mask0", "after.mask0") and all(g is not None for g in count)


PRIORS = {
    "normal": Normal(0.0, 0.7),
    "shifted": Normal(0.4, 0.7),
    "laplace": Laplace(0.0, 3.0),
    "student_t": StudentT(3.0, 0.0, 2.0),
}


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("per", ["layer", "unit"])
def test_the_kl_under_other_priors_is_cross_entropy_minus_entropy_of_the_factors(per, name):
    """By quadrature on a fine grid of s; for priors that are not normal ours has twelve nodes,
    which a kink at zero costs accuracy.
    """
    family, prior = family_of("input", per, learn=False), PRIORS[name]
    alpha = family.excess("w").expand(3)
    eps = torch.linspace(-9, 9, 20001, dtype=torch.float64)
    mass = torch.exp(-0.5 * eps**2) / math.sqrt(2 * math.pi) * (eps[1] - eps[0])
    drawn = W.unsqueeze(-1) * (1 + alpha.sqrt().unsqueeze(-1) * eps)
    exact = (
        -(prior.log_prob(drawn) * mass).sum()
        - 0.5 * torch.log(2 * math.pi * math.e * alpha).sum()
        - prior.log_prob(B).sum()
    )
    found = family.kl({"w": prior, "b": prior})
    tolerance = 1e-6 if name in ("normal", "shifted") else 0.02
    assert abs(float(found - exact)) < tolerance * max(1.0, abs(float(exact)))


def test_the_penalty_under_a_normal_prior_is_that_of_dropout():
    """l^2 (1 + alpha) / 2 = l^2 / (2 (1 - p)) at alpha = p / (1 - p)."""
    prior = {"w": Normal(0.0, 0.5), "b": Normal(0.0, 0.5)}

    def part(kind, value):
        rates = {"w": 0.3}
        values = {"w": value, "b": B}
        made = (
            Dropout.start(values, PLACES, rates)
            if kind == "dropout"
            else GaussianDropout.start(values, PLACES, rates, "input", "layer", False)
        )
        return float(made.kl(prior))

    ours, theirs = (part(kind, W) - part(kind, 0 * W) for kind in ("gaussian", "dropout"))
    assert math.isclose(ours, theirs, rel_tol=1e-6) and math.isclose(
        ours, 4 * 1 / 0.7 / 2 * float(W.square().sum()), rel_tol=1e-6
    )


def test_noise_on_weights_has_no_closed_kl_under_other_priors():
    assert family_of("weight", "weight").kl({"w": Normal(0.0, 1.0), "b": Normal(0.0, 1.0)}) is None


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize("per", ["layer", "unit"])
def test_gradients_of_the_kl(per, learn):
    family = family_of("input", per, learn)
    prior = {"w": Normal(0.0, 0.7), "b": Normal(0.0, 0.7)} if not learn else LOG_UNIFORM
    raw = family.raw_alpha[0].detach().clone().requires_grad_()

    def value(mean, raw):
        state = {"flat_mean": mean, "raw_alpha.0": raw}
        return torch.func.functional_call(
            _Kl(family, prior), {f"family.{n}": v for n, v in state.items()}, ()
        )

    assert torch.autograd.gradcheck(
        value, (family.flat_mean.detach().clone().requires_grad_(), raw)
    )


class _Kl(torch.nn.Module):
    def __init__(self, family, prior):
        super().__init__()
        self.family, self.prior = family, prior

    def forward(self):
        return self.family.kl(self.prior)


def test_alpha_starts_at_p_over_one_minus_p_and_stays_below_one_where_it_is_learned():
    for learn in (True, False):
        family = GaussianDropout.start({"w": W}, PLACES, {"w": 0.3}, "input", "layer", learn)
        assert float(family.excess("w").detach()) == pytest.approx(0.3 / 0.7)
        assert family.raw_alpha[0].requires_grad == learn and len(family.rate_params()) == learn
        assert family.monitor() == ({"rate/w": pytest.approx(0.3)} if learn else {})
        with torch.no_grad():
            family.raw_alpha[0].fill_(30.0)
        assert (float(family.excess("w").detach()) <= 1.0) == learn


@torch.no_grad()
@pytest.mark.parametrize(("noise", "per"), SHARING)
def test_local_outputs_have_the_moments_of_drawn_weights(noise, per):
    family = family_of(noise, per)
    op = bind(torch.nn.functional.linear, (None, None), {})[0].along_examples(0)
    x = torch.randn(1, 3, generator=generator("x"), dtype=torch.float64).expand(20_000, 3)
    draw = family.begin(Ambient())
    draw.prepare()
    with isolated(0):
        out = draw.local(op, x, "w", "b", Ambient())
    alpha = (
        family.alpha_of("w").expand(2, 3)
        if noise == "weight"
        else family.excess("w").expand(3).expand(2, 3)
    )
    has_mean(out, W @ x[0] + B)
    has_variance(out, (alpha * W**2 * x[0] ** 2).sum(1))
