"""The KL of masks against the derivation, quadrature and enumeration; masks hard and relaxed.

z-tests as in ``zoo.stats``.
"""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Laplace, LogNormal, Normal, StudentT
from zoo.dropout import begin, make, masks
from zoo.models import make_model
from zoo.stats import has_mean

import credo
from credo.core.errors import CredoError
from credo.core.seeds import Ambient, Streams, generator, isolated
from credo.engine.elbo import Elbo
from credo.engine.step import make_step
from credo.estimators import estimators
from credo.likelihoods import Gaussian
from credo.posteriors import ConcreteDropout, Dropout, Places, Posterior
from credo.posteriors.dropout import bernoulli_entropy, length_scale, weight_decay
from credo.priors import Fixed, horseshoe, log_uniform

N = 50  # size of the imagined data set
W = torch.randn(2, 3, generator=generator("w"), dtype=torch.float64)
PLACES = Places(axes={"w": (1, 1)})


def fixed(value=W, p=0.3):
    return Dropout.start({"w": value}, PLACES, {"w": p})


def learned(value=W, logits=(-1.0, 0.2, 1.5), per="unit", temperature=0.1):
    family = ConcreteDropout.start({"w": value}, PLACES, {"w": 0.3}, per, temperature)
    with torch.no_grad():
        family.logits[0].copy_(
            torch.tensor(logits, dtype=torch.float64) if per == "unit" else torch.tensor(logits[0])
        )
    return family


def prior(length=1.0):
    return {
        "w": Normal(
            torch.tensor(0.0, dtype=torch.float64), torch.tensor(1 / length, dtype=torch.float64)
        )
    }


def penalty(value, length, p, num_data):
    """The part of KL / N that depends on W."""
    with torch.no_grad():
        return (
            float(
                fixed(value, p).kl(prior(length))
                - fixed(torch.zeros_like(value), p).kl(prior(length))
            )
            / num_data
        )


def test_the_penalty_is_that_of_formulas_for_rescaled_and_unscaled_masks():
    for length, p, num_data in ((1.0, 0.1, 50), (3.0, 0.4, 50), (0.5, 0.8, 7)):
        found = penalty(W, length, p, num_data)
        assert math.isclose(
            found, length**2 / (2 * num_data * (1 - p)) * float(W.square().sum()), rel_tol=1e-12
        )
        unscaled = W / (1 - p)  # masks without rescaling, w = M z
        assert math.isclose(
            found,
            (1 - p) * length**2 / (2 * num_data) * float(unscaled.square().sum()),
            rel_tol=1e-12,
        )


def test_the_penalty_scales_with_data_length_scale_and_rate():
    base = penalty(W, 2.0, 0.3, N)
    assert math.isclose(penalty(W, 2.0, 0.3, 2 * N), base / 2, rel_tol=1e-12)
    assert math.isclose(penalty(W, 4.0, 0.3, N), base * 4, rel_tol=1e-12)
    assert math.isclose(penalty(W, 2.0, 0.6, N), base * (1 - 0.3) / (1 - 0.6), rel_tol=1e-12)


def test_weight_decay_and_length_scale_are_inverse():
    decay = weight_decay(2.0, 0.3, N)
    assert math.isclose(
        decay, 2 * penalty(W, 2.0, 0.3, N) / float(W.square().sum()), rel_tol=1e-12
    )  # torch halves its own
    assert math.isclose(length_scale(decay, 0.3, N), 2.0)
    assert (
        credo.posteriors.weight_decay is weight_decay
        and credo.posteriors.length_scale is length_scale
    )


def test_a_step_of_sgd_is_torchs_with_weight_decay():
    """The same network, the same masks, the same data: torch's training mode and SGD(weight_decay)
    against ELBO and plain SGD.
    """
    length, p, lr = 2.0, 0.3, 0.1
    net, x = make("dense", p=p)
    y = torch.ones(3, 2).double()
    model, posterior = begin(
        "mc_dropout", net, x, likelihood=Gaussian(std=1.0), length_scale=length
    )
    elbo = Elbo(model, posterior, estimators["local"])
    elbo.plan(model.shell(), x)
    model.shell().train(True)
    moved = list(elbo.posterior.parameters())
    with isolated(4):
        make_step(elbo, torch.optim.SGD(moved, lr=lr), N, False)(x, y, 1.0)
    decays = dict.fromkeys(dict(net.named_parameters()), length**2 / N) | {
        "3.weight": weight_decay(length, p, N)
    }
    groups = [{"params": [q], "weight_decay": decays[name]} for name, q in net.named_parameters()]
    optimizer = torch.optim.SGD(groups, lr=lr)
    net.train()
    with isolated(4):
        (0.5 * (net(x) - y).square().sum() / 3).backward()
    optimizer.step()
    ours = posterior.mean()
    assert all(
        torch.allclose(ours[name], q, rtol=1e-10, atol=1e-12) for name, q in net.named_parameters()
    )


