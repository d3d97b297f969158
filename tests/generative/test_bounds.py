"""Every gradient against an exact one: quadrature for normal codes, enumeration for discrete
ones.
"""

import math

import pytest
import torch
from zoo.latent import (
    encoder_part,
    enumeration,
    exact_gradient,
    gradients,
    network,
    quadrature,
    values,
)
from zoo.stats import has_mean, same_mean

from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.generative.bounds import Bound, Parts, Score, Weighed, log_mean_exp
from credo.generative.bounds import gradients as registry
from credo.generative.codes import Categorical, Diagonal, Flow, Full
from credo.likelihoods import Bernoulli

X = torch.tensor([[0.5, -1.0, 0.3], [-0.7, 0.2, 1.1]], dtype=torch.float64)
BITS = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
PRIORS = {"normal": {}, "mixture": {"components": 3}, "vamp": {"components": 2}}
CONTINUOUS = ("reparameterised", "doubly", "score")


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("how", CONTINUOUS)
def test_elbo_gradients_of_a_diagonal_code_are_unbiased(how, draws, prior):
    net = network(Diagonal(1), prior, **PRIORS[prior])
    exact = exact_gradient(net, quadrature(net, X, nodes=64))
    has_mean(gradients(net, X, Bound(gradient=how, draws=draws), 20_000), exact)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("how", CONTINUOUS)
def test_iwae_gradients_of_a_diagonal_code_are_unbiased(how, prior):
    net = network(Diagonal(1), prior, **PRIORS[prior])
    exact = exact_gradient(net, quadrature(net, X, 2, "iwae", nodes=48))
    has_mean(gradients(net, X, Bound(bound="iwae", gradient=how, draws=2), 20_000), exact)


@pytest.mark.parametrize("bound", ["elbo", "iwae"])
@pytest.mark.parametrize("how", CONTINUOUS)
def test_gradients_with_beta_are_those_of_the_tempered_bound(how, bound):
    net = network(Diagonal(1))
    exact = exact_gradient(net, quadrature(net, X, 2, bound, weight=0.3, nodes=48))
    has_mean(gradients(net, X, Bound(bound=bound, gradient=how, draws=2, beta=0.3), 40_000), exact)


@pytest.mark.parametrize("how", CONTINUOUS)
def test_gradients_with_binary_data(how):
    net = network(Diagonal(1), likelihood=Bernoulli())
    exact = exact_gradient(net, quadrature(net, BITS, 2, "iwae", nodes=48))
    has_mean(gradients(net, BITS, Bound(bound="iwae", gradient=how, draws=2), 20_000), exact)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("how", CONTINUOUS)
def test_elbo_gradients_of_a_full_code_are_unbiased(how, prior):
    net = network(Full(2), prior, **PRIORS[prior])
    exact = exact_gradient(net, quadrature(net, X, nodes=32))
    has_mean(gradients(net, X, Bound(gradient=how), 20_000), exact)


@pytest.mark.parametrize("how", CONTINUOUS)
def test_iwae_gradients_of_a_full_code_are_unbiased(how):
    net = network(Full(2))
    exact = exact_gradient(net, quadrature(net, X, 2, "iwae", nodes=14))
    has_mean(gradients(net, X, Bound(bound="iwae", gradient=how, draws=2), 20_000), exact)


@pytest.mark.parametrize("bound", ["elbo", "iwae"])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("how", ["doubly", "score"])
def test_gradients_of_a_flow_agree_with_the_reparameterised_one(how, prior, bound):
    with isolated(3):
        net = network(Flow(2, transforms=1, hidden=4), prior, **PRIORS[prior])
    plain, other = (
        gradients(net, X, Bound(bound=bound, gradient=g, draws=2), 8_000, s)
        for s, g in enumerate(["reparameterised", how])
    )
    same_mean(plain, other)


@pytest.mark.parametrize(("bound", "draws"), [("elbo", 1), ("elbo", 2), ("iwae", 2), ("iwae", 3)])
def test_score_gradients_of_a_categorical_code_are_unbiased(bound, draws):
    """K = 1: the baseline is made of other data. IWAE: VIMCO."""
    net = network(Categorical(1 if draws == 3 else 2, 3), "uniform", groups=1 if draws == 3 else 2)
    exact = exact_gradient(net, enumeration(net, X, draws, bound))
    has_mean(gradients(net, X, Bound(bound=bound, gradient="score", draws=draws), 20_000), exact)


def test_a_single_datum_has_no_baseline_and_is_unbiased():
    net = network(Categorical(1, 3), "uniform", groups=1)
    exact = exact_gradient(net, enumeration(net, X[:1]))
    has_mean(gradients(net, X[:1], Bound(gradient="score"), 20_000), exact)


