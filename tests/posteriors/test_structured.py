"""Truncated log-normal factors: KL and moments against quadrature, draws by z-test (as in
``zoo.stats``), extremes, pruning.
"""

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import truncnorm
from torch.distributions import Normal
from zoo.dropout import NETWORKS, agree, begin, make
from zoo.stats import follows, has_mean, has_variance

from credo.core.linear_map import bind
from credo.core.seeds import Ambient, Streams, generator, isolated
from credo.posteriors import Places, StructuredNoise
from credo.posteriors.structured import HIGH, LOG_STD, LOW
from credo.priors import log_uniform

W = torch.randn(2, 5, generator=generator("w"), dtype=torch.float64)
B = torch.randn(2, generator=generator("b"), dtype=torch.float64)
PLACES = Places(axes={"w": (1, 1)})
LOG_UNIFORM = {"w": log_uniform(), "b": log_uniform()}
#: mu and sigma: free of both ends, at the upper, at the lower, nearly flat, and between.
CASES = [(-3.0, 0.2), (-0.05, 0.3), (-19.9, 0.5), (-8.0, 15.0), (-1.0, 2.0)]


def raw(value, low, high):
    share = (value - low) / (high - low)
    return math.log(share / (1 - share))


def family_of(threshold=1e-9, dtype=torch.float64, cases=CASES):
    family = StructuredNoise.start(
        {"w": W.to(dtype), "b": B.to(dtype)}, PLACES, {"w": 0.1}, threshold
    )
    with torch.no_grad():
        family.raw_mean[0].copy_(
            torch.tensor([raw(mu, LOW, HIGH) for mu, _ in cases], dtype=torch.float64)
        )
        family.raw_std[0].copy_(
            torch.tensor(
                [raw(math.log(sigma), *LOG_STD) for _, sigma in cases], dtype=torch.float64
            )
        )
    return family


def integral(function, mu, sigma):
    """The expectation of ``function(t, density)`` over [-20, 0], by quadrature of the unnormalised
    density.
    """

    def density(t):
        return math.exp(-0.5 * ((t - mu) / sigma) ** 2)

    points = [p for p in (mu - 5 * sigma, mu, mu + 5 * sigma) if LOW < p < HIGH]
    total = quad(density, LOW, HIGH, points=points, limit=400, epsabs=0, epsrel=1e-11)[0]
    return quad(
        lambda t: density(t) / total * function(t, density(t) / total),
        LOW,
        HIGH,
        points=points,
        limit=400,
        epsrel=1e-10,
    )[0]


@torch.no_grad()
@pytest.mark.parametrize("place", range(len(CASES)))
def test_kl_and_moments_are_the_integrals(place):
    mu, sigma = CASES[place]
    family = family_of()
    kl = integral(lambda t, q: math.log(max(q, 1e-300) * (HIGH - LOW)), mu, sigma)
    first, second = (integral(lambda t, q, k=k: math.exp(k * t), mu, sigma) for k in (1, 2))
    assert float(family.unit_kl("w")[place]) == pytest.approx(kl, rel=1e-6, abs=1e-8)
    assert float(family.log_moments("w")[0][place].exp()) == pytest.approx(first, rel=1e-6)
    assert float(family.excess("w")[place]) == pytest.approx(second / first**2 - 1, rel=1e-5)
    assert float(family.snr("w")[place]) == pytest.approx(
        first / math.sqrt(second - first**2), rel=1e-5
    )


@torch.no_grad()
def test_factors_follow_the_truncated_log_normal_and_have_mean_one():
    family = family_of()
    factors = family.begin(Streams(0, range(40_000))).factors(["w"])["w"]
    log_s = factors.log() + family.log_moments("w")[0]
    assert float(log_s.min()) >= LOW - 1e-9 and float(log_s.max()) <= HIGH + 1e-9
    for place, (mu, sigma) in enumerate(CASES):
        follows(
            log_s[:4000, place], truncnorm((LOW - mu) / sigma, (HIGH - mu) / sigma, mu, sigma).cdf
        )
    narrow = [
        0,
        1,
        4,
    ]  # of the others a few draws carry the mean, and no z-test of forty thousand sees them
    has_mean(factors[:, narrow], torch.ones(3))
    has_variance(factors[:, narrow], family.excess("w")[narrow])


def test_the_kl_vanishes_where_q_is_the_prior_and_grows_as_the_noise_does_not():
    flat = family_of(cases=[(-10.0, math.exp(2.999))] * 5)
    assert 0 <= float(flat.unit_kl("w").detach().max()) < 0.002
    kls = [
        float(family_of(cases=[(-5.0, sigma)] * 5).unit_kl("w")[0].detach())
        for sigma in (10.0, 1.0, 0.1, 0.001)
    ]
    assert kls == sorted(kls)
    assert kls[3] - kls[2] == pytest.approx(math.log(100.0), rel=1e-6)


