"""What a fitted autoencoder hands out: networks, likelihood and prior as learned, draws of weights
in place.
"""

import copy

import pytest
import torch
from torch import nn
from zoo.latent import QUICK, STILL, Linear, binary, coder, real, vae

from credo.core.errors import CredoError, DataError, SettingError
from credo.generative import VAE, Autoencoder
from credo.generative.codes import Categorical, Flow
from credo.generative.latent_queries import centre, means
from credo.generative.priors import Mixture, Vamp
from credo.likelihoods import Gaussian

FAST = QUICK | {"lr": 0.2, "epochs": 4}


def noisy(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Tanh(), nn.Linear(5, outputs)
    )


def plain_pass(model, x):
    """Reconstructions by the networks that are handed out, without the library."""
    encoder, decoder = model.networks()
    with torch.no_grad():
        z = centre(model.code.at(encoder(x)))
        return z, model.likelihood.moments(decoder(z))[0]


# --- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["mle", "map", "vi", "mc_dropout", "concrete_dropout"])
def test_networks_do_what_the_model_does(method):
    x = real()
    model = vae().fit(x, method, **FAST)
    z, out = plain_pass(model, x)
    torch.testing.assert_close(z, model.encode(x).mean)
    with torch.no_grad(), model.placed(None) as net:
        torch.testing.assert_close(out, means(net, z))
    if method in ("mle", "map"):
        torch.testing.assert_close(out, model.reconstruct(x))
        torch.testing.assert_close(out, model.decode(z))


def test_networks_are_copies_in_evaluation_mode():
    model = vae()
    before = copy.deepcopy(model.encoder.state_dict())
    model.fit(real(), **FAST)
    encoder, decoder = model.networks()
    assert (
        encoder is not model.encoder
        and not encoder.training
        and not any(m.training for m in decoder.modules())
    )
    assert not torch.equal(encoder[0].weight, before["0.weight"]) and torch.equal(
        model.encoder[0].weight, before["0.weight"]
    )
    with torch.no_grad():
        for part in (encoder, decoder):
            for parameter in part.parameters():
                parameter.zero_()
    assert bool(model.networks()[0][0].weight.any()), (
        "what is done to a copy does nothing to the model"
    )
    assert bool(model.reconstruct(real()).any())


def test_running_statistics_come_along():
    model = VAE(noisy(6, 4), noisy(2, 6), 2, "gaussian").fit(
        real() + 3.0, **FAST | {"batch_size": 20}
    )
    encoder, decoder = model.networks()
    assert bool(encoder[1].running_mean.any()) and int(decoder[1].num_batches_tracked) > 0
    assert not bool(model.encoder[1].running_mean.any())
    z, out = plain_pass(model, real())
    torch.testing.assert_close(z, model.encode(real()).mean)
    torch.testing.assert_close(out, model.reconstruct(real()))


def test_frozen_parameters_come_along():
    model = vae()
    model.decoder[0].weight.requires_grad_(False)
    model.fit(real(), **FAST)
    _, decoder = model.networks()
    assert torch.equal(decoder[0].weight, model.decoder[0].weight) and not torch.equal(
        decoder[2].weight, model.decoder[2].weight
    )
    torch.testing.assert_close(plain_pass(model, real())[1], model.reconstruct(real()))


def test_networks_can_be_trained_on():
    model = vae().fit(real(), **STILL)
    encoder, decoder = model.networks()
    decoder(encoder(real())[:, :2]).square().sum().backward()
    assert all(p.grad is not None for part in (encoder, decoder) for p in part.parameters())


def test_networks_that_share_a_layer_share_its_fitted_weight():
    class Back(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, z):
            return z @ self.layer.weight[:2]

    layer = nn.Linear(6, 4)
    model = VAE(layer, Back(layer), 2, "gaussian").fit(real(), **FAST)
    encoder, decoder = model.networks()
    assert torch.equal(encoder.weight, decoder.layer.weight)
    torch.testing.assert_close(plain_pass(model, real())[1], model.reconstruct(real()))


def test_an_autoencoders_networks():
    model = Autoencoder(coder(6, 2), coder(2, 6), 2, "gaussian").fit(real(), **FAST)
    encoder, decoder = model.networks()
    with torch.no_grad():
        torch.testing.assert_close(decoder(encoder(real())), model.reconstruct(real()))