def test_the_baselines_lower_the_variance():
    net = network(Categorical(1, 3), "uniform", groups=1)
    x = torch.cat([X + 4.0, X + 4.0])  # far from zero, so that what the baseline removes is large
    one = encoder_part(net, gradients(net, x[:1], Bound(gradient="score"), 4000)).var(0).sum()
    few = (
        encoder_part(net, gradients(net, x[:1], Bound(gradient="score", draws=2), 4000))
        .var(0)
        .sum()
    )
    assert few < one / 4, "two draws alone would halve it"


def test_doubly_has_no_noise_where_q_is_exact():
    from zoo.latent import Linear

    model = Linear()
    x = model.data(3)
    net = model.network().train().requires_grad_(True)
    still = encoder_part(net, gradients(net, x, Bound(gradient="doubly"), 50))
    noisy = encoder_part(net, gradients(net, x, Bound(gradient="reparameterised"), 50))
    assert float(still.abs().max()) < 1e-9 < 1e-2 < float(noisy.std(0).max())


def test_doubly_has_less_noise_than_reparameterised_for_iwae():
    net = network(Diagonal(1))
    one, two = (
        encoder_part(net, gradients(net, X, Bound(bound="iwae", draws=32, gradient=how), 2000))
        for how in ("reparameterised", "doubly")
    )
    # Each variance of 2000 draws is known to within a third at this failure rate, even with heavy
    # tails.
    assert two.var(0).sum() < one.var(0).sum() / 2


def test_doubly_does_not_fade_with_more_draws():
    """The signal-to-noise ratio of the encoder's gradient grows with K, where the reparameterised
    one's falls (Rainforth et al. 2018).
    """
    net = network(Diagonal(1))

    def ratio(how, draws):
        rows = encoder_part(
            net, gradients(net, X, Bound(bound="iwae", draws=draws, gradient=how), 4000)
        )
        return float((rows.mean(0).square().sum() / rows.var(0).sum()).sqrt())

    assert (
        ratio("doubly", 64) > 1.2 * ratio("doubly", 4)
        and ratio("reparameterised", 64) < ratio("reparameterised", 4) / 1.2
    )


@pytest.mark.parametrize("how", ["gumbel", "straight_through"])
def test_relaxations_leave_the_decoder_and_the_closed_kl_right_enough_to_climb(how):
    """Biased, but they point uphill."""
    net = network(Categorical(2, 3), "uniform", groups=2)
    exact = exact_gradient(net, enumeration(net, X))
    rows = gradients(net, X, Bound(gradient=how, temperature=0.5), 4000)
    assert float(torch.cosine_similarity(rows.mean(0), exact, 0)) > 0.9


# --- values ---------------------------------------------------------------------------------------

