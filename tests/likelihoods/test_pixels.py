from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical

from credo.core.errors import DataError, NetworkError, SettingError
from credo.likelihoods import Pixels, likelihoods
from credo.likelihoods.mixtures import entropy_by_draws
from credo.likelihoods.pixels import GreyLevels
from credo.likelihoods.quadrature import hermite
from credo.predictive.evaluation import evaluate
from credo.predictive.predictive import Predictive

L, D, N, S = 6, 3, 5, 4
Z = 4.9  # two-sided failure rate 1e-6 for one z-test


def outputs_of(
    *lead: int, levels: int = L, dim: int = D, scale: float = 2.0, seed: int = 0
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*lead, levels * dim, generator=generator, dtype=torch.float64)


def reference(outputs: Tensor, levels: int = L) -> Categorical:
    """The same probabilities as torch has them, built from the definition: column l D + d is level
    l of pixel d.
    """
    dim = outputs.shape[-1] // levels
    return Categorical(logits=torch.stack([outputs[..., d::dim] for d in range(dim)], -2))


def targets_of(levels: int = L, dim: int = D, seed: int = 1) -> Tensor:
    return torch.randint(levels, (N, dim), generator=torch.Generator().manual_seed(seed))


def test_log_prob_and_entropy_are_torchs():
    f, y = outputs_of(S, N), targets_of()
    expected = reference(f)
    likelihood = Pixels(L)
    torch.testing.assert_close(likelihood.log_prob(f, y), expected.log_prob(y).sum(-1))
    torch.testing.assert_close(likelihood.marginals(f).log_prob(y), expected.log_prob(y))
    torch.testing.assert_close(likelihood(f).log_prob(y.double()), expected.log_prob(y).sum(-1))
    torch.testing.assert_close(likelihood.marginals(f).entropy(), expected.entropy())
    torch.testing.assert_close(likelihood(f).entropy(), expected.entropy().sum(-1))
    torch.testing.assert_close(likelihood.entropy(f), expected.entropy().sum(-1))
    mixed = Categorical(probs=expected.probs.mean(0))
    torch.testing.assert_close(likelihood.marginal_entropy(f), mixed.entropy())


def test_moments_and_cdf_by_enumeration():
    f = outputs_of(S, N)
    p = reference(f).probs
    level = torch.arange(L, dtype=p.dtype)
    mean = (p * level).sum(-1)
    marginals = Pixels(L).marginals(f)
    assert marginals.batch_shape == (S, N, D) and marginals.event_shape == ()
    torch.testing.assert_close(marginals.mean, mean)
    torch.testing.assert_close(marginals.variance, (p * (level - mean[..., None]) ** 2).sum(-1))
    for y in (-3.0, -0.2, 0.0, 2.0, 2.9, L - 1.0, L + 7.0):
        expected = (p * (level <= y)).sum(-1)
        torch.testing.assert_close(marginals.cdf(torch.full((N, D), y, dtype=p.dtype)), expected)
        torch.testing.assert_close(marginals.cdf(torch.tensor(y)), expected)
    mixture = Pixels(L).mixture_cdf(f, torch.full((N,), 2.0))
    torch.testing.assert_close(mixture, p[..., :3].sum(-1).mean(0))


def test_variance_keeps_its_digits_in_single_precision():
    """Levels 254 and 255 with probabilities 0.999 and 0.001: E l^2 - (E l)^2 in float32 would be
    off by about 65025 * 2^-24.
    """
    f = torch.full((1, 256), -80.0)
    f[0, 254], f[0, 255] = 0.0, math.log(0.001 / 0.999)
    assert Pixels().moments(f)[1].item() == pytest.approx(0.001 * 0.999, rel=1e-4)


def test_targets_may_have_leading_axes():
    f, y = outputs_of(S, N), targets_of().expand(2, 1, N, D)
    log_p = Pixels(L).log_prob(f, y)
    assert log_p.shape == (2, S, N)
    torch.testing.assert_close(log_p[1], Pixels(L).log_prob(f, targets_of()))


def test_log_prob_holds_nothing_larger_than_the_outputs():
    f = outputs_of(S, N).requires_grad_()
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: sizes.append(t.numel()) or t, lambda t: t
    ):
        Pixels(L).log_prob(f, targets_of()).sum().backward()
    assert max(sizes) == f.numel()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gradients_at_extreme_logits(sign):
    """Every level but one at -80 or +80 in single precision: finite values and gradients of all
    that training may differentiate.
    """
    f = torch.full((S, N, L * D), -80.0 * sign)
    f[..., :D] = 80.0 * sign
    likelihood, y = Pixels(L), targets_of()
    for call in (
        lambda f: likelihood.log_prob(f, y),
        lambda f: likelihood.entropy(f),
        lambda f: likelihood.marginal_entropy(f),
        lambda f: likelihood.moments(f)[0],
        lambda f: likelihood.moments(f)[1],
        lambda f: likelihood.expected_log_prob(f, torch.ones_like(f), y),
        lambda f: likelihood.mixture_log_prob(f, y),
    ):
        leaf = f.clone().requires_grad_()
        value = call(leaf)
        value.sum().backward()
        assert bool(value.isfinite().all())
        assert leaf.grad is not None and bool(leaf.grad.isfinite().all())
    torch.testing.assert_close(
        likelihood.log_prob(f, y).double(), likelihood.log_prob(f.double(), y)
    )


