"""The VAE against what is known: probabilistic PCA, exact posteriors and evidence; and the plain
autoencoder.
"""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal
from zoo.latent import QUICK, STILL, Linear, coder, ppca, real, vae
from zoo.stats import Z, has_mean

from credo.core.errors import SettingError
from credo.generative import VAE, Autoencoder
from credo.generative.codes import Categorical
from credo.likelihoods import Gaussian

MODEL = Linear()
X = MODEL.data(6)


# --- probabilistic PCA ----------------------------------------------------------------------------


@pytest.mark.parametrize("posterior", ["diagonal", "full"])
def test_a_linear_vae_is_probabilistic_pca(posterior):
    """Its optimum has PCA's likelihood, and the encoder is the exact posterior: what Lucas et al.

    2019 show.
    """
    x = MODEL.data(200)
    best, noise = ppca(x, 2)
    width = 4 if posterior == "diagonal" else 5
    torch.manual_seed(1)
    encoder, decoder = nn.Linear(4, width).double(), nn.Linear(2, 4).double()
    fitted = VAE(encoder, decoder, 2, Gaussian(initial_std=1.0), posterior=posterior).fit(
        x, epochs=700, lr=0.05, batch_size=None, gradient="doubly", progress=False
    )
    values = fitted.bnn.posterior.mean()
    weight, bias = values["decoder.weight"], values["decoder.bias"]
    var = float(values["likelihood.log_std"].exp() ** 2)
    cover = weight @ weight.T + var * torch.eye(4, dtype=torch.float64)
    reached = float(MultivariateNormal(bias, cover).log_prob(x).mean())
    assert reached == pytest.approx(best, abs=1e-3) and var == pytest.approx(noise, rel=0.02)
    assert float(fitted.elbo(x, draws=200).mean()) == pytest.approx(best, abs=1e-2)
    assert fitted.history[-1]["bound"] == pytest.approx(best, abs=1e-2)
    inner = weight.T @ weight + var * torch.eye(2, dtype=torch.float64)
    q = fitted.encode(x)
    mean = torch.linalg.solve(inner, weight.T @ (x - bias).T).T
    exact = var * torch.linalg.inv(inner)
    found = q.covariance_matrix[0] if posterior == "full" else torch.diag(q.variance[0])
    # Ten times the distance in nats is what a relative error of the covariance, squared, may be.
    torch.testing.assert_close(q.mean, mean, rtol=0, atol=0.05)
    torch.testing.assert_close(found, exact, rtol=0, atol=0.02)


def test_exact_weights_give_the_exact_evidence():
    model = MODEL.vae(X)
    exact = MODEL.log_evidence(X)
    torch.testing.assert_close(model.log_marginal(X, k=3), exact)
    has_mean(torch.stack([model.elbo(X, seed=s) for s in range(400)]), exact)


@pytest.mark.parametrize("proposal", ["encoder", "prior"])
def test_log_marginal_with_a_poor_encoder(proposal):
    model, exact = MODEL.vae(X, shift=0.2, stretch=1.3), MODEL.log_evidence(X)
    rows = torch.stack([model.log_marginal(X, k=50, seed=s, proposal=proposal) for s in range(200)])
    has_mean((rows - exact).exp(), torch.ones(6, dtype=torch.float64))
    assert ((rows.mean(0) - exact) / (rows.std(0) / 200**0.5) < Z).all(), (
        "in expectation a lower bound"
    )


def test_the_elbo_falls_short_by_the_kl_to_the_exact_posterior():
    model = MODEL.vae(X, shift=0.3, stretch=1.5)
    mean, cover = MODEL.posterior(X)
    q = model.encode(X)
    gap = torch.distributions.kl_divergence(q.base_dist, Normal(mean, cover.diagonal().sqrt())).sum(
        -1
    )
    has_mean(torch.stack([model.elbo(X, seed=s) for s in range(400)]), MODEL.log_evidence(X) - gap)


