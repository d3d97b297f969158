from __future__ import annotations

import pytest
import torch

from credo.core.errors import SettingError
from credo.likelihoods import Gaussian


def test_fixed_noise_is_exact_in_double_and_has_no_state():
    likelihood = Gaussian(0.1)
    assert not list(likelihood.parameters()) and not likelihood.state_dict()
    assert likelihood.std(torch.zeros(1, dtype=torch.float64)).item() == pytest.approx(
        0.1, rel=1e-15
    )
    assert likelihood.std(torch.zeros(1)).dtype == torch.float32


def test_learned_noise_reaches_the_residual_deviation():
    """The maximum of the likelihood in std is the root mean square residual."""
    likelihood = Gaussian()
    y = 0.3 * torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.LBFGS(
        likelihood.parameters(), max_iter=100, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        loss = -likelihood.log_prob(torch.zeros(200, 1), y).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.testing.assert_close(
        likelihood.std(y).detach(), y.square().mean().sqrt(), rtol=1e-3, atol=0
    )


def test_parameter_shapes():
    assert Gaussian().log_std.shape == ()
    assert Gaussian(num_outputs=3).log_std.shape == (3,)
    assert Gaussian(initial_std=0.2).std(torch.zeros(1)).item() == pytest.approx(0.2)
    for bad in (0.0, -1.0, float("nan"), [0.1, 0.0]):
        with pytest.raises(SettingError, match="std="):
            Gaussian(bad)
