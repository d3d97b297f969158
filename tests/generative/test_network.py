"""The network of a latent-variable model: shapes, values, warm-up, modes."""

import pytest
import torch
from torch import nn
from zoo.latent import Linear, binary, network, real
from zoo.stats import has_mean, same_mean

from credo.core.errors import NetworkError
from credo.core.seeds import isolated
from credo.engine.training_loop import schedules
from credo.generative.bounds import Bound
from credo.generative.codes import Categorical, Diagonal, Full
from credo.generative.network import LatentNet
from credo.generative.priors import StandardNormal, Uniform
from credo.likelihoods import Bernoulli, Gaussian, Heteroscedastic, Pixels, Poisson


def make(encoder, decoder, likelihood, shape, code=None, binarise=False):
    return LatentNet(
        encoder, decoder, code or Diagonal(2), StandardNormal(2), likelihood, shape, binarise
    )


def test_a_row_per_datum_in_both_modes():
    net = network(Diagonal(2))
    x = real(5, 3, dtype=torch.float64)
    for mode in (True, False):
        out = net.train(mode)(x)
        assert out.shape == (5, 2) and out.dtype == torch.float64


@pytest.mark.parametrize("code", [Diagonal(2), Full(2)])
def test_value_and_training_value_have_the_same_mean(code):
    net = network(code)
    x = real(2, 3, dtype=torch.float64)
    with torch.no_grad(), isolated(0):
        one, two = (
            net.train(mode)(x.repeat(4000, 1)).unflatten(0, (4000, 2)) for mode in (True, False)
        )
    same_mean(one[..., 0], two[..., 0])
    torch.testing.assert_close(one[0, :, 1], two[0, :, 1])


def test_evaluation_leaves_q_and_the_decoder_without_surprises():
    """Plain draws: log w of the drawn z, recomputed by hand."""
    net = network(Diagonal(2)).eval()
    x = real(3, 3, dtype=torch.float64)
    with isolated(4):
        out = net(x)
    with isolated(4):
        q = net.posterior(x)
        z = q.sample((1,))
    fit = torch.distributions.Normal(net.decoder(z[0]), 0.7).log_prob(x).sum(-1)
    kl = torch.distributions.kl_divergence(q.base_dist, torch.distributions.Normal(0.0, 1.0)).sum(
        -1
    )
    torch.testing.assert_close(out, torch.stack([fit - kl, kl], -1))