def test_the_kl_is_that_of_two_narrow_gaussians_up_to_a_constant():
    """KL[p N(0, s^2) + (1 - p) N(m, s^2), N(0, l^-2)] by quadrature, for s far below m: minus ours
    it depends on neither m nor p.
    """
    length, s = 1.5, 1e-3
    offsets = []
    for m, p in ((0.5, 0.1), (0.5, 0.5), (-1.0, 0.3), (2.0, 0.9)):
        grid = torch.linspace(-12 * s, 12 * s, 20001, dtype=torch.float64)
        total = 0.0
        for centre in (0.0, m):
            w = centre + grid
            logs = [math.log(a) + Normal(c, s).log_prob(w) for a, c in ((p, 0.0), (1 - p, m))]
            log_q = torch.logaddexp(*logs)
            total += float(
                (log_q.exp() * (log_q - Normal(0.0, 1 / length).log_prob(w))).sum()
                * (grid[1] - grid[0])
            )
        ours = fixed(torch.tensor([[m * (1 - p)]], dtype=torch.float64), p).kl(prior(length))
        offsets.append(total - float(ours.detach()))
    expected = -0.5 * math.log(2 * math.pi * math.e * s**2) + 0.5 * length**2 * s**2
    assert all(
        math.isclose(offset, expected, abs_tol=1e-4) for offset in offsets
    )  # torch keeps l and s in single precision


def test_entropies_count_every_unit_once():
    rates = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    exact = -(rates * rates.log() + (1 - rates) * (1 - rates).log())
    assert torch.allclose(bernoulli_entropy(rates), exact)
    assert torch.equal(bernoulli_entropy(torch.tensor([0.0, 1.0])), torch.zeros(2))
    units = learned(logits=tuple((rates / (1 - rates)).log().tolist()))
    assert torch.allclose(units.entropy(), exact.sum()) and torch.allclose(
        units.kl(prior()), -exact.sum() + _data_free(units)
    )
    layer = learned(per="layer")
    assert torch.allclose(layer.entropy(), 3 * bernoulli_entropy(layer.rate("w")))
    image = ConcreteDropout.start(
        {"w": W}, Places(masks={"d.mask0": (1, 5, 1, 1)}), {"d.mask0": 0.2}, "layer", 0.1
    )
    assert torch.allclose(
        image.entropy(), 5 * bernoulli_entropy(torch.tensor(0.2, dtype=torch.float64))
    )


def _data_free(family):
    """-E[log p(w)] under N(0, 1): the weights' second moments are W^2 / (1 - p)."""
    return (0.5 * W.square() / (1 - family.rate("w")) + 0.5 * math.log(2 * math.pi)).sum()


PRIORS = {
    "normal": Normal(0.0, 0.7),
    "shifted": Normal(0.4, 0.7),
    "elementwise": Normal(torch.zeros(2, 3), torch.arange(1.0, 7.0).reshape(2, 3)),
    "laplace": Laplace(0.0, 0.6),
    "student_t": StudentT(3.0, 0.0, 0.8),
}


@pytest.mark.parametrize("name", PRIORS)
def test_the_kl_under_any_prior_is_the_sum_over_all_masks(name):
    for family in (fixed(), learned(), learned(per="layer")):
        rates = family.rate("w").detach().expand(3)
        z, mass = masks(rates)
        drawn = W * (z / (1 - rates)).unsqueeze(1)
        exact = (mass * (mass.log() - PRIORS[name].log_prob(drawn).sum((1, 2)))).sum()
        assert torch.allclose(family.kl({"w": PRIORS[name]}), exact, rtol=1e-6), type(family)


@pytest.mark.parametrize("name", PRIORS)
def test_gradients_of_the_kl(name):
    family = learned()

    def value(mean, logits):
        return torch.func.functional_call(
            _Kl(family, {"w": PRIORS[name]}),
            {"family.flat_mean": mean, "family.logits.0": logits},
            (),
        )

    inputs = (
        family.flat_mean.detach().clone().requires_grad_(),
        family.logits[0].detach().clone().requires_grad_(),
    )
    assert torch.autograd.gradcheck(value, inputs)


class _Kl(nn.Module):
    def __init__(self, family, prior):
        super().__init__()
        self.family, self.prior = family, prior

    def forward(self):
        return self.family.kl(self.prior)


@torch.no_grad()
@pytest.mark.parametrize(
    "improper", [LogNormal(0.0, 1.0, validate_args=False), log_uniform(), horseshoe()]
)
def test_a_prior_with_a_pole_or_nothing_at_zero_is_refused(improper):
    """Dropout puts weights at zero exactly, where such a density is infinite or nothing."""
    with pytest.raises(
        CredoError, match="prior of 'w' has no finite density at 0, where dropout puts its weights"
    ):
        fixed(W.abs()).kl({"w": improper})


