import numpy as np
import pytest
import torch
from scipy import stats
from zoo.families import MAKERS
from zoo.stats import follows, has_mean

from credo.core.errors import CredoError
from credo.core.seeds import Streams
from credo.posteriors import NormalInverseGamma
from credo.posteriors.normal_inverse_gamma import NOISE


def small():
    tril = torch.tensor([[0.8, 0.0], [0.3, 0.5]], dtype=torch.float64)
    return NormalInverseGamma({"w": (2,)}).set(
        torch.tensor([1.0, -2.0], dtype=torch.float64), tril, 3.0, 2.0
    )


def test_noise_variances_are_inverse_gamma():
    draws = small().draw(Streams(0, range(4000)))
    follows((2 * draws[NOISE]).exp(), stats.invgamma(3.0, scale=2.0).cdf)


def test_each_weight_is_student_t():
    """w_i is t with 2a degrees of freedom, scale sqrt(b/a V_ii)."""
    family = small()
    draws = family.draw(Streams(1, range(4000)))["w"]
    cov = family.scale_tril @ family.scale_tril.T
    for i in range(2):
        follows(
            draws[:, i],
            stats.t(6.0, float(family.flat_mean[i]), float((2.0 / 3.0 * cov[i, i]) ** 0.5)).cdf,
        )


def test_density_against_scipy():
    """log N(w; mean, s^2 V) + log IG(s^2; a, b) + log ds^2/dlog s."""
    family = small()
    w, log_std = np.array([0.5, -1.0]), 0.2
    var = np.exp(2 * log_std)
    cov = (family.scale_tril @ family.scale_tril.T).numpy()
    expected = stats.multivariate_normal(family.flat_mean.numpy(), var * cov).logpdf(w)
    expected += stats.invgamma(3.0, scale=2.0).logpdf(var) + np.log(2 * var)
    ours = family.log_prob(
        {"w": torch.tensor(w), NOISE: torch.tensor(log_std, dtype=torch.float64)}
    )
    assert np.isclose(float(ours), expected, rtol=1e-12)


def test_mean_of_the_noise():
    family = MAKERS["normal_inverse_gamma"]()
    assert torch.allclose((2 * family.mean()[NOISE]).exp(), torch.tensor(4.0 / 8.0).double())
    has_mean((2 * family.draw(Streams(0, range(20_000)))[NOISE]).exp(), 0.5)
    with pytest.raises(CredoError, match="at most 1; use more data"):
        small().set(torch.zeros(2).double(), torch.eye(2).double(), 0.9, 1.0).mean()
