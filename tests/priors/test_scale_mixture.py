import numpy as np
import torch
from scipy.integrate import quad
from scipy.stats import norm

from credo.priors import scale_mixture


def test_density_against_the_formula():
    x = np.linspace(-3, 3, 31)
    expected = np.log(0.25 * norm.pdf(x, 0, 1.0) + 0.75 * norm.pdf(x, 0, 0.1))
    ours = scale_mixture(0.25, 1.0, 0.1).log_prob(torch.from_numpy(x).float())
    assert np.allclose(ours.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_it_integrates_to_one():
    prior = scale_mixture(0.5, 1.0, 0.1)
    total, _ = quad(lambda w: float(prior.log_prob(torch.tensor(w)).exp()), -10, 10, points=[0.0])
    assert abs(total - 1) < 1e-5  # the density is evaluated in single precision