@torch.no_grad()
def test_hard_masks_are_zero_or_rescaled_at_their_rates():
    for family in (fixed(), learned(), learned(per="layer")):
        factors = family.draw(Streams(0, range(20_000)))["w"] / W
        keep = (1 - family.rate("w")).expand(3)
        assert torch.allclose(factors * keep, (factors * keep).round(), atol=1e-12) and set(
            (factors * keep).round().unique().tolist()
        ) == {0, 1}
        has_mean((factors == 0).double(), family.rate("w").expand(3).expand(2, 3))


def test_masks_are_relaxed_while_gradients_are_recorded_and_approach_hard_ones():
    """The same uniform numbers: a colder relaxation is nearer to the hard mask, and 1 -
    sigmoid((logit p + logit u) / t) at any t.
    """
    distances = []
    for temperature in (1.0, 0.1, 0.01):
        family = learned(temperature=temperature)
        soft = family.draw(Streams(0, range(2000)))["w"] / W
        with torch.no_grad():
            hard = family.draw(Streams(0, range(2000)))["w"] / W
            u = Streams(0, range(2000)).uniform("w", (3,), W)
            logit = torch.tensor([-1.0, 0.2, 1.5], dtype=torch.float64)
            mask = 1 - torch.sigmoid((logit + torch.log(u) - torch.log1p(-u)) / temperature)
            assert torch.allclose(
                soft, (mask / (1 - torch.sigmoid(logit))).unsqueeze(1).expand_as(soft), rtol=1e-6
            )
        assert soft.requires_grad and not hard.requires_grad
        distances.append(float((soft - hard).abs().mean()))
    assert distances[0] > 3 * distances[1] > 9 * distances[2]


def test_a_fitted_posterior_draws_hard_masks_whether_or_not_gradients_are_recorded():
    """Nothing is left to learn once its parameters are frozen."""
    family = learned().requires_grad_(False)
    factors = Posterior([family]).realise(range(200), 0)["w"] / W
    assert torch.allclose(factors * (1 - family.rate("w")), (factors != 0).double(), atol=1e-12)


def test_hardened_draws_remember_what_their_masks_were_made_from():
    draw = learned().begin(Ambient())
    draw.harden()
    with isolated(0):
        factors = draw.weights(["w"])["w"] / W
    (gate,) = draw.gates
    keep = torch.sigmoid(gate.logit)
    assert gate.axis is None and torch.equal(gate.uniform < keep, factors[0].detach() != 0)
    assert torch.allclose(factors[0][factors[0] != 0], (1 / keep)[factors[0] != 0])
    factors.sum().backward()  # the rescaling has a gradient, the mask has none


def test_rates_are_watched_and_kept():
    family = learned()
    assert family.monitor() == {"rate/w": pytest.approx(float(family.rate("w").mean()))}
    assert fixed().monitor() == {} and float(fixed(p=0.25).rate("w")) == 0.25
    with torch.no_grad():
        family.logits[0].fill_(-50.0)
    assert float(family.rate("w").min()) == pytest.approx(1e-6) and math.isfinite(
        float(family.kl(prior()))
    )
    assert [tuple(dial.shape) for dial in family.rate_params()] == [
        (3,)
    ] and fixed().rate_params() == []


def test_a_whole_fit_reports_the_kl_of_its_masks():
    """history["kl"] is the closed KL of the fitted posterior, in nats per data set."""
    net, x = make("dense")
    bnn = credo.BNN(net, Gaussian(std=1.0), prior=Normal(0.0, 2.0)).fit(
        (x, torch.arange(6.0).reshape(3, 2).double()),
        "mc_dropout",
        epochs=2,
        lr=1e-12,
        progress=False,
    )
    weights = {n: p.detach() for n, p in net.named_parameters()}
    exact = sum(-Normal(0.0, 2.0).log_prob(v).sum() for n, v in weights.items())
    exact = (
        exact
        + 0.3 / 0.7 * weights["3.weight"].square().sum() / 8
        - 6 * bernoulli_entropy(torch.tensor(0.3).double())
    )
    assert bnn.history[-1]["kl"] == pytest.approx(float(exact), rel=1e-6)


def test_a_prior_by_length_scale_is_the_models_prior():
    net, x = make("dense")
    model, _ = begin("mc_dropout", net, x, length_scale=4.0)
    assert (
        isinstance(model.prior, Fixed)
        and float(model.prior.at(model.sites["0.weight"]).scale) == 0.25
    )
    assert make_model(net).prior is not model.prior