@pytest.mark.parametrize(
    ("likelihood", "outputs", "x"),
    [
        (Gaussian(std=0.5), 1, torch.randn(4, 1)),
        (Heteroscedastic(), 2, torch.randn(4, 1)),
        (Bernoulli(), 1, torch.tensor([[0.0], [1.0], [1.0], [0.0]])),
        (Poisson(), 1, torch.tensor([[0.0], [3.0], [1.0], [2.0]])),
        (Pixels(4), 4, torch.tensor([[0], [3], [1], [2]])),
        (Bernoulli(grey=True), 1, torch.rand(4, 1)),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_one_number_per_datum(likelihood, outputs, x):
    """Some likelihoods want (N,) for a single target: neither may broadcast N data against N."""
    net = make(nn.Linear(1, 4), nn.Linear(2, outputs), likelihood, (1,)).eval()
    with isolated(0):
        together = net(x)
    assert together.shape == (4, 2)
    q = net.posterior(net.inputs(x))
    with isolated(0):
        z = q.sample((1,))
    each = torch.stack(
        [
            likelihood.log_prob(
                net.decode(z[0, i : i + 1]), likelihood.check_targets(x[i : i + 1])
            )[0]
            for i in range(4)
        ]
    )
    torch.testing.assert_close(together[:, 0] + together[:, 1], each)


def test_images_of_any_shape():
    decoder = nn.Sequential(nn.Linear(2, 32), nn.Unflatten(1, (2, 4, 4)))
    net = make(
        nn.Sequential(nn.Conv2d(2, 1, 3), nn.Flatten(), nn.Linear(4, 4)),
        decoder,
        Gaussian(std=1.0),
        (2, 4, 4),
    )
    x = torch.randn(3, 2, 4, 4)
    assert net(x).shape == (3, 2) and net.decode(torch.zeros(5, 3, 2)).shape == (5, 3, 32)
    z = torch.randn(3, 2)
    want = torch.distributions.Normal(decoder(z), 1.0).log_prob(x).flatten(1).sum(1)
    torch.testing.assert_close(net.log_fit(z.unsqueeze(0), net.targets(x))[0], want)


def test_decoding_keeps_draws_and_data_apart():
    net = network(Diagonal(2))
    z = torch.randn(4, 3, 2, dtype=torch.float64)
    torch.testing.assert_close(net.decode(z)[2, 1], net.decode(z[2, 1:2])[0])


def test_the_encoder_sees_levels_as_numbers_from_zero_to_one():
    net = make(nn.Linear(3, 4), nn.Linear(2, 12), Pixels(4), (3,))
    x = torch.tensor([[0, 3, 1]])
    assert net.inputs(x).tolist() == [[0.0, 1.0, pytest.approx(1 / 3)]]
    assert torch.equal(net.targets(x), x)


def test_an_encoder_of_another_width_is_named():
    net = make(nn.Linear(3, 5), nn.Linear(2, 3), Gaussian(std=1.0), (3,))
    with pytest.raises(
        NetworkError,
        match=r"The encoder gives shape \(7, 5\) for 7 data; .*'diagonal' with latent_dim=2 needs "
        r"\(7, 4\)",
    ):
        net(torch.randn(7, 3))
    with pytest.raises(NetworkError, match="The encoder gives shape"):
        make(nn.Unflatten(1, (3, 1)), nn.Linear(2, 3), Gaussian(std=1.0), (3,))(torch.randn(7, 3))


def test_binarised_data_are_drawn_anew_at_every_pass():
    net = make(nn.Linear(3, 4), nn.Linear(2, 3), Bernoulli(), (3,), binarise=True)
    x = torch.tensor([[0.0, 0.3, 1.0]])
    with isolated(0):
        seen = torch.cat([net.observe(x) for _ in range(5000)])
    assert set(seen.unique().tolist()) == {0.0, 1.0} and not seen[:, 0].any() and seen[:, 2].all()
    has_mean(seen[:, 1:2], [0.3])
    assert torch.isfinite(net(x)).all()


def test_without_binarising_data_are_as_they_are():
    net = make(nn.Linear(3, 4), nn.Linear(2, 3), Bernoulli(), (3,))
    x = binary(4, 3)
    assert net.observe(x) is x


# --- warm-up --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_the_weight_rises_to_beta_and_stays(name):
    net = network(Diagonal(2))
    steps = 6
    ramp = [schedules[name](step / steps, 0, 1) for step in range(steps)]
    net.train_on(Bound(beta=3.0, kl_schedule=name, kl_warmup=2), ramp)
    net.train()
    seen = [float(net.weight()) for _ in range(steps + 3)]
    assert seen == pytest.approx([3.0 * r for r in ramp] + [3.0] * 3, abs=1e-6)
    assert seen[0] == 0.0 and seen[steps - 1] < 3.0 == seen[steps]


def test_evaluation_does_not_move_the_warm_up():
    net = network(Diagonal(2))
    net.train_on(Bound(beta=3.0), [0.0, 0.5])
    x = real(2, 3, dtype=torch.float64)
    net.eval()(x)
    assert int(net.steps) == 0
    net.train()(x)
    assert int(net.steps) == 1


def test_the_climbed_gradient_follows_the_warm_up():
    """At weight 0 the KL's gradient is absent; after the ramp it is there."""
    net = network(Diagonal(2))
    x = real(2, 3, dtype=torch.float64)
    net.train_on(Bound(), [0.0])
    q = net.posterior(x)
    kl = net.prior.divergence(q).sum()
    want = torch.autograd.grad(kl, net.encoder.weight)[0]
    grads = []
    for _ in range(2):
        with isolated(7):
            grads.append(torch.autograd.grad(net.train()(x)[:, 0].sum(), net.encoder.weight)[0])
    torch.testing.assert_close(grads[0] - grads[1], want)


def test_climbing_refuses_what_the_code_does_not_have():
    from credo.core.errors import SettingError

    with pytest.raises(SettingError, match="gradient='gumbel'"):
        network(Diagonal(2)).train_on(Bound(gradient="gumbel"), [])


# --- modes ----------------------------------------------------------------------------------------


def test_more_draws_tighten_iwae_and_not_the_elbo():
    model = Linear()
    x = model.data(4)
    net = model.network(shift=0.4, stretch=1.5)
    exact = model.log_evidence(x)
    means = {}
    with isolated(0):
        for kind in ("elbo", "iwae"):
            for draws in (1, 5, 50):
                rows = net.value(x.repeat(2000, 1), Bound(bound=kind, draws=draws))[:, 0].unflatten(
                    0, (2000, 4)
                )
                means[kind, draws] = rows.mean(0), rows.var(0) / 2000
    for kind, small, large in (("iwae", 1, 5), ("iwae", 5, 50)):
        (a, va), (b, vb) = means[kind, small], means[kind, large]
        assert ((b - a) / (va + vb).sqrt() > 5).all(), "the bound increases with K"
    below, error = means["iwae", 50]
    assert ((below - exact) / error.sqrt() < 5).all()
    (a, va), (b, vb) = means["elbo", 1], means["elbo", 50]
    assert ((a - b).abs() / (va + vb).sqrt() < 5).all()


def test_a_discrete_value_is_of_one_hot_codes_in_evaluation():
    seen = []

    class Spy(nn.Module):
        def forward(self, z):
            seen.append(z)
            return z[..., :3]

    net = LatentNet(
        nn.Linear(3, 6), Spy(), Categorical(2, 3), Uniform(6, groups=2), Gaussian(std=1.0), (3,)
    )
    net.train_on(Bound(gradient="gumbel"), [])
    net.eval()(torch.randn(4, 3))
    assert set(seen[-1].unique().tolist()) == {0.0, 1.0}
    seen.clear()
    net.train()(torch.randn(4, 3))
    relaxed, hard = seen  # one for the gradient, one for the value
    assert len(relaxed.unique()) > 2 and set(hard.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("code", "gradient"), [(Categorical(2, 3), "gumbel"), (Categorical(2, 3), "score")]
)
def test_one_step_of_training_is_one_step_of_the_warm_up(code, gradient):
    """Also where the value takes a second pass, and never where the network is only evaluated."""
    net = LatentNet(
        nn.Linear(3, 6), nn.Linear(6, 3), code, Uniform(6, groups=2), Gaussian(std=1.0), (3,)
    )
    net.train_on(Bound(gradient=gradient, kl_schedule="linear", kl_warmup=1), [0.0, 0.5])
    x = torch.randn(4, 3)
    for taken in (1, 2):
        net.train()(x)
        net.eval()(x)
        assert int(net.steps) == taken