SETTINGS = [
    {"gradient": "reparameterised"},
    {"gradient": "reparameterised", "beta": 7.0},
    {"gradient": "reparameterised", "free_bits": 5.0},
    {"gradient": "doubly", "beta": 0.0},
    {"gradient": "score", "beta": 3.0, "draws": 2},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("prior", PRIORS)
def test_the_value_is_the_bound_at_beta_one_whatever_is_climbed(settings, prior):
    net = network(Diagonal(1), prior, **PRIORS[prior])
    net.train_on(Bound(**settings), [0.0] * 10**6)
    has_mean(
        values(net, X, 20_000).sum(1, keepdim=True),
        quadrature(net, X, nodes=64).detach().unsqueeze(0),
    )


@pytest.mark.parametrize("how", CONTINUOUS)
def test_the_value_of_iwae_with_beta(how):
    net = network(Diagonal(1))
    net.train_on(Bound(bound="iwae", draws=2, gradient=how, beta=0.2), [])
    has_mean(
        values(net, X, 20_000).sum(1, keepdim=True),
        quadrature(net, X, 2, "iwae", nodes=48).detach().unsqueeze(0),
    )


@pytest.mark.parametrize("how", ["gumbel", "straight_through", "score"])
def test_the_value_of_a_discrete_code_is_the_bound_and_not_that_of_a_relaxation(how):
    net = network(Categorical(2, 3), "uniform", groups=2)
    net.train_on(Bound(gradient=how, temperature=2.0), [])
    has_mean(values(net, X, 20_000).sum(1, keepdim=True), enumeration(net, X).detach().unsqueeze(0))


def test_the_second_output_is_the_kl_and_carries_no_gradient():
    net = network(Diagonal(2))
    out = net.train()(X)
    q = net.posterior(X)
    want = torch.distributions.kl_divergence(q.base_dist, torch.distributions.Normal(0.0, 1.0)).sum(
        -1
    )
    torch.testing.assert_close(out[:, 1], want.detach())
    (grads,) = torch.autograd.grad(out[:, 1].sum() + 0.0 * out[:, 0].sum(), [net.encoder.weight])
    assert float(grads.abs().max()) == 0.0


# --- free bits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reparameterised", "score"])
@pytest.mark.parametrize("prior", ["normal", "mixture"])
def test_below_the_free_bits_the_kl_costs_nothing(how, prior):
    """With all of it free the gradient is that of the fit alone: beta = 0."""
    net = network(Diagonal(1), prior, **PRIORS[prior])
    exact = exact_gradient(net, quadrature(net, X, weight=0.0, nodes=64))
    has_mean(gradients(net, X, Bound(gradient=how, free_bits=1e6), 20_000), exact)


@pytest.mark.parametrize("how", ["reparameterised", "score"])
def test_above_the_free_bits_the_kl_counts_whole(how):
    net = network(Diagonal(1))
    exact = exact_gradient(net, quadrature(net, X, nodes=64))
    has_mean(gradients(net, X, Bound(gradient=how, free_bits=1e-6), 20_000), exact)


def test_free_bits_are_counted_per_variable_on_the_average_of_the_batch():
    closed = torch.tensor([[0.2, 3.0], [0.6, 0.0]], dtype=torch.float64, requires_grad=True)
    zeros = torch.zeros(1, 2, dtype=torch.float64)
    climb = registry["reparameterised"](Bound(free_bits=0.5), 2)
    climb.objective(Parts(zeros, zeros, zeros, closed, 2.0)).sum().backward()
    assert torch.equal(closed.grad, torch.tensor([[0.0, -2.0], [0.0, -2.0]], dtype=torch.float64))
    together = torch.tensor(
        [[0.9], [0.9]], dtype=torch.float64, requires_grad=True
    )  # one column for both variables
    climb.objective(Parts(zeros, zeros, zeros, together, 1.0)).sum().backward()
    assert float(together.grad.abs().max()) == 0.0, "0.9 nats are below 2 x 0.5"


# --- pieces ---------------------------------------------------------------------------------------


def test_vimco_baselines_are_the_bounds_of_the_others():
    log_w = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = Score(Bound(bound="iwae", draws=4), 2)._without(log_w)
    for k in range(4):
        rest = torch.cat([log_w[:k], log_w[k + 1 :]])
        torch.testing.assert_close(
            found[k], log_mean_exp(torch.cat([rest, rest.mean(0, keepdim=True)]))
        )


def test_weighed_multiplies_by_the_share_whatever_the_scale_of_the_objective():
    z = torch.randn(3, 2, 1, dtype=torch.float64, requires_grad=True)
    shares = torch.softmax(
        torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 0
    )
    for scale in (1.0, -0.01, 1e-30):
        out, tag = Weighed.apply(z)
        (grads,) = torch.autograd.grad(
            scale * ((shares * (out.squeeze(-1) + tag[:-1])).sum() + tag[-1].sum()), z
        )
        torch.testing.assert_close(grads.squeeze(-1), scale * shares.square(), rtol=1e-10, atol=0)
    out, tag = Weighed.apply(z)
    (grads,) = torch.autograd.grad(
        0.0 * ((shares * (out.squeeze(-1) + tag[:-1])).sum() + tag[-1].sum()), z
    )
    assert float(grads.abs().max()) == 0.0


def test_log_mean_exp_of_very_small_numbers():
    values = torch.tensor([-1e5, -1e5 + math.log(3.0)], dtype=torch.float64)
    assert float(log_mean_exp(values)) == pytest.approx(-1e5 + math.log(2.0), abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bound": "vlb"}, "bound='vlb' is not valid; expected one of elbo, iwae"),
        ({"draws": 0}, "draws=0 is not valid"),
        ({"free_bits": 1.0, "gradient": "doubly"}, "not 'doubly'"),
        ({"draws": 1.5}, "draws=1.5 is not valid"),
        ({"beta": -1.0}, "beta=-1.0"),
        ({"beta": math.nan}, "beta=nan"),
        ({"gradient": "magic"}, "gradient='magic'"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"free_bits": 0.1, "bound": "iwae"}, "free_bits go with bound='elbo'"),
        ({"kl_warmup": 3}, "kl_warmup needs a schedule that rises"),
        ({"kl_schedule": "linear"}, "needs kl_warmup"),
    ],
)
def test_bad_settings_are_named(settings, words):
    with pytest.raises(SettingError, match=words):
        Bound(**settings)


@pytest.mark.parametrize(
    ("code", "settings", "words"),
    [
        (
            Diagonal(2),
            {"gradient": "gumbel"},
            "gradient='gumbel' is not for the latent posterior 'diagonal'; it has reparameterised",
        ),
        (
            Categorical(2),
            {"gradient": "doubly"},
            "gradient='doubly' is not for the latent posterior 'categorical'",
        ),
        (Diagonal(2), {"gradient": "score", "bound": "iwae"}, "needs draws of at least 2"),
    ],
)
def test_gradients_that_a_code_does_not_have(code, settings, words):
    with pytest.raises(SettingError, match=words):
        Bound(**settings).gradient_for(code)


def test_every_code_has_a_gradient_by_default():
    for code in (Diagonal(2), Full(2), Flow(2), Categorical(2)):
        assert Bound().gradient_for(code).name == code.gradients[0]