def test_before_a_fit_there_are_no_networks_to_give():
    model = vae()
    with pytest.raises(CredoError, match="not fitted yet"):
        model.networks()
    assert model.encoder.training and model.decoder.training


# --- likelihood and prior -------------------------------------------------------------------------


def values(module):
    return {name: t.detach().clone() for name, t in module.state_dict().items()}


def test_the_likelihood_holds_the_learned_deviation():
    """Data of a known deviation, an exact model of their mean: the fitted value is the maximum
    likelihood one.
    """
    exact = Linear(std=0.6)
    x = exact.data(500)
    model = VAE(exact.encoder(), exact.decoder(), 2, Gaussian(initial_std=2.0))
    first = values(model.likelihood)
    model.fit(x, epochs=150, batch_size=None, lr=0.02, progress=False)
    last = values(model.likelihood)
    assert any(not torch.equal(first[name], last[name]) for name in first)
    state = model.bnn.posterior.mean()
    assert all(
        torch.equal(last[n.removeprefix("likelihood.")], t)
        for n, t in state.items()
        if n.startswith("likelihood.")
    )
    variance = model.likelihood.moments(torch.zeros(1, 4, dtype=torch.float64))[1]
    assert bool(
        (variance.sqrt() - 0.6).abs().max() < 0.1
    )  # sampling error of a deviation from 2,000 numbers is about 0.01


@pytest.mark.parametrize("prior", [Mixture(2, 3), Vamp(2, 3)])
def test_the_prior_holds_what_was_learned(prior):
    model = vae(prior=prior)
    first = values(model.prior)
    model.fit(real(), **FAST)
    last = values(model.prior)
    state = {
        n.removeprefix("prior."): t
        for n, t in model.bnn.posterior.mean().items()
        if n.startswith("prior.")
    }
    assert state and all(torch.equal(last[name], t) for name, t in state.items())
    assert any(
        name not in first or first[name].shape != t.shape or not torch.equal(first[name], t)
        for name, t in state.items()
    )


def test_what_is_handed_out_is_a_copy():
    model = vae(prior=Mixture(2, 3)).fit(real(), **FAST)
    before = model.elbo(real())
    with torch.no_grad():
        for part in (model.prior, model.likelihood):
            for parameter in part.parameters():
                parameter.fill_(7.0)
    assert torch.equal(model.elbo(real()), before)


def test_before_a_fit_they_are_as_given():
    model = vae(prior="normal")
    assert model.prior.name == "normal" and model.likelihood.name == "gaussian"


# --- draws of the weights -------------------------------------------------------------------------


def test_placed_puts_one_draw_or_the_mean_into_the_network():
    model = vae().fit(real(), "vi", **FAST)
    draws = model.bnn.posterior.realise([0, 1], 3)
    for number in (0, 1):
        with model.placed(number, 3) as net:
            assert (
                torch.equal(net.decoder[0].weight, draws["decoder.0.weight"][number])
                and not net.training
            )
    with model.placed(None) as net:
        assert torch.equal(net.decoder[0].weight, model.bnn.posterior.mean()["decoder.0.weight"])
    assert not torch.equal(draws["decoder.0.weight"][0], draws["decoder.0.weight"][1])


def test_a_draw_is_fixed_by_number_and_seed():
    model = vae().fit(real(), "vi", **FAST)

    def weight(number, seed):
        with model.placed(number, seed) as net:
            return net.decoder[0].weight.detach().clone()

    assert torch.equal(weight(2, 1), weight(2, 1))
    assert not torch.equal(weight(2, 1), weight(2, 2)) and not torch.equal(
        weight(2, 1), weight(3, 1)
    )


def test_points_have_the_same_weights_at_every_draw():
    model = vae().fit(real(), **FAST)
    with model.placed(0, 0) as net:
        first = net.decoder[0].weight.detach().clone()
    with model.placed(None) as net:
        assert torch.equal(first, net.decoder[0].weight)