def test_the_weighted_bound_rises_with_the_draws_and_stays_below_the_truth():
    """In the mean: every step up by more than Z deviations of the paired differences, and never
    above by as many.
    """
    model, exact = MODEL.vae(X, shift=0.5, stretch=1.8), MODEL.log_evidence(X)
    found = [
        torch.stack([model.log_marginal(X, k=k, seed=s).mean() for s in range(300)])
        for k in (1, 2, 5, 20, 100)
    ]
    for fewer, more in pairwise(found):
        rise = more - fewer
        assert float(rise.mean() / rise.std() * len(rise) ** 0.5) > Z
    for rows in found:
        assert float((rows.mean() - exact.mean()) / rows.std() * len(rows) ** 0.5) < Z
    assert float(exact.mean() - found[-1].mean()) < 0.1 * float(exact.mean() - found[0].mean())


def test_latent_kl_is_torchs():
    model = MODEL.vae(X)
    q = model.encode(X)
    torch.testing.assert_close(
        model.latent_kl(X), torch.distributions.kl_divergence(q.base_dist, Normal(0.0, 1.0)).sum(-1)
    )


def test_annealed_and_bracket():
    model, exact = MODEL.vae(X, shift=3.0), MODEL.log_evidence(X)
    rows = torch.stack(
        [model.annealed(X, chains=20, steps=5, leapfrog=3, seed=s) for s in range(40)]
    )
    has_mean((rows - exact).exp(), torch.ones(6, dtype=torch.float64))
    lower, upper = model.bracket(100, chains=4, steps=8, leapfrog=3)
    _, x = model.simulate(100)
    truth = MODEL.log_evidence(x)
    for gap in (truth - lower, upper - truth):
        assert float(gap.mean() / gap.std() * 10) > -Z and lower.shape == upper.shape == (100,)


def test_simulated_data_come_from_the_model():
    model = MODEL.vae(X)
    z, x = model.simulate(20_000)
    has_mean(z.square(), torch.ones(2))
    left = x - z @ MODEL.weight.T - MODEL.bias
    has_mean(left, torch.zeros(4))
    has_mean(left.square(), torch.full((4,), MODEL.std**2))
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.simulate(5, seed=3), model.simulate(5, seed=3), strict=True)
    )


@pytest.mark.parametrize("noise", [True, False])
def test_samples_come_from_the_model(noise):
    x = MODEL.vae(X).sample(20_000, noise=noise)
    has_mean(x, MODEL.bias)
    cover = MODEL.weight @ MODEL.weight.T + (MODEL.std**2 if noise else 0.0) * torch.eye(
        4, dtype=torch.float64
    )
    left = x - MODEL.bias
    has_mean((left.unsqueeze(-1) * left.unsqueeze(-2)).flatten(1), cover.flatten())


def test_decode_and_reconstruct_are_the_decoder():
    model = MODEL.vae(X)
    z = torch.randn(3, 2, dtype=torch.float64)
    torch.testing.assert_close(model.decode(z), z @ MODEL.weight.T + MODEL.bias)
    torch.testing.assert_close(
        model.reconstruct(X), MODEL.posterior(X)[0] @ MODEL.weight.T + MODEL.bias
    )


def test_a_discrete_code_is_shown_at_its_most_probable_value():
    model = vae(posterior=Categorical(2, 3)).fit(real(), **QUICK)
    q = model.encode(real())
    torch.testing.assert_close(model.reconstruct(real()), model.decode(q.mode))
    for call in (lambda: model.annealed(real()), lambda: model.bracket(3)):
        with pytest.raises(SettingError, match="discrete code has none of; use log_marginal"):
            call()
    assert model.sample(5).shape == (5, 6) and torch.isfinite(model.log_marginal(real(), k=5)).all()


@pytest.mark.parametrize("n", [1, 3, 16, 17, 40])
def test_as_many_samples_as_asked_for(n):
    model = vae().fit(real(), "vi", **QUICK)
    x = model.sample(n)
    assert x.shape == (n, 6) and len(x.unique(dim=0)) == n


