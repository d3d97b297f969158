"""What autoencoders share: data of every kind, refusals, the caller's networks, seeds, shapes."""

import copy

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from zoo.latent import QUICK, STILL, binary, coder, real, vae

from credo.core.errors import CredoError, DataError, SettingError
from credo.generative import VAE, Autoencoder
from credo.generative.codes import Diagonal
from credo.generative.priors import Mixture, Vamp
from credo.likelihoods import Bernoulli, Gaussian, Pixels
from credo.nets import conv_decoder, conv_encoder


class Rows(Dataset):
    """Data without anything beside them."""

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


KINDS = {
    "tensor": lambda x: x,
    "double": lambda x: x.double(),
    "numpy": lambda x: x.numpy(),
    "list": lambda x: x.tolist(),
    "frame": lambda x: pd.DataFrame(x.numpy()),
    "pairs": lambda x: TensorDataset(x, torch.arange(len(x))),
    "loader of pairs": lambda x: DataLoader(TensorDataset(x, torch.arange(len(x))), batch_size=16),
    "shuffled loader": lambda x: DataLoader(
        TensorDataset(x, torch.zeros(len(x))), batch_size=16, shuffle=True
    ),
    "rows alone": Rows,
    "tensor data set alone": TensorDataset,
    "loader of rows alone": lambda x: DataLoader(TensorDataset(x), batch_size=16),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data(kind):
    x = real()
    fitted = vae().fit(KINDS[kind](x), **QUICK)
    assert (
        len(fitted.history) == 2 and fitted.shape == (6,) and torch.isfinite(fitted.elbo(x)).all()
    )
    if kind in ("double", "numpy", "list", "frame", "pairs"):
        assert torch.equal(fitted.elbo(x), vae().fit(x, **QUICK).elbo(x)), (
            "the same numbers, whatever holds the data"
        )


def test_evaluation_takes_arrays_and_frames():
    x = real()
    fitted = vae().fit(x, **QUICK)
    for form in (x.numpy(), pd.DataFrame(x.numpy()), x.double(), x.tolist()):
        assert torch.equal(fitted.elbo(form), fitted.elbo(x))


@pytest.mark.parametrize(
    ("likelihood", "x", "per"),
    [
        ("gaussian", real(), 1),
        ("laplace", real(), 1),
        ("student_t", real(), 1),
        ("heteroscedastic", real(), 2),
        ("bernoulli", binary(), 1),
        ("bernoulli", binary().bool(), 1),
        ("bernoulli", binary().long(), 1),
        (Bernoulli(grey=True), torch.rand(40, 6), 1),
        ("continuous_bernoulli", torch.rand(40, 6), 1),
        ("poisson", torch.poisson(torch.full((40, 6), 2.0)), 1),
        (Pixels(4), torch.randint(0, 4, (40, 6)), 4),
        (Pixels(4), torch.randint(0, 4, (40, 6)).to(torch.uint8), 4),
        (Pixels(4), torch.randint(0, 4, (40, 6)).float(), 4),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_likelihood_in_both_precisions(likelihood, x, per, dtype):
    fitted = vae(likelihood, per=per, dtype=dtype).fit(x, **QUICK)
    values = fitted.elbo(x)
    assert values.shape == (40,) and values.dtype == dtype and torch.isfinite(values).all()
    assert fitted.sample(3, noise=True).shape == fitted.reconstruct(x[:3]).shape == (3, 6)
    assert fitted.latent_kl(x).dtype == dtype and (fitted.latent_kl(x) >= 0).all()
    assert fitted.log_marginal(x[:3], k=3).shape == (3,)


@pytest.mark.parametrize("prior", [Mixture(2, 3), Vamp(2, 3)])
@pytest.mark.parametrize("posterior", ["diagonal", "full", "flow"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_code_and_prior_in_both_precisions(posterior, prior, dtype):
    fitted = vae(posterior=posterior, prior=prior, dtype=dtype).fit(real(), **QUICK)
    assert fitted.elbo(real()).dtype == dtype and torch.isfinite(fitted.elbo(real())).all()
    assert fitted.sample(4).dtype == dtype and fitted.log_marginal(real(3), k=2).shape == (3,)


def test_binarised_whole_numbers():
    assert torch.isfinite(
        vae("bernoulli", binarise=True).fit(binary().long(), **QUICK).elbo(binary().long())
    ).all()


def test_images_with_convolutions():
    x = torch.rand(20, 1, 8, 8)
    encoder, decoder = conv_encoder((1, 8, 8), 4, (4,), 8), conv_decoder(2, (1, 8, 8), 1, (4,), 8)
    fitted = VAE(encoder, decoder, 2, "continuous_bernoulli").fit(x, **QUICK)
    assert fitted.shape == (1, 8, 8) and fitted.reconstruct(x[:3]).shape == fitted.sample(
        3
    ).shape == (3, 1, 8, 8)
    assert fitted.decode(torch.zeros(2, 2)).shape == (2, 1, 8, 8) and fitted.elbo(x).shape == (20,)


@pytest.mark.parametrize("x", [real(40, 1), real(40, 1)[:, 0]])
def test_one_number_per_datum(x):
    fitted = VAE(coder(1, 2), coder(1, 1), 1, "gaussian").fit(x, **QUICK)
    assert (
        fitted.shape == (1,) and fitted.elbo(x).shape == (40,) and fitted.sample(3).shape == (3, 1)
    )


@pytest.mark.parametrize("n", [1, 2, 15, 17, 33])
def test_few_data_and_last_batches_of_one(n):
    fitted = vae().fit(real(n), **QUICK)
    assert fitted.elbo(real(n)).shape == (n,)


# --- the caller's things --------------------------------------------------------------------------


def noisy(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, outputs)
    )


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("method", ["mle", "vi"])
def test_the_callers_networks_are_left_as_found(method, mode):
    encoder, decoder = noisy(6, 4).train(mode), noisy(2, 6).train(mode)
    before = copy.deepcopy((encoder.state_dict(), decoder.state_dict()))
    model = VAE(encoder, decoder, 2, "gaussian").fit(real(), method, **QUICK | {"batch_size": 20})
    model.elbo(real())
    model.sample(3)
    for old, net in zip(before, (encoder, decoder), strict=True):
        assert all(torch.equal(old[name], value) for name, value in net.state_dict().items())
        assert all(module.training is mode for module in net.modules())
        assert all(p.grad is None and p.requires_grad for p in net.parameters())


@pytest.mark.parametrize("method", ["mle", "map", "vi"])
def test_networks_in_evaluation_mode_are_trained_in_training_mode(method):
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            if torch.is_grad_enabled():
                seen.append(self.training)
            return x

    encoder, decoder = nn.Sequential(coder(6, 4), Spy()).eval(), coder(2, 6).eval()
    VAE(encoder, decoder, 2, "gaussian").fit(real(), method, **QUICK)
    assert seen and all(seen[1:])


def test_the_callers_likelihood_code_and_prior_are_left_as_found():
    likelihood, prior, code = Gaussian(), Mixture(2, 3), Diagonal(2)
    before = copy.deepcopy((likelihood.state_dict(), prior.state_dict()))
    VAE(coder(6, 4), coder(2, 6), 2, likelihood, posterior=code, prior=prior).fit(
        real(), **QUICK | {"lr": 0.3}
    )
    for old, thing in zip(before, (likelihood, prior), strict=True):
        assert all(torch.equal(old[name], value) for name, value in thing.state_dict().items())


@pytest.mark.parametrize("method", ["mle", "vi", "stochastic", "mc_dropout"])
def test_the_global_generator_is_left_as_found(method):
    x = real()
    decoder = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 6))
    state = torch.get_rng_state()
    model = VAE(coder(6, 4), decoder, 2, "gaussian").fit(x, method, **QUICK)
    assert torch.equal(state, torch.get_rng_state()), "fit"
    calls = {
        "elbo": lambda: model.elbo(x),
        "log_marginal": lambda: model.log_marginal(x, k=3),
        "annealed": lambda: model.annealed(x[:2], 2, 2, 2) if method != "stochastic" else None,
        "sample": lambda: model.sample(3, noise=True),
        "simulate": lambda: model.simulate(3),
        "decode": lambda: model.decode(torch.zeros(2, 2), samples=3),
        "reconstruct": lambda: model.reconstruct(x),
        "encode": lambda: model.encode(x),
        "objective": lambda: model.objective(x),
    }
    for name, call in calls.items():
        call()
        assert torch.equal(state, torch.get_rng_state()), name


# --- seeds and batches ----------------------------------------------------------------------------


def test_a_seed_fixes_a_fit_and_another_changes_it():
    one, two, three = (vae().fit(real(), seed=seed, **QUICK).elbo(real()) for seed in (0, 0, 1))
    assert torch.equal(one, two) and not torch.equal(one, three)


def test_a_second_fit_starts_again():
    model = vae()
    first = model.fit(real(), **QUICK).elbo(real())
    assert torch.equal(first, model.fit(real(), **QUICK).elbo(real()))


@pytest.mark.parametrize("name", ["elbo", "latent_kl", "log_marginal"])
def test_a_seed_fixes_every_number(name):
    model = vae(posterior="flow").fit(real(), **QUICK)
    settings = {"k": 3} if name == "log_marginal" else {"draws": 2}
    one, two, three = (getattr(model, name)(real(), seed=seed, **settings) for seed in (0, 0, 1))
    assert torch.equal(one, two) and not torch.equal(one, three)


def test_batches_only_change_the_noise():
    """Of a thousand draws each; the difference of two means of 40 data, against its standard
    error.
    """
    model = vae().fit(real(), **QUICK)
    one, two = model.elbo(real(), draws=1000), model.elbo(real(), draws=1000, batch_size=7)
    rows = torch.stack([model.elbo(real(), seed=s) for s in range(50)])
    assert (
        not torch.equal(one, two)
        and ((one - two).abs() < 5 * (2 * rows.var(0) / 1000).sqrt()).all()
    )
    torch.testing.assert_close(model.latent_kl(real()), model.latent_kl(real(), batch_size=7))
    torch.testing.assert_close(model.encode(real()).mean, model.encode(real(), batch_size=7).mean)
    torch.testing.assert_close(model.reconstruct(real()), model.reconstruct(real(), batch_size=7))


def test_binary_data_are_drawn_once_per_seed_whatever_the_batches():
    """Every number of one seed is of the same binary data, or a bound could not be compared with
    what it bounds.
    """
    model = vae("bernoulli", binarise=True).fit(torch.rand(150, 6), **STILL)
    x = torch.rand(150, 6, generator=torch.Generator().manual_seed(1))
    seen = []
    for size in (None, 150, 64, 7):
        rows = []
        model.under_each_draw(
            x, lambda net, batch, rows=rows: (rows.append(batch), batch[:, 0])[1], None, 3, size
        )
        seen.append(torch.cat(rows))
    assert all(torch.equal(seen[0], other) for other in seen[1:])
    other = []
    model.under_each_draw(x, lambda net, batch: (other.append(batch), batch[:, 0])[1], None, 4)
    assert not torch.equal(seen[0], torch.cat(other))


@pytest.mark.parametrize(
    "name", ["elbo", "latent_kl", "log_marginal", "annealed", "reconstruct", "encode"]
)
@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_bad_batch_sizes_are_refused(name, size):
    with pytest.raises(SettingError, match="batch_size"):
        getattr(vae().fit(real(), **STILL), name)(real(), batch_size=size)


# --- fits -----------------------------------------------------------------------------------------


def test_pseudo_inputs_start_as_data():
    fitted = vae(prior=Vamp(2, 10)).fit(real(), **STILL)
    torch.testing.assert_close(fitted.bnn.posterior.mean()["prior.inputs"], real()[:10])


def test_pseudo_inputs_may_come_from_several_batches_of_a_loader():
    loader = DataLoader(TensorDataset(real(), torch.zeros(40)), batch_size=4)
    fitted = vae(prior=Vamp(2, 10)).fit(loader, **STILL)
    torch.testing.assert_close(fitted.bnn.posterior.mean()["prior.inputs"], real()[:10])


def test_nothing_before_a_fit():
    model = vae()
    assert model.history == [] and "not fitted" in repr(model)
    for call in (
        lambda: model.elbo(real()),
        lambda: model.sample(2),
        lambda: model.save("x"),
        lambda: model.shape,
    ):
        with pytest.raises(CredoError, match="not fitted yet; call fit"):
            call()


def test_a_fit_that_fails_leaves_the_last_one():
    model = vae().fit(real(), **QUICK)
    before = model.elbo(real())
    with pytest.raises(DataError):
        model.fit(torch.full((5, 6), torch.nan))
    assert torch.equal(before, model.elbo(real()))


# --- history, warm-up, validation -----------------------------------------------------------------


def test_history_is_in_nats_per_datum_and_per_data_set():
    fitted = vae().fit(real(), **QUICK)
    row = fitted.history[-1]
    assert row["elbo"] == pytest.approx(-row["nll"] - row["kl"]) and row["kl"] == 0.0
    assert row["elbo"] == pytest.approx(40 * row["bound"], rel=1e-5) and row["latent_kl"] > 0


def test_history_does_not_see_beta_free_bits_or_warm_up():
    """At a standstill all of them give the numbers of plain training: the same draws, the same
    bound.
    """
    plain = vae().fit(real(), **STILL | {"epochs": 3})
    for settings in ({"beta": 9.0}, {"free_bits": 3.0}, {"kl_schedule": "linear", "kl_warmup": 2}):
        other = vae().fit(real(), **STILL | {"epochs": 3}, **settings)
        assert [r["bound"] for r in other.history] == [r["bound"] for r in plain.history]
        assert torch.equal(other.elbo(real()), plain.elbo(real()))


def test_history_of_part_of_a_data_set():
    row = vae().fit(real(), num_data=400, **STILL).history[-1]
    assert row["elbo"] == pytest.approx(400 * row["bound"], rel=1e-5)


@pytest.mark.parametrize(
    ("batch_size", "loader"), [(16, False), (None, False), (1000, False), (16, True)]
)
def test_the_warm_up_takes_exactly_its_epochs(batch_size, loader):
    x = real()
    data = DataLoader(TensorDataset(x, torch.zeros(40)), batch_size=16) if loader else x
    fitted = vae().fit(
        data, kl_schedule="linear", kl_warmup=3, **QUICK | {"batch_size": batch_size, "epochs": 5}
    )
    net = fitted.bnn.net
    per_epoch = 3 if batch_size == 16 else 1
    assert (
        len(net.ramp) == 3 * per_epoch + 1
        and float(net.ramp[-1]) == 1.0
        and float(net.ramp[-2]) < 1.0
    )
    assert int(fitted.bnn.buffers["steps"]) == 5 * per_epoch, (
        "one step of the ramp per step of the optimizer"
    )


@pytest.mark.parametrize(
    "settings", [{"method": "vi", "train_samples": 3}, {"method": "bbvi", "train_samples": 2}]
)
def test_several_draws_of_weights_are_one_step_of_the_warm_up(settings):
    fitted = vae().fit(real(), kl_schedule="linear", kl_warmup=3, **QUICK, **settings)
    assert int(fitted.bnn.buffers["steps"]) == 6


def test_warm_up_matters():
    one, two = (
        vae().fit(real(), **QUICK | {"lr": 0.1}, **s).elbo(real())
        for s in ({}, {"kl_schedule": "cosine", "kl_warmup": 2})
    )
    assert not torch.equal(one, two)


def test_validation_is_watched_and_changes_nothing():
    plain, watched = (
        vae().fit(real(), **QUICK),
        vae().fit(real(), validation=real(20, seed=1) * 20, **QUICK),
    )
    for a, b in zip(plain.history, watched.history, strict=True):
        assert a["bound"] == b["bound"] and a["elbo"] == b["elbo"]
        assert b["validation_nll"] > 10 * -a["bound"]
    assert torch.equal(plain.elbo(real()), watched.elbo(real()))


def test_callbacks_can_stop():
    assert (
        len(
            vae()
            .fit(real(), callbacks=[lambda row: row["epoch"] == 1], **QUICK | {"epochs": 9})
            .history
        )
        == 2
    )


def test_repr_says_what_it_is():
    assert repr(vae(prior="mixture")) == "VAE(diagonal q of 2, mixture prior, gaussian, not fitted)"


def test_threads_share_a_model():
    import threading

    model, x = vae().fit(real(), **QUICK), real()
    want, found = model.elbo(x, seed=1), [None] * 4

    def work(place):
        for _ in range(3):
            found[place] = model.elbo(x, seed=1)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert all(torch.equal(want, other) for other in found)


def test_a_returned_posterior_outlives_another_fit():
    model = vae(posterior="flow").fit(real(), **QUICK)
    q = model.encode(real())
    z = torch.zeros(40, 2)
    before = q.log_prob(z)
    model.fit(real(seed=3) * 3, **QUICK | {"lr": 0.1})
    model.elbo(real(seed=3))
    torch.testing.assert_close(q.log_prob(z), before)


def test_frozen_and_chosen_weights():
    encoder, decoder = coder(6, 4), coder(2, 6)
    encoder[0].weight.requires_grad_(False)
    fitted = VAE(encoder, decoder, 2, "gaussian", random="last").fit(real(), "vi", **QUICK)
    assert set(fitted.bnn.random) == {"decoder.2.weight", "decoder.2.bias"}
    assert "encoder.0.weight" not in fitted.bnn.point and "encoder.2.weight" in fitted.bnn.point


def test_an_autoencoder_is_one_too():
    assert isinstance(
        Autoencoder(coder(6, 2), coder(2, 6), 2, "gaussian")
        .fit(real(), **QUICK)
        .history[-1]["bound"],
        float,
    )
