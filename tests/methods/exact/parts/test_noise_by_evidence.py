"""The best noise for a kernel: where the evidence has no slope, and a warning where it never
falls.
"""

import warnings

import pytest
import torch

from credo.likelihoods import Gaussian
from credo.methods.exact.parts.noise_by_evidence import best_noise, set_best_noise
from credo.posteriors.wide_kernel import wide_kernel


def data(num_data=20, outputs=1, std=0.2):
    source = torch.Generator().manual_seed(0)
    x = 2 * torch.randn(num_data, 2, generator=source, dtype=torch.float64)
    f = torch.stack([torch.sin(x[:, 0]) + 0.3 * x[:, 1], torch.cos(x[:, 1])], 1)[:, :outputs]
    return x, f + std * torch.randn(num_data, outputs, generator=source, dtype=torch.float64)


def test_learned_noise_is_where_the_slope_of_the_evidence_is_zero():
    """d/ds^2 log N(y; 0, K + s^2 I) = (norm(a)^2 - tr (K + s^2 I)^-1) / 2 with a = (K + s^2 I)^-1
    y, by a dense inverse.
    """
    x, y = data(num_data=30, outputs=2)
    kernel = wide_kernel(x, x, (2.0, 2.0), (0.5, 0.5), ["relu"])
    for stds in (best_noise(kernel, y, 1).repeat(2), best_noise(kernel, y, 2)):
        slopes, sizes = [], []
        for d, std in enumerate(stds):
            inverse = torch.linalg.inv(kernel + std**2 * torch.eye(30, dtype=torch.float64))
            fit, cost = (inverse @ y[:, d]).square().sum(), inverse.trace()
            slopes, sizes = [*slopes, fit - cost], [*sizes, cost]
        shared = bool(stds[0] == stds[1])
        slopes, sizes = ([sum(slopes)], [sum(sizes)]) if shared else (slopes, sizes)
        assert all(abs(slope) < 1e-9 * size for slope, size in zip(slopes, sizes, strict=True))


def test_targets_without_noise_are_warned_about():
    x = torch.linspace(-2, 2, 12, dtype=torch.float64).unsqueeze(1)
    kernel, y = wide_kernel(x, x, (2.0, 2.0), (1.0, 1.0), ["erf"]), torch.special.erf(x)
    with pytest.warns(UserWarning, match="still rises as the noise falls to 0.0001"):
        std = best_noise(kernel, y, 1)
    assert float(std) == pytest.approx(1e-4 * float(y.square().mean().sqrt()), rel=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(best_noise(kernel, y + 0.3 * torch.cos(40 * x), 1)) > 0.1


@pytest.mark.parametrize("outputs", [None, 2])
def test_the_likelihood_gets_the_best_noise(outputs):
    x, y = data(num_data=30, outputs=2)
    kernel = wide_kernel(x, x, (2.0, 2.0), (0.5, 0.5), ["relu"])
    likelihood = Gaussian(num_outputs=outputs).double()
    set_best_noise(likelihood, kernel, y)
    found = likelihood.log_std.detach().exp().reshape(-1)
    assert torch.allclose(found, best_noise(kernel, y, len(found)))
    assert likelihood.log_std.requires_grad
