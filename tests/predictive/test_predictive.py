from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from credo.core.errors import CredoError, DataError, SettingError
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, Poisson
from credo.predictive import Predictive


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(autouse=True)
def global_rng_untouched():
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state())


def test_classification():
    f = randn(30, 8, 4)
    p = Predictive(f, Categorical())
    assert p.num_samples == 30 and len(p) == 8 and p.outputs is f
    probs = f.softmax(-1)
    torch.testing.assert_close(p.probs, probs)
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(30, 8).double())
    torch.testing.assert_close(p.mean, probs.mean(0))  # probabilities are averaged, not logits
    torch.testing.assert_close(p.variance, ((probs - probs.mean(0)) ** 2).mean(0))
    torch.testing.assert_close(p.std, p.variance.sqrt())
    assert torch.equal(p.label, probs.mean(0).argmax(-1))
    torch.testing.assert_close(p.total, p.entropy)
    torch.testing.assert_close(p.total, p.aleatoric + p.epistemic)
    torch.testing.assert_close(p.epistemic, p.mutual_information)
    y = torch.arange(8) % 4
    torch.testing.assert_close(p.log_prob(y), p.mean[torch.arange(8), y].log())
    with pytest.raises(CredoError, match="no order"):
        p.interval()


def test_regression():
    f = randn(40, 6, 2)
    p = Predictive(f, Gaussian(0.3))
    assert (
        p.mean.shape
        == p.std.shape
        == p.total.shape
        == p.aleatoric.shape
        == p.epistemic.shape
        == (6, 2)
    )
    torch.testing.assert_close(p.variance, 0.09 + f.var(0, correction=0))
    torch.testing.assert_close(p.total, p.variance)
    low, high = p.interval(0.8)
    torch.testing.assert_close(high, p.quantile(0.9))
    assert low.shape == (6, 2) and bool((low < high).all())
    y = randn(6, 2, seed=1)
    expected = torch.distributions.Normal(f, 0.3).log_prob(y).sum(-1).logsumexp(0) - math.log(40)
    torch.testing.assert_close(p.log_prob(y), expected)
    for name in ("probs", "label"):
        with pytest.raises(CredoError, match="gaussian"):
            getattr(p, name)


def test_binary_and_counts():
    assert Predictive(randn(5, 6, 1), Bernoulli()).label.shape == (6,)
    assert Predictive(randn(5, 6, 3), Bernoulli()).label.shape == (6, 3)
    counts = Predictive(randn(5, 6, 1), Poisson())
    assert counts.total.shape == counts.epistemic.shape == (6,)  # nats, because counts are discrete
    assert counts.interval(0.9)[1].shape == counts.mean.shape == (6, 1)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_interval_coverage(level):
    """y drawn by hand from the mixture of 50 draws; binomial z-test over 4000 data, failure rate
    6e-5.
    """
    n = 4000
    f = torch.cat([randn(50, n, 1), randn(50, n, 1, seed=1) - 1.0], -1)
    chosen = torch.randint(50, (n,), generator=torch.Generator().manual_seed(2))
    law = Heteroscedastic().marginals(f[chosen, torch.arange(n)])
    y = law.mean + law.stddev * randn(n, 1, seed=3)
    low, high = Predictive(f, Heteroscedastic()).interval(level)
    share = ((low <= y) & (y <= high)).double().mean()
    assert abs(share - level) / math.sqrt(level * (1 - level) / n) < 4.0


def test_sample_follows_the_mixture():
    """Mean and variance of 20000 draws: eight z-tests of failure rate 6e-5 each."""
    p = Predictive(randn(3, 4, 1), Gaussian(0.5))
    n = 20000
    draws = p.sample(n, seed=7)
    assert draws.shape == (n, 4, 1)
    assert ((draws.mean(0) - p.mean) / (p.variance / n).sqrt()).abs().max() < 4.0
    squares = (draws - p.mean).square()
    assert ((squares.mean(0) - p.variance) / (squares.var(0) / n).sqrt()).abs().max() < 4.0