# --- learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient": "reparameterised"},
        {"gradient": "doubly"},
        {"gradient": "score", "draws": 4},
        {"bound": "iwae", "draws": 4},
        {"bound": "iwae", "draws": 4, "gradient": "doubly"},
    ],
    ids=str,
)
def test_training_climbs(settings):
    x = MODEL.data(100).float()
    fitted = vae(d=4).fit(x, epochs=60, lr=0.02, batch_size=50, progress=False, **settings)
    assert fitted.history[-1]["bound"] > fitted.history[0]["bound"] + 0.5


@pytest.mark.parametrize("gradient", ["gumbel", "straight_through", "score"])
def test_training_of_discrete_codes_climbs(gradient):
    x = torch.cat([torch.ones(50, 6), torch.zeros(50, 6)])
    x[:, 0] = torch.arange(100) % 2
    code = Categorical(2, 3)
    model = VAE(coder(6, code.width), coder(code.size, 6, seed=1), 2, "bernoulli", posterior=code)
    before = float(model.fit(x, **STILL).elbo(x, draws=50).mean())
    after = float(
        model.fit(x, epochs=150, lr=0.02, batch_size=50, gradient=gradient, draws=2, progress=False)
        .elbo(x, draws=50)
        .mean()
    )
    assert after > before + 1.5


def test_beta_and_free_bits_steer_the_kl():
    x = MODEL.data(100).float()
    kl = {
        name: float(
            vae(d=4)
            .fit(x, epochs=80, lr=0.02, batch_size=None, progress=False, **s)
            .latent_kl(x)
            .mean()
        )
        for name, s in {
            "plain": {},
            "high": {"beta": 20.0},
            "free": {"beta": 20.0, "free_bits": 0.5},
        }.items()
    }
    assert kl["high"] < 0.1 < 0.7 < kl["free"] and kl["plain"] > 0.5


@pytest.mark.slow
def test_compiled_steps_equal_eager_ones():
    settings = QUICK | {"epochs": 2}
    for extra in (
        {},
        {"bound": "iwae", "draws": 3, "gradient": "doubly"},
        {"kl_schedule": "linear", "kl_warmup": 2},
    ):
        eager, quick = (vae().fit(real(32), compile=c, **settings, **extra) for c in (False, True))
        for a, b in zip(eager.history, quick.history, strict=True):
            assert a["bound"] == pytest.approx(b["bound"], rel=1e-5) and a[
                "latent_kl"
            ] == pytest.approx(b["latent_kl"], rel=1e-4)
        torch.testing.assert_close(quick.elbo(real(32)), eager.elbo(real(32)), rtol=1e-4, atol=1e-4)


# --- plain autoencoders ---------------------------------------------------------------------------


def test_an_autoencoder_reconstructs_and_nothing_else():
    x = MODEL.data(200).float()
    model = Autoencoder(nn.Linear(4, 2), nn.Linear(2, 4), 2, Gaussian(std=1.0))
    model.fit(x, epochs=400, lr=0.05, batch_size=None, progress=False)
    left = x - x.mean(0)
    values = torch.linalg.eigvalsh(left.T @ left / 200)
    assert float((model.reconstruct(x) - x).square().sum(1).mean()) == pytest.approx(
        float(values[:2].sum()), rel=0.01
    ), "that of PCA"
    row = model.history[-1]
    assert row["latent_kl"] == 0.0 and row["bound"] == pytest.approx(
        float(Normal(model.reconstruct(x), 1.0).log_prob(x).sum(1).mean()), abs=0.05
    )
    for name in (
        "elbo",
        "sample",
        "log_marginal",
        "annealed",
        "latent_kl",
        "simulate",
        "objective",
        "bracket",
    ):
        assert not hasattr(model, name)
    assert torch.equal(model.encode(x).mean, model.encode(x).sample())


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient": "score"},
        {"gradient": "doubly"},
        {"beta": 2.0},
        {"free_bits": 1.0},
        {"bound": "iwae"},
    ],
)
def test_an_autoencoder_refuses_settings_of_what_it_does_not_have(settings):
    with pytest.raises(SettingError):
        Autoencoder(coder(6, 2), coder(2, 6), 2, "gaussian").fit(real(), **settings, **QUICK)
