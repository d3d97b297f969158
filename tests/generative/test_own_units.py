"""Data on a wild scale: a fit knows them standardised, and answers in their units."""

import math

import pytest
import torch
from torch import nn

import credo
from credo.data.intake import intake
from credo.generative import VAE
from credo.generative.own_units import Units
from credo.likelihoods import Gaussian


def rows(num_data=500, dim=8, latent=2, scale=1.0, mean=0.0, seed=0):
    source = torch.Generator().manual_seed(seed)
    loadings = torch.randn(latent, dim, generator=source)
    x = torch.randn(num_data, latent, generator=source) @ loadings
    return scale * (x + 0.5 * torch.randn(num_data, dim, generator=source)) + mean


def linear(dim=8, latent=2, likelihood=None, seed=0):
    torch.manual_seed(seed)
    nets = nn.Linear(dim, 2 * latent), nn.Linear(latent, dim)
    return VAE(*nets, latent, Gaussian() if likelihood is None else likelihood)


def closed_form(x, latent):
    """Mean log p(x) of probabilistic principal components at their best (Tipping and Bishop)."""
    values = torch.linalg.eigvalsh(torch.cov(x.double().T, correction=0)).flip(0)
    dim, noise = len(values), values[latent:].mean()
    spread = values[:latent].log().sum() + (dim - latent) * noise.log()
    return -0.5 * float(dim * math.log(2 * math.pi) + spread + dim)


def reached(vae, x):
    """Mean log p(x) under the fitted linear decoder and noise, exactly."""
    decoder, std = vae.networks()[1].double(), float(vae.likelihood.log_std.double().exp())
    codes = torch.cat([torch.zeros(1, vae.latent_dim), torch.eye(vae.latent_dim)]).double()
    mean, *ends = decoder(codes).detach()
    loadings = torch.stack(ends) - mean
    cover = loadings.T @ loadings + std**2 * torch.eye(len(mean)).double()
    density = torch.distributions.MultivariateNormal(mean, cover)
    return float(density.log_prob(x.double()).mean())


@pytest.mark.parametrize(
    ("scale", "mean"), [pytest.param(1.0, 0.0, marks=pytest.mark.slow), (10.0, 3.0)]
)
def test_a_linear_one_comes_to_principal_components_by_itself(scale, mean):
    x = rows(scale=scale, mean=mean)
    vae = linear().fit(x, progress=False)
    best = closed_form(x, 2)
    assert best - 0.05 < reached(vae, x) < best + 1e-6
    assert float(vae.elbo(x, draws=20).mean()) > best - 0.05
    assert vae.bnn.diagnose() == [] and vae.history[-1]["ended"] == "settled"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("num_data", "dim", "latent"), [(2000, 20, 5), (1000, 12, 3)])
def test_a_linear_one_comes_there_with_more_numbers(num_data, dim, latent, seed):
    x = rows(num_data, dim, latent, seed=seed)
    vae = linear(dim, latent, seed=seed).fit(x, progress=False)
    assert reached(vae, x) > closed_form(x, latent) - 0.05


def test_units_are_taken_of_wild_columns_only():
    def units(x, likelihood):
        return Units.of(intake((x, torch.zeros(len(x)))), likelihood, nn.Linear(8, 4))

    wild = rows(100, scale=100.0, mean=5.0)
    found = units(wild, Gaussian())
    torch.testing.assert_close(found.mean, wild.double().mean(0))
    torch.testing.assert_close(found.std, wild.double().std(0, correction=0))
    assert units(rows(100), Gaussian()) is None and units(wild, Gaussian(std=1.0)) is None
    assert units(wild.reshape(100, 2, 4), Gaussian()) is None
    again = Units.stored(found.config())
    assert torch.equal(again.mean, found.mean) and Units.stored(None) is None


def test_answers_are_in_the_units_of_the_data(tmp_path):
    x = rows(200, scale=100.0, mean=1000.0)
    vae = linear()
    before = vae.decoder.weight.detach().clone()
    vae.fit(x, epochs=150, progress=False, run=tmp_path / "run")
    assert torch.equal(vae.decoder.weight, before) and not vae.decoder._forward_hooks
    assert (vae.reconstruct(x) - x).square().mean().sqrt() < 120
    assert (vae.sample(500).mean(0) - x.mean(0)).abs().max() < 60
    encoder, decoder = vae.networks()
    torch.testing.assert_close(encoder(x)[:, :2], vae.encode(x).mean)
    torch.testing.assert_close(decoder(encoder(x)[:, :2]), vae.reconstruct(x))
    again = credo.generative.load(tmp_path / "run", nn.Linear(8, 4), nn.Linear(2, 8))
    assert torch.equal(again.elbo(x), vae.elbo(x)) and torch.equal(again.sample(5), vae.sample(5))


def test_a_prior_of_weights_is_meant_for_the_data_as_they_are():
    x = rows(100, scale=100.0)
    torch.manual_seed(0)
    nets = nn.Linear(8, 4), nn.Linear(2, 8)
    vae = VAE(*nets, 2, Gaussian(), weight_prior=torch.distributions.Normal(0.0, 100.0))
    vae.fit(x, "vi", epochs=1, progress=False)
    assert not vae.networks()[1]._forward_hooks
