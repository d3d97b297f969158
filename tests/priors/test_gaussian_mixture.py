import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch.distributions import Categorical, MixtureSameFamily, Normal
from zoo.stats import follows

from credo.core.errors import SettingError
from credo.priors import GaussianMixture, scale_mixture, spike_and_slab
from credo.priors.base import distribution_on

LOGITS, LOC, SCALE = (
    torch.tensor([0.3, -1.0, 0.5]),
    torch.tensor([-1.0, 0.0, 2.0]),
    torch.tensor([0.5, 1.0, 0.2]),
)


def test_density_and_moments_against_torchs_mixture():
    ours = GaussianMixture(LOGITS.double(), LOC.double(), SCALE.double())
    torchs = MixtureSameFamily(
        Categorical(logits=LOGITS.double()), Normal(LOC.double(), SCALE.double())
    )
    x = torch.linspace(-5, 5, 60, dtype=torch.float64).reshape(3, 4, 5)
    assert torch.allclose(ours.log_prob(x), torchs.log_prob(x), rtol=1e-12)
    assert torch.allclose(ours.mean, torchs.mean) and torch.allclose(ours.variance, torchs.variance)


def test_density_of_two_scales_against_the_formula():
    x = np.linspace(-3, 3, 31)
    expected = np.log(0.25 * norm.pdf(x, 0, 1.0) + 0.75 * norm.pdf(x, 0, 0.1))
    ours = scale_mixture(0.25, 1.0, 0.1).log_prob(torch.from_numpy(x).float())
    assert np.allclose(ours.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_it_integrates_to_one():
    prior = scale_mixture(0.5, 1.0, 0.1)
    total, _ = quad(lambda w: float(prior.log_prob(torch.tensor(w)).exp()), -10, 10, points=[0.0])
    assert abs(total - 1) < 1e-5  # the density is evaluated in single precision


def test_draws_follow_the_density():
    torch.manual_seed(0)
    prior = GaussianMixture(LOGITS, LOC, SCALE)
    weights = prior.weights.numpy()
    draws = prior.sample((40, 500))
    assert (
        draws.shape == (40, 500)
        and prior.sample().shape == ()
        and prior.sample((0, 3)).shape == (0, 3)
    )
    follows(
        draws.flatten(),
        lambda x: sum(w * norm.cdf(x, m, s) for w, m, s in zip(weights, LOC, SCALE, strict=True)),
    )


def test_spike_and_slab_takes_variances_and_stays_finite():
    prior = spike_and_slab(0.9)
    assert torch.allclose(prior.scale, torch.tensor([1e-3, 1e3])) and torch.allclose(
        prior.weights, torch.tensor([0.9, 0.1])
    )
    w = torch.tensor([0.0, 1e-3, 0.1, 1.0, 1e5], requires_grad=True)
    prior.log_prob(w).sum().backward()
    assert torch.isfinite(prior.log_prob(w)).all() and torch.isfinite(w.grad).all()


def test_it_moves_with_its_site():
    moved = distribution_on(scale_mixture(), torch.float64, torch.device("cpu"))
    assert (
        moved.log_prob(torch.zeros(2).double()).dtype == torch.float64
        and moved.sample((2,)).dtype == torch.float64
    )


def test_bad_arguments_are_named():
    with pytest.raises(
        SettingError, match=r"shapes \[\(2,\), \(3,\), \(3,\)\]; expected one \(K,\)"
    ):
        GaussianMixture([0.0, 0.0], LOC, SCALE)
    with pytest.raises(
        SettingError, match=r"weight=1.0 is not valid; expected a number above 0 and below 1"
    ):
        scale_mixture(1.0)
    with pytest.raises(SettingError, match="std2=0.0 is not valid"):
        scale_mixture(0.5, 1.0, 0.0)
    with pytest.raises(SettingError, match="slab_var=-1.0 is not valid"):
        spike_and_slab(slab_var=-1.0)
    assert (
        repr(scale_mixture())
        == "GaussianMixture(weights: [0.5, 0.5], loc: [0, 0], scale: [1, 0.0025])"
    )
