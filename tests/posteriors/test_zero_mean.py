"""Zero-mean Gaussians: what is learned, what the KL is, what is refused.

The contract of families is in ``test_family``.
"""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from credo.core.errors import SettingError
from credo.core.seeds import generator
from credo.posteriors import ZeroMean, families
from credo.priors import Factorised, log_uniform

VALUES = {
    "w": torch.randn(3, 4, generator=generator("w"), dtype=torch.float64),
    "v": torch.zeros(2, 2, dtype=torch.float64),
}


def test_deviations_start_at_absolute_values_and_means_stay_at_zero():
    family = ZeroMean.start(VALUES, 2.0)
    assert [n for n, _ in family.named_parameters()] == [
        "raw_std"
    ] and "flat_mean" not in family.state_dict()
    assert torch.allclose(family.std()["w"], 2 * VALUES["w"].abs())
    assert bool((family.std()["v"] > 0).all()), (
        "a weight that starts at zero can still learn to vary"
    )
    assert not any(v.any() for v in family.mean().values())


def test_the_kl_is_zero_under_the_log_uniform_prior_whatever_the_deviations():
    family = ZeroMean.start(VALUES)
    prior = Factorised(dict.fromkeys(family.names, log_uniform()), family.shapes)
    assert float(family.kl(prior)) == 0.0
    with torch.no_grad():
        family.raw_std += 7.0
    assert float(family.kl(prior)) == 0.0


def test_the_convention_is_that_of_the_log_uniform_prior_itself():
    """KL[N(mu, sigma^2), p] -> 0 as sigma^2 / mu^2 grows."""
    assert float(
        kl_divergence(Normal(torch.tensor(0.0), torch.tensor(0.3)), log_uniform())
    ) == pytest.approx(0.0, abs=1e-6)


def test_under_a_normal_prior_the_kl_is_that_of_the_marginals():
    family = ZeroMean.start(VALUES)
    prior = Factorised(dict.fromkeys(family.names, Normal(0.0, 0.7)), family.shapes)
    exact = sum(
        kl_divergence(Normal(torch.zeros_like(s), s), Normal(0.0, 0.7)).sum()
        for s in family.std().values()
    )
    assert float((family.kl(prior) - exact).detach()) == pytest.approx(0.0, abs=1e-9)


def test_only_the_log_scale():
    with pytest.raises(SettingError, match="scale='softplus'; expected 'log'"):
        ZeroMean(VALUES and {"w": (2,)}, "softplus")


def test_a_stored_family_comes_back_in_its_dtype():
    family = ZeroMean.start(VALUES)
    again = families["zero_mean"].from_config(family.config())
    again.load_state_dict(family.state_dict(), assign=True)
    assert again.flat_mean.dtype == torch.float64 and torch.equal(
        again.std()["w"], family.std()["w"]
    )
    assert again.meaningless_mean is not None