def test_placed_leaves_the_callers_network_and_the_stored_one():
    model = vae().fit(real(), "vi", **FAST)
    before = copy.deepcopy(model.bnn.net.state_dict())
    with model.placed(0) as net:
        assert net is not model.bnn.net
    assert (
        all(torch.equal(before[name], t) for name, t in model.bnn.net.state_dict().items())
        and model.bnn.net.training
    )


def test_how_many_draws_stand_for_the_weights():
    points, spread = vae().fit(real(), **STILL), vae().fit(real(), "vi", **STILL)
    assert (
        points.numbers(5, 0) == [0]
        and spread.numbers(5, 0) == [0, 1, 2, 3, 4]
        and len(spread.numbers(1, 9)) == 1
    )


@pytest.mark.parametrize("samples", [0, -1, 1.5, True, "2"])
def test_bad_numbers_of_draws_are_refused(samples):
    model = vae().fit(real(), **STILL)
    for call in (
        lambda: model.numbers(samples, 0),
        lambda: model.decode(torch.zeros(1, 2), samples=samples),
        lambda: model.reconstruct(real(), samples),
    ):
        with pytest.raises(SettingError, match="samples="):
            call()


@pytest.mark.parametrize("seed", [0.5, None, True, "0"])
def test_bad_seeds_are_refused(seed):
    model = vae().fit(real(), "vi", **STILL)
    drawn = vae("bernoulli", binarise=True).fit(binary(), **STILL)
    calls = {
        "numbers": lambda: model.numbers(1, seed),
        "decode": lambda: model.decode(torch.zeros(1, 2), seed=seed),
        "reconstruct": lambda: model.reconstruct(real(), seed=seed),
        "encode": lambda: drawn.encode(binary(), seed=seed),
    }
    for name, call in calls.items():
        with pytest.raises(SettingError, match="seed="):
            call()
            pytest.fail(name)


# --- codes and decoding ---------------------------------------------------------------------------


def test_draws_of_weights_are_averaged_after_the_decoder():
    model = vae().fit(real(), "vi", **FAST)
    z, each = torch.randn(3, 2), []
    for number in range(4):
        with torch.no_grad(), model.placed(number, 5) as net:
            each.append(means(net, z))
    torch.testing.assert_close(model.decode(z, samples=4, seed=5), torch.stack(each).mean(0))


@pytest.mark.parametrize(
    ("z", "words"),
    [
        (torch.zeros(3), r"\(3,\); expected \(N, 2\)"),
        (torch.zeros(3, 3), r"\(3, 3\)"),
        (torch.zeros(2, 3, 2), r"\(2, 3, 2\)"),
        ((torch.zeros(3, 2), torch.zeros(3, 2)), "tuple"),
        (torch.full((1, 2), torch.nan), "z has NaN at row 0"),
        ("z", "a str"),
    ],
)
def test_codes_of_another_shape_are_refused(z, words):
    with pytest.raises(DataError, match=words):
        vae().fit(real(), **STILL).decode(z)


def test_codes_may_be_arrays_and_whole_numbers():
    model = vae().fit(real(), **STILL)
    wanted = model.decode(torch.ones(3, 2))
    for z in (
        torch.ones(3, 2).long(),
        torch.ones(3, 2).double(),
        torch.ones(3, 2).numpy(),
        [[1.0, 1.0]] * 3,
    ):
        assert torch.equal(model.decode(z), wanted)


def test_a_posterior_that_is_handed_out_has_no_gradient_and_the_right_shape():
    for model in (
        vae(),
        vae(posterior=Flow(2, 1, 4)),
        vae("bernoulli", posterior=Categorical(2, 3)),
    ):
        x = binary()
        q = model.fit(x, **QUICK).encode(x[:7])
        z = q.sample()
        assert (
            q.batch_shape == (7,)
            and z.shape == (7, model.code.size)
            and q.log_prob(z).shape == (7,)
        )
        assert not q.log_prob(z).requires_grad and centre(q).shape == z.shape
    assert bool((centre(q).sum(-1) == 2).all()), "one-hot rows of two variables"


def test_history_and_sizes():
    model = vae()
    assert model.history == [] and model.latent_dim == 2
    model.fit(real(), **QUICK)
    assert len(model.history) == 2 and model.history is model.bnn.history and model.shape == (6,)
    with pytest.raises(CredoError, match="This VAE is not fitted yet"):
        vae().bnn  # noqa: B018