def test_gradient_is_indicator_minus_probability():
    f, y = outputs_of(N).requires_grad_(), targets_of()
    (gradient,) = torch.autograd.grad(Pixels(L).log_prob(f, y).sum(), f)
    expected = torch.nn.functional.one_hot(y, L) - reference(f.detach()).probs
    torch.testing.assert_close(gradient.unflatten(-1, (L, D)), expected.transpose(-1, -2))


@pytest.mark.parametrize("q", [0.01, 0.5, 0.9, 0.999])
def test_quantile_is_the_smallest_level_with_enough_mass(q):
    f = outputs_of(S, N)
    level = Pixels(L).mixture_quantile(f, q)
    assert level.shape == (N, D) and bool((level == level.floor()).all())
    cumulative = reference(f).probs.mean(0).cumsum(-1)
    assert level.tolist() == (cumulative >= q).double().argmax(-1).tolist()
    assert bool((Pixels(L).mixture_cdf(f, level) >= q).all())
    assert bool((Pixels(L).mixture_cdf(f, level - 1) < q).all())


def test_quantiles_never_leave_the_levels():
    f = outputs_of(S, N, levels=256, dim=1, scale=0.01).float()
    assert Pixels().mixture_quantile(f, 1.0 - 1e-12).max() == 255
    assert Pixels().mixture_quantile(f, 1e-12).min() == 0
    for bad in (0.0, 1.0, math.nan):
        with pytest.raises(SettingError, match="q="):
            Pixels().mixture_quantile(f, bad)


def test_joint_entropy_of_a_mixture_by_enumeration():
    """All 3^2 images of 200 data against the stratified draws of the default: z-test over the data,
    failure rate 1e-6.
    """
    f = outputs_of(8, 200, levels=3, dim=2)
    images = torch.tensor(list(itertools.product(range(3), repeat=2)))[:, None, None]
    exact = torch.special.entr(Pixels(3).log_prob(f, images).exp().mean(1)).sum(0)
    error = entropy_by_draws(Pixels(3), f) - exact
    assert (error.mean() / (error.std() / len(error) ** 0.5)).abs() < Z
    torch.testing.assert_close(Pixels(3).mixture_entropy(f), entropy_by_draws(Pixels(3), f))
    single = f.unflatten(-1, (3, 2))[..., 0]
    torch.testing.assert_close(
        Pixels(3).mixture_entropy(single), Pixels(3).marginal_entropy(f)[..., 0]
    )


def test_expected_log_prob_by_a_product_rule():
    """Three levels: 24 nodes per output are exact to 1e-8 here; the 256 antithetic pairs must beat
    plain draws of as many.
    """
    mean, y = outputs_of(N, levels=3, dim=2, scale=1.0), targets_of(3, 2)
    var = 0.5 * torch.rand(mean.shape, generator=torch.Generator().manual_seed(2), dtype=mean.dtype)
    nodes, weights = hermite(24)
    grid = torch.cartesian_prod(nodes, nodes, nodes).repeat_interleave(
        2, 1
    )  # pixels are independent, so they may share nodes
    product = torch.cartesian_prod(weights, weights, weights).prod(-1)
    values = Pixels(3).log_prob(mean + var.sqrt() * grid[:, None], y)
    exact = product @ values
    # Pixel by pixel at most half the mean squared slope, 1/2 * 1/2, in the part even in f - mean;
    # two pixels that share points.
    assert (Pixels(3).expected_log_prob(mean, var, y) - exact).abs().max() < Z * 2 * math.sqrt(
        0.25 / 256
    )
    pair_mean, pair_var, pair_y = mean[:, :4], var[:, :4], y.clamp_max(1)
    grid = torch.cartesian_prod(nodes, nodes).repeat_interleave(2, 1)
    values = Pixels(2).log_prob(pair_mean + pair_var.sqrt() * grid[:, None], pair_y)
    exact = torch.cartesian_prod(weights, weights).prod(-1) @ values
    torch.testing.assert_close(
        Pixels(2).expected_log_prob(pair_mean, pair_var, pair_y), exact, rtol=0, atol=1e-7
    )


def test_expected_log_prob_of_a_whole_image():
    """Outputs of all pixels together are more than a Sobol sequence has dimensions."""
    f = torch.zeros(1, 256 * 100, dtype=torch.float64)
    value = Pixels().expected_log_prob(
        f, torch.zeros_like(f), torch.zeros(1, 100, dtype=torch.long)
    )
    assert value.item() == pytest.approx(-100 * math.log(256))


