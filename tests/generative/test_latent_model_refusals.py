"""What a latent-variable model refuses, and in which words."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo.latent import QUICK, STILL, binary, coder, real, vae

from credo.core.errors import CredoError, DataError, NetworkError, SettingError
from credo.generative import VAE
from credo.generative.codes import Categorical, Diagonal
from credo.generative.priors import Mixture, StandardNormal, Uniform
from credo.likelihoods import Pixels

BAD = {
    "nan": (
        lambda: vae().fit(torch.tensor([[0.0] * 6, [float("nan")] * 6])),
        DataError,
        "x has NaN at row 1",
    ),
    "grey": (
        lambda: vae("bernoulli").fit(torch.full((9, 6), 0.5)),
        DataError,
        "is 0.5; expected 0 or 1.*ContinuousBernoulli",
    ),
    "bytes": (
        lambda: vae("bernoulli").fit(torch.full((9, 6), 255, dtype=torch.uint8)),
        DataError,
        "is 255.0; expected 0 or 1",
    ),
    "outside": (
        lambda: vae("bernoulli", binarise=True).fit(torch.full((9, 6), 1.5)),
        DataError,
        "number from 0 to 1",
    ),
    "levels": (
        lambda: vae(Pixels(4), per=4).fit(torch.full((9, 6), 4)),
        DataError,
        "whole number from 0 to 3",
    ),
    "counts": (lambda: vae("poisson").fit(-torch.ones(9, 6)), DataError, "expected a count"),
    "text": (lambda: vae().fit(np.array([["a"] * 6])), DataError, "expected numbers"),
    "pair": (
        lambda: vae().fit((real(), torch.zeros(40))),
        DataError,
        "The data are a tuple; expected one tensor",
    ),
    "empty": (lambda: vae().fit(torch.zeros(0, 6)), DataError, "empty"),
    "dict": (lambda: vae().fit({"x": real()}), DataError, "The data are a dict"),
    "encoder input": (lambda: vae().fit(real(40, 5)), CredoError, r"\(2, 5\)|shape"),
    "encoder output": (
        lambda: VAE(coder(6, 3), coder(2, 6), 2, "gaussian").fit(real()),
        NetworkError,
        r"needs \(2, 4\): change its last layer",
    ),
    "decoder input": (
        lambda: VAE(coder(6, 4), coder(3, 6), 2, "gaussian").fit(real()),
        NetworkError,
        "decoder cannot take codes of 2 numbers",
    ),
    "decoder output": (
        lambda: VAE(coder(6, 4), coder(2, 5), 2, "gaussian").fit(real()),
        NetworkError,
        "gives 5 outputs .* needs 6",
    ),
    "decoder without axis": (
        lambda: VAE(coder(1, 4), nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), 2, "gaussian").fit(
            real(40, 1)
        ),
        NetworkError,
        "decoder",
    ),
    "decoder without parameters": (
        lambda: VAE(coder(6, 4), nn.Identity(), 2, "gaussian").fit(real(40, 6)),
        CredoError,
        ".",
    ),
    "dim": (
        lambda: vae(latent_dim=3, posterior=Diagonal(2)),
        SettingError,
        "latent_dim=3, but the latent posterior was made for 2",
    ),
    "dim 0": (lambda: VAE(coder(6, 4), coder(2, 6), 0, "gaussian"), SettingError, "latent_dim=0"),
    "prior": (
        lambda: vae(prior="uniform"),
        SettingError,
        "prior='uniform' is not for the latent posterior 'diagonal'",
    ),
    "no prior": (lambda: vae(prior="none"), SettingError, "prior='none' is not for"),
    "unknown prior": (lambda: vae(prior="vampire"), CredoError, "Unknown latent prior"),
    "unknown code": (
        lambda: VAE(coder(6, 4), coder(2, 6), 2, "gaussian", posterior="normal"),
        CredoError,
        "Unknown latent posterior",
    ),
    "point": (
        lambda: VAE(coder(6, 2), coder(2, 6), 2, "gaussian", posterior="point"),
        SettingError,
        "use credo.generative.Autoencoder",
    ),
    "binarise": (
        lambda: vae("gaussian", binarise=True),
        SettingError,
        "binarise=True draws binary data",
    ),
    "binarise yes": (lambda: vae("bernoulli", binarise="yes"), SettingError, "binarise"),
    "prior of another size": (lambda: vae(prior=StandardNormal(7)), SettingError, "prior"),
    "mixture of another size": (lambda: vae(prior=Mixture(7, 3)), SettingError, "prior"),
    "groups": (lambda: vae(posterior=Categorical(2, 3), prior=Uniform(6)), SettingError, "prior"),
    "pseudo-inputs": (
        lambda: vae(prior="vamp").fit(real()),
        DataError,
        "has 50 pseudo-inputs but there are 40 data",
    ),
    "likelihood": (lambda: vae("normal"), CredoError, "Unknown likelihood"),
    "setting": (lambda: vae().fit(real(), freebits=0.1), SettingError, "freebits"),
    "gradient": (
        lambda: vae().fit(real(), gradient="gumbel"),
        SettingError,
        "gradient='gumbel' is not for",
    ),
    "local": (lambda: vae().fit(real(), "vi", draws=2), SettingError, "use estimator='weights'"),
    "batch": (lambda: vae().fit(real(), batch_size=0), SettingError, "batch_size=0"),
    "method": (lambda: vae().fit(real(), "exact"), CredoError, "Gaussian likelihood"),
}


@pytest.mark.parametrize("name", BAD)
def test_refusals(name):
    make, kind, words = BAD[name]
    with pytest.raises(kind, match=words):
        make()


LATER = {
    "shape": (
        lambda m: m.elbo(real(4, 5)),
        DataError,
        r"have shape \(5,\) each; this model was fitted to \(6,\)",
    ),
    "nan": (lambda m: m.reconstruct(torch.full((2, 6), torch.nan)), DataError, "NaN"),
    "draws": (lambda m: m.elbo(real(), draws=0), SettingError, "draws=0"),
    "samples": (lambda m: m.elbo(real(), samples=0), SettingError, "samples=0"),
    "k": (lambda m: m.log_marginal(real(), k=0), SettingError, "k=0"),
    "seed": (lambda m: m.elbo(real(), seed="a"), SettingError, "seed='a'"),
    "seed of sample": (lambda m: m.sample(2, seed="a"), SettingError, "seed='a'"),
    "seed of decode": (lambda m: m.decode(torch.zeros(1, 2), seed=0.5), SettingError, "seed=0.5"),
    "n": (lambda m: m.sample(0), SettingError, "n=0"),
    "simulate": (lambda m: m.simulate(0), SettingError, "n=0"),
    "codes": (
        lambda m: m.decode(torch.zeros(3, 3)),
        DataError,
        r"Codes have shape \(3, 3\); expected \(N, 2\)",
    ),
    "code": (lambda m: m.decode(torch.zeros(2)), DataError, r"Codes have shape \(2,\)"),
    "code text": (lambda m: m.decode("a"), DataError, "."),
    "code nan": (lambda m: m.decode([[float("nan"), 1.0]]), DataError, "NaN"),
    "proposal": (lambda m: m.log_marginal(real(), proposal="x"), SettingError, "proposal='x'"),
    "chains": (lambda m: m.annealed(real(), chains=0), SettingError, "chains=0"),
    "steps": (lambda m: m.annealed(real(), steps=0), SettingError, "steps=0"),
    "leapfrog": (lambda m: m.bracket(2, leapfrog=0), SettingError, "leapfrog=0"),
}


@pytest.mark.parametrize("name", LATER)
def test_refusals_of_a_fitted_model(name):
    call, kind, words = LATER[name]
    with pytest.raises(kind, match=words):
        call(vae().fit(real(), **STILL))


def test_bad_values_anywhere_in_a_loader_are_refused():
    x = binary()
    x[30, 2] = 0.5
    with pytest.raises(DataError, match="0.5; expected 0 or 1"):
        vae("bernoulli").fit(DataLoader(TensorDataset(x, torch.zeros(40)), batch_size=16), **QUICK)


def test_validation_data_are_checked_like_training_data():
    for bad, words in ((binary() * 0.5, "expected 0 or 1"), (binary(40, 5), r"shape")):
        with pytest.raises(DataError, match=words):
            vae("bernoulli").fit(binary(), validation=bad, **QUICK)
