import math

import pytest
import torch

from credo.core.errors import SettingError
from credo.posteriors.std_transform import raw_triangular, std_transforms, triangular


@pytest.mark.parametrize("name", ["log", "softplus"])
@pytest.mark.parametrize("std", [1e-6, 0.01, 1.0, 30.0])
def test_raw_inverts_std(name, std):
    scale = std_transforms[name]
    raw = torch.tensor(scale.raw(std), dtype=torch.float64)
    assert math.isclose(float(scale.std(raw)), std, rel_tol=1e-9)
    assert math.isclose(
        float(scale.log_std(raw, scale.std(raw))), math.log(std), rel_tol=1e-9, abs_tol=1e-12
    )


@pytest.mark.parametrize("name", ["log", "softplus"])
def test_pulls_are_the_chain_rule(name):
    scale = std_transforms[name]
    raw = torch.linspace(-3, 2, 7, dtype=torch.float64, requires_grad=True)
    grad_std, grad_var, grad_log = (
        torch.randn(7).double(),
        torch.randn(7).double(),
        torch.tensor(0.8).double(),
    )
    std = scale.std(raw)
    (std * grad_std + std.log() * grad_log).sum().backward()
    assert torch.allclose(raw.grad, scale.pull(std.detach(), grad_std, grad_log))
    raw.grad = None
    std = scale.std(raw)
    (std**2 * grad_var + std.log() * grad_log).sum().backward()
    assert torch.allclose(raw.grad, scale.pull_var(std.detach() ** 2, 2 * grad_var, grad_log))


def test_unknown_scales_name_the_nearest():
    with pytest.raises(SettingError, match="Unknown scale 'softpluss'. Did you mean 'softplus'"):
        std_transforms["softpluss"]


def test_a_triangular_factor_and_its_raw_form_are_inverse():
    raw = torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    factor = triangular(raw)
    assert torch.equal(factor, factor.tril()) and torch.allclose(
        factor.diagonal(), raw.diagonal().exp()
    )
    assert torch.allclose(raw_triangular(factor), raw.tril())


def test_steps_of_equal_size_below_the_diagonal_do_not_outweigh_it():
    """What an optimizer does to entries whose gradient is noise: the deviations grow by a factor
    that does not depend on their number.
    """
    growth = [
        float(
            triangular(torch.full((n, n), 0.3).tril(-1) + math.log(0.01) * torch.eye(n))
            .square()
            .sum(-1)
            .max()
        )
        for n in (10, 400)
    ]
    assert all(0.01**2 < value < 1.1 * 0.01**2 for value in growth)