def test_draws_follow_the_probabilities():
    """Counts of each level against n p, by chi-squared with N D (L - 1) degrees of freedom, normal
    approximation, rate 1e-6.
    """
    f, n = outputs_of(N, scale=1.0), 4000
    p = reference(f).probs
    for draws in (Pixels(L).sample(f.expand(n, -1, -1), 3), sampled(Pixels(L).marginals(f), n)):
        assert draws.shape == (n, N, D)
        counts = torch.nn.functional.one_hot(draws.long(), L).sum(0)
        chi, freedom = ((counts - n * p) ** 2 / (n * p)).sum(), N * D * (L - 1)
        assert (
            (chi - freedom) / math.sqrt(2 * freedom)
        ).abs() < Z + 1  # chi-squared of 75 is skewed: its tail is longer


def sampled(marginals: GreyLevels, n: int) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return marginals.sample((n,))


def test_the_distribution_alone():
    logits = outputs_of(N).unflatten(-1, (L, D))
    levels = GreyLevels(logits, validate_args=True)
    assert "GreyLevels" in repr(levels)
    wide = levels.expand((2, N, D))
    assert wide.batch_shape == (2, N, D)
    torch.testing.assert_close(wide.mean, levels.mean.expand(2, -1, -1))
    torch.testing.assert_close(levels.stddev, levels.variance.sqrt())
    assert sampled(levels, 2).dtype == torch.float64


@pytest.mark.parametrize(
    "kind", [torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64]
)
def test_whole_numbers_of_any_type(kind):
    y = Pixels().check_targets(torch.tensor([0, 7, 255]).to(kind))
    assert y.dtype == torch.int64 and y.tolist() == [[0], [7], [255]]
    assert Pixels().check_targets(np.array([[0, 1], [255, 3]], dtype=np.uint8)).shape == (2, 2)


def test_bad_targets():
    for bad, shown in ((-1.0, "-1"), (4.0, "4"), (0.5, "0.5")):
        with pytest.raises(
            DataError,
            match=f"pixels: the target in row 1, column 1 is {shown}; expected a whole number "
            "from 0 to 3",
        ):
            Pixels(4).check_targets(torch.tensor([[1.0, 2.0], [0.0, bad]]))
    with pytest.raises(DataError, match=r"multiply grey values in \[0, 1\] by 255"):
        Pixels().check_targets(torch.tensor([0.0, 0.3]))


def test_constant_columns_are_fine_but_not_constant_rows():
    y = torch.tensor([[0, 1, 3], [0, 2, 3]])
    assert torch.equal(Pixels(4).check_training_targets(y), y)
    with pytest.raises(
        DataError, match="pixels: all 2 targets in column 0 are 0; expected rows that differ"
    ):
        Pixels(4).check_training_targets(y[:1].expand(2, -1))


def test_levels_are_checked_and_stored():
    for bad in (1, 0, 2.0, True, "256"):
        with pytest.raises(SettingError, match=f"Pixels: levels={bad!r}"):
            Pixels(bad)
    config = json.loads(json.dumps(Pixels(16).config()))
    assert config == {"levels": 16}
    assert Pixels().config() == {"levels": 256}
    other = likelihoods["pixels"].from_config(config)
    assert other.config() == config and other.latents_per_target == 16
    assert other.frozen().latents_per_target == 16


def test_widths():
    likelihood = Pixels(4)
    y = likelihood.check_targets(torch.zeros(2, 3))
    assert likelihood.num_outputs(y) == 12 and likelihood.target_dim(12) == 3
    assert likelihood.accepts(12, y) and not likelihood.accepts(8, y)
    with pytest.raises(
        NetworkError, match="got 7 outputs per datum; expected a multiple of its 4 levels"
    ):
        likelihood(torch.zeros(2, 7))
    with pytest.raises(
        DataError, match="gives 8 outputs per datum, but the pixels likelihood needs 12"
    ):
        likelihood.check_pair(torch.zeros(1, 2, 8), y)


def test_inputs_are_levels_from_0_to_1():
    y = Pixels().check_targets(torch.tensor([[0, 51, 255]]))
    torch.testing.assert_close(Pixels().inputs(y), torch.tensor([[0.0, 0.2, 1.0]]))
    assert Pixels().inputs(y.double()).dtype == torch.float64


def test_metrics_are_those_of_values():
    f, y = outputs_of(S, N), targets_of()
    scores = evaluate(Predictive(f, Pixels(L)), y)
    assert set(scores) == {"nll", "rmse", "crps", "coverage_90", "std"}
    assert all(math.isfinite(score) for score in scores.values())
    nll = -torch.logsumexp(reference(f).log_prob(y).sum(-1), 0).mean().item() + math.log(S)
    assert scores["nll"] == pytest.approx(nll)