def test_a_draw_shares_its_posterior_sample_over_the_data():
    f = torch.tensor([-100.0, 100.0]).reshape(2, 1, 1).expand(2, 5, 1)
    signs = Predictive(f, Gaussian(0.1)).sample(50).sign().squeeze(-1)
    assert bool((signs == signs[:, :1]).all())
    assert 0 < (signs[:, 0] > 0).sum() < 50


def test_sample_shapes_and_seeds():
    p = Predictive(randn(4, 6, 3), Categorical())
    assert p.sample(5).shape == (5, 6) and p.sample().shape == (1, 6)
    assert torch.equal(p.sample(5, seed=1), p.sample(5, seed=1))
    assert not torch.equal(p.sample(50, seed=1), p.sample(50, seed=2))
    with pytest.raises(SettingError, match="n=0"):
        p.sample(0)


def test_noise_with_a_sample_axis():
    """One noise value per posterior draw: predictions, slices and samples use the draw's own."""
    likelihood = Gaussian()
    std = torch.tensor([0.01, 1.0])
    likelihood.log_std = nn.Parameter(std.log().reshape(2, 1, 1))
    p = Predictive(
        torch.tensor([-50.0, 50.0]).reshape(2, 1, 1).expand(2, 300, 1).contiguous(), likelihood
    )[10:]
    torch.testing.assert_close(p.aleatoric, std.square().mean().expand(290, 1))
    draws = p.sample(20, seed=0)
    assert draws[draws < 0].add(50).abs().max() < 0.1 < draws[draws > 0].sub(50).std()
    assert p.interval()[0].shape == (290, 1) and p.log_prob(torch.zeros(290)).shape == (290,)


def test_prediction_does_not_follow_later_training():
    likelihood = Gaussian()
    p = Predictive(randn(3, 4, 1), likelihood)
    with torch.no_grad():
        likelihood.log_std.add_(5.0)
    assert p.aleatoric.max().item() == pytest.approx(1.0)


def test_gradients_flow_to_the_outputs():
    f = randn(3, 4, 5).requires_grad_()
    p = Predictive(f, Categorical())
    (p.log_prob(torch.zeros(4, dtype=torch.long)).sum() + p.epistemic.sum()).backward()
    assert f.grad is not None and bool(f.grad.isfinite().all())


def test_indexing_and_moving():
    p = Predictive(randn(3, 6, 2), Gaussian(1.0))
    mask = torch.tensor([True, False, True, False, False, True])
    torch.testing.assert_close(p[mask].mean, p.mean[mask])
    torch.testing.assert_close(p[1:3].mean, p.mean[1:3])
    torch.testing.assert_close(p[torch.tensor([5, 0])].mean, p.mean[[5, 0]])
    torch.testing.assert_close(p[-1].mean, p.mean[-1:])
    with pytest.raises(IndexError, match="index 6"):
        p[6]
    torch.testing.assert_close(p.to("cpu").mean, p.mean)
    assert repr(p) == "Predictive(gaussian, samples=3, data=6, outputs=2, device=cpu)"


def test_bad_input_is_named():
    for bad in (torch.zeros(3, 2), torch.zeros(0, 3, 2), torch.zeros(2, 3, 4, dtype=torch.long)):
        with pytest.raises(CredoError, match="expected floats of shape"):
            Predictive(bad, Gaussian())
    p = Predictive(torch.zeros(2, 3, 1), Gaussian())
    with pytest.raises(DataError, match="4 targets for 3 predictions"):
        p.log_prob(torch.zeros(4))
    with pytest.raises(DataError, match="gives 1 outputs"):
        p.log_prob(torch.zeros(3, 2))
    with pytest.raises(SettingError, match=r"level=1\.0"):
        p.interval(1.0)