def test_the_kl_counts_units_under_the_log_uniform_prior_alone():
    family = family_of()
    assert float(family.kl(LOG_UNIFORM).detach()) == pytest.approx(
        float(family.unit_kl("w").sum().detach())
    )
    assert family.kl({"w": Normal(0.0, 1.0), "b": Normal(0.0, 1.0)}) is None
    gradient = torch.autograd.grad(family.kl(LOG_UNIFORM), family.flat_mean, allow_unused=True)[0]
    assert gradient is None or not gradient.any(), "W is not held back"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mean", [-60.0, -8.0, 0.0, 8.0, 60.0])
@pytest.mark.parametrize("std", [-60.0, 0.0, 60.0])
def test_extremes_are_finite_and_so_are_their_gradients(mean, std, dtype):
    family = family_of(dtype=dtype)
    with torch.no_grad():
        family.raw_mean[0].fill_(mean)
        family.raw_std[0].fill_(std)
    u = torch.tensor([[0.0] * 5, [1e-7] * 5, [0.5] * 5, [1 - 1e-7] * 5], dtype=dtype)
    factors = family.factor("w", u, lambda v: v)
    assert bool(factors.isfinite().all()) and bool((factors >= 0).all())
    total = factors.sum() + family.kl(LOG_UNIFORM) + family.excess("w").sum()
    gradients = torch.autograd.grad(total, [family.raw_mean[0], family.raw_std[0]])
    assert total.isfinite() and all(bool(g.isfinite().all()) for g in gradients)


def test_gradients_of_factor_and_kl():
    u = torch.tensor([[0.1, 0.3, 0.45, 0.6, 0.99]], dtype=torch.float64)

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.family = family_of()

        def forward(self):
            return self.family.factor("w", u, lambda v: v), self.family.unit_kl("w")

    both = Both()
    state = [
        both.family.raw_mean[0].detach().clone().requires_grad_(),
        both.family.raw_std[0].detach().clone().requires_grad_(),
    ]

    def value(mean, std):
        return torch.func.functional_call(
            both, {"family.raw_mean.0": mean, "family.raw_std.0": std}, ()
        )

    assert torch.autograd.gradcheck(value, tuple(state))


@torch.no_grad()
def test_units_with_more_noise_than_signal_are_gone_from_mean_draws_and_masks():
    family = family_of(threshold=1.0)
    units = family.snr("w") >= 1
    assert units.tolist() == [True, True, True, False, True]
    assert torch.equal(family.mean()["w"], W * units) and torch.equal(family.mean()["b"], B)
    draws = family.draw(Streams(0, range(50)))
    assert not draws["w"][:, :, ~units].any() and bool(draws["w"][:, :, units].all())
    assert torch.equal(family.keep_mask()["w"], units.expand(2, 5)) and family.monitor() == {
        "units/w": 4.0
    }
    assert torch.equal(family.scales()["w"] > 0, units)
    assert not family.keep_mask(1e9)["w"].any() and bool(family.keep_mask(0.0)["w"].all())
    assert bool((family.std()["w"][:, units] > 0).all())


@torch.no_grad()
def test_masks_of_dropout_modules_prune_the_weights_that_read_them():
    places = Places(masks={"d.mask0": (1, 5)}, feeds={"w": "d.mask0"})
    family = StructuredNoise.start({"w": W, "b": B}, places, {"d.mask0": 0.1})
    family.raw_std[0][0, 2] = 60.0
    assert family.keep_mask()["w"].tolist() == [[True, True, False, True, True]] * 2
    assert family.mean()["d.mask0"].tolist() == [[1.0, 1.0, 0.0, 1.0, 1.0]]


@torch.no_grad()
def test_channels_of_a_grouped_convolution():
    family = StructuredNoise.start(
        {"w": torch.ones(4, 2, 3, 3)}, Places(axes={"w": (1, 2)}), {"w": 0.1}
    )
    assert family.raw_mean[0].shape == (4,)
    family.raw_std[0][3] = 60.0
    assert family.keep_mask()["w"].all(-1).all(-1).tolist() == [
        [True, True],
        [True, True],
        [True, False],
        [True, False],
    ]


@torch.no_grad()
def test_local_outputs_have_the_moments_of_drawn_weights():
    family = family_of(threshold=1.0)
    op = bind(torch.nn.functional.linear, (None, None), {})[0].along_examples(0)
    x = torch.randn(1, 5, generator=generator("x"), dtype=torch.float64).expand(40_000, 5)
    draw = family.begin(Ambient())
    draw.prepare()
    with isolated(0):
        out = draw.local(op, x, "w", "b", Ambient())
    mean, var = family.moments(op, x[:1], torch.zeros_like(x[:1]), "w", "b")
    has_mean(out, mean[0])
    has_variance(out, var[0])


@pytest.mark.parametrize("name", ["dense", "image"])
def test_both_ways_of_writing_the_noise_agree(name):
    net, x = make(name)
    agree("structured_bp", net, x, "local", p=0.3)


def test_every_kind_of_network_has_places():
    for name in NETWORKS.keys() - {"functional"}:
        net, x = make(name)
        _, posterior = begin("structured_bp", net, x)
        assert posterior.factors[0].monitor(), name
