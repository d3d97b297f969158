"""The best constant prediction, against its closed forms."""

import math

import pytest
import torch
from scipy import stats

import credo
from credo.data.intake import intake
from credo.engine.fit_job import base_rate, constant_nll


def test_labels_have_the_entropy_of_their_shares():
    y = torch.tensor([0] * 7 + [1] * 3)
    entropy = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))
    likelihood = credo.likelihoods.Categorical()
    assert constant_nll(likelihood, y) == pytest.approx(entropy, rel=1e-5)
    other = torch.tensor([1, 1, 0])
    expected = -(2 * math.log(0.3) + math.log(0.7)) / 3
    assert constant_nll(likelihood, y, other) == pytest.approx(expected, rel=1e-4)


def test_numbers_have_mean_and_noise_of_their_own():
    y = torch.randn(50, 1, generator=torch.Generator().manual_seed(0)).double() * 3 + 7
    expected = -stats.norm(y.mean(), y.std(correction=0)).logpdf(y).mean()
    learned = credo.likelihoods.Gaussian()
    before = {n: p.clone() for n, p in learned.named_parameters()}
    assert constant_nll(learned, y) == pytest.approx(expected, rel=1e-4)
    assert all(torch.equal(p, before[n]) for n, p in learned.named_parameters())
    known = -stats.norm(y.mean(), 0.5).logpdf(y).mean()
    assert constant_nll(credo.likelihoods.Gaussian(std=0.5), y) == pytest.approx(known, rel=1e-5)


def test_of_a_generative_model_it_is_that_of_the_data():
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) * 2 + 1
    nets = torch.nn.Linear(3, 2), torch.nn.Linear(1, 3)
    vae = credo.generative.VAE(*nets, 1, "gaussian").fit(x, epochs=1, progress=False)
    source, y = intake((x, torch.zeros(300))), x.double()
    known = constant_nll(credo.likelihoods.Gaussian(), y)
    assert base_rate(vae.bnn.model.likelihood, source) == pytest.approx(known, rel=1e-5)
    assert [f.name for f in vae.bnn.diagnose()] == ["no better than a constant"]
    drawn = credo.generative.VAE(*nets, 1, "bernoulli", binarise=True)
    drawn.fit(torch.rand(50, 3), epochs=1, progress=False)
    assert base_rate(drawn.bnn.model.likelihood, source) == math.inf
