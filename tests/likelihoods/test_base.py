"""Every registered likelihood: closed forms against the numeric defaults, scipy, sampling, storage,
sample axes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor, nn

from credo.core.errors import CredoError, DataError, SettingError
from credo.likelihoods import (
    Bernoulli,
    Categorical,
    ContinuousBernoulli,
    FullGaussian,
    Gaussian,
    Heteroscedastic,
    Laplace,
    Likelihood,
    Pixels,
    Poisson,
    StudentT,
    get,
    likelihoods,
)
from credo.likelihoods.base import refuse_constant

COVARIANCE: Any = [[0.5, 0.2], [0.2, 0.3]]
Z = 4.9  # two-sided failure rate 1e-6 for one z-test
S, N = 5, 7


@dataclass(frozen=True)
class Case:
    """A configured likelihood, its number of outputs, and scipy's log density of (y, f) where scipy
    has one.
    """

    make: Callable[[], Likelihood]
    num_outputs: int
    scipy: Callable[[Tensor, Tensor], object] | None = None
    kink: bool = False
    sobol: bool = False


def softplus(x: Tensor) -> Tensor:
    return torch.nn.functional.softplus(x)


def levels(y: Tensor, f: Tensor) -> Tensor:
    """Outputs come level by level: column l D + d is level l of pixel d."""
    width = y.shape[1]
    logits = torch.stack([f[:, d::width] for d in range(width)], 1)
    log_p = torch.as_tensor(scipy.special.log_softmax(logits.numpy(), -1))
    return sum(log_p[torch.arange(len(y)), d, y[:, d]] for d in range(width))  # type: ignore


CASES = {
    "categorical": Case(Categorical, 4),
    "bernoulli": Case(
        Bernoulli, 1, lambda y, f: scipy.stats.bernoulli.logpmf(y, f.sigmoid()[..., 0])
    ),
    "bernoulli-3": Case(
        Bernoulli, 3, lambda y, f: scipy.stats.bernoulli.logpmf(y, f.sigmoid()).sum(-1)
    ),
    "continuous_bernoulli": Case(ContinuousBernoulli, 1),
    "continuous_bernoulli-2": Case(ContinuousBernoulli, 2),
    "gaussian": Case(Gaussian, 1, lambda y, f: scipy.stats.norm.logpdf(y, f, 1.0).sum(-1)),
    "gaussian-fixed": Case(
        lambda: Gaussian([0.3, 0.6]),
        2,
        lambda y, f: scipy.stats.norm.logpdf(y, f, [0.3, 0.6]).sum(-1),
    ),
    "gaussian-each": Case(lambda: Gaussian(num_outputs=2), 2),
    "full_gaussian": Case(FullGaussian, 1, lambda y, f: scipy.stats.norm.logpdf(y, f, 1.0).sum(-1)),
    "full_gaussian-fixed": Case(
        lambda: FullGaussian(COVARIANCE),
        2,
        lambda y, f: scipy.stats.multivariate_normal.logpdf(y - f, [0, 0], COVARIANCE),
    ),
    "full_gaussian-2": Case(lambda: FullGaussian(num_outputs=2), 2),
    "heteroscedastic": Case(
        Heteroscedastic,
        2,
        lambda y, f: scipy.stats.norm.logpdf(y, f[..., :1], 1e-3 + softplus(f[..., 1:])).sum(-1),
    ),
    "heteroscedastic-2": Case(Heteroscedastic, 4),
    "laplace": Case(
        Laplace, 1, lambda y, f: scipy.stats.laplace.logpdf(y, f, 1.0).sum(-1), kink=True
    ),
    "laplace-fixed": Case(
        lambda: Laplace(0.5),
        2,
        lambda y, f: scipy.stats.laplace.logpdf(y, f, 0.5).sum(-1),
        kink=True,
    ),
    "student_t": Case(StudentT, 1, lambda y, f: scipy.stats.t.logpdf(y, 5.0, f, 1.0).sum(-1)),
    "student_t-fixed": Case(
        lambda: StudentT(3.5, 0.4), 2, lambda y, f: scipy.stats.t.logpdf(y, 3.5, f, 0.4).sum(-1)
    ),
    "poisson": Case(Poisson, 1, lambda y, f: scipy.stats.poisson.logpmf(y, f.exp()[..., 0])),
    "poisson-2": Case(Poisson, 2, lambda y, f: scipy.stats.poisson.logpmf(y, f.exp()).sum(-1)),
    "pixels": Case(lambda: Pixels(5), 5, levels),
    "pixels-2": Case(lambda: Pixels(2), 4, levels),
    "pixels-3": Case(lambda: Pixels(3), 6, levels, sobol=True),
}
CONTINUOUS = [name for name, case in CASES.items() if not case.make().discrete]
ORDERED = [name for name, case in CASES.items() if case.make().metric_family == "values"]


def outputs_of(case: Case, *lead: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        *lead, N, case.num_outputs, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ).to(dtype)


def problem(name: str, dtype: torch.dtype = torch.float64) -> tuple[Likelihood, Tensor, Tensor]:
    """A likelihood, outputs (S, N, F) and targets that one of the draws could have produced."""
    case = CASES[name]
    likelihood, outputs = case.make(), outputs_of(case, S, dtype=dtype)
    return likelihood, outputs, likelihood.check_targets(likelihood.sample(outputs[0], 3).detach())


@pytest.fixture(autouse=True)
def global_rng_untouched():
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state())


def test_every_registered_likelihood_has_a_case():
    assert {type(case.make()) for case in CASES.values()} == {
        entry for _, entry in likelihoods.items()
    }
    assert all(entry.name == name for name, entry in likelihoods.items())


@pytest.mark.parametrize("name", CASES)
def test_shapes_and_log_prob_of_forward(name):
    likelihood, outputs, y = problem(name)
    distribution = likelihood(outputs)
    assert distribution.batch_shape == (S, N)
    assert y.shape == (N, *distribution.event_shape)
    torch.testing.assert_close(
        likelihood.log_prob(outputs, y), distribution.log_prob(y), rtol=1e-10, atol=1e-10
    )
    assert (
        likelihood.num_outputs(y) <= outputs.shape[-1]
    )  # equality but for categorical, where the last class may be missing
    assert likelihood.accepts(outputs.shape[-1], y)
    assert likelihood.marginals(outputs).batch_shape == likelihood.moments(outputs)[0].shape


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.scipy])
def test_log_prob_equals_scipy(name):
    likelihood, outputs, y = problem(name)
    reference = CASES[name].scipy
    assert reference is not None
    expected = torch.stack([torch.as_tensor(reference(y, f)) for f in outputs])
    # Learned parameters start from single-precision logarithms.
    tolerance = 1e-7 if list(likelihood.parameters()) else 1e-10
    torch.testing.assert_close(
        likelihood.log_prob(outputs, y), expected, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("name", CASES)
def test_expected_log_prob_equals_numeric_default(name):
    likelihood, mean, y = problem(name)
    var = torch.rand(mean.shape, generator=torch.Generator().manual_seed(2), dtype=mean.dtype) * 0.5
    closed = likelihood.expected_log_prob(mean, var, y)
    numeric = Likelihood.expected_log_prob(likelihood, mean, var, y)
    assert closed.shape == (S, N)
    # The middle nodes of a 64-node rule lie h = pi/8 deviations apart; a kink between two of them
    # costs at most h^2/8 times the jump of the slope, 2/b, times the density there, 1/sqrt(2 pi),
    # times the deviation, in each of two dimensions.
    kink = 2 * (math.pi / 8) ** 2 / 8 * (2 / 0.5) * math.sqrt(0.5) / math.sqrt(2 * math.pi)
    # Two pixels from 256 antithetic pairs, shared or not. The part of log p even in f - mean has no
    # linear term, so its variance is at most half its mean squared slope (Gaussian Poincare), which
    # for a softmax and variances below 1/2 is below 1/2.
    sobol = Z * 2 * math.sqrt(0.25 / 256) * math.sqrt(1 + 1 / 2)
    tolerance = kink if CASES[name].kink else sobol if CASES[name].sobol else 1e-7
    torch.testing.assert_close(closed, numeric, rtol=0, atol=tolerance)
    still = likelihood.expected_log_prob(mean, torch.zeros_like(var), y)
    torch.testing.assert_close(still, likelihood.log_prob(mean, y), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "name", [n for n in CASES if n != "full_gaussian-fixed"]
)  # its dimensions are not independent
def test_entropy_equals_numeric_default(name):
    likelihood, outputs, _ = problem(name)
    closed = likelihood.entropy(outputs)
    assert closed.shape == (S, N)
    torch.testing.assert_close(
        closed, Likelihood.entropy(likelihood, outputs), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", CASES)
def test_mixture_of_equal_components_is_the_component(name):
    likelihood, outputs, y = problem(name)
    same = outputs[:1].expand(S, -1, -1)
    torch.testing.assert_close(
        likelihood.mixture_log_prob(same, y), likelihood.log_prob(outputs[0], y)
    )
    torch.testing.assert_close(
        likelihood.mixture_entropy(same), likelihood.entropy(outputs[0]), rtol=1e-6, atol=1e-6
    )
    mean, aleatoric, epistemic = likelihood.mixture_moments(same)
    torch.testing.assert_close((mean, aleatoric), likelihood.moments(outputs[0]))
    torch.testing.assert_close(epistemic, torch.zeros_like(epistemic))


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("q", [0.01, 0.3, 0.95])
def test_mixture_quantile_inverts_mixture_cdf(name, q):
    likelihood, outputs, _ = problem(name)
    y = likelihood.mixture_quantile(outputs, q)
    assert y.shape == (N, likelihood.target_dim(outputs.shape[-1]))
    torch.testing.assert_close(
        likelihood.mixture_cdf(outputs, y), torch.full_like(y, q), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("name", [n for n in CASES if n not in ORDERED])
def test_labels_have_no_quantiles(name):
    likelihood, outputs, y = problem(name)
    with pytest.raises(CredoError, match="no order"):
        likelihood.mixture_quantile(outputs, 0.5)
    with pytest.raises(CredoError, match="no order"):
        likelihood.mixture_cdf(outputs, y)


@pytest.mark.parametrize("name", ORDERED)
def test_values_have_no_labels(name):
    likelihood, outputs, y = problem(name)
    for call in (
        lambda: likelihood.probs(outputs),
        lambda: likelihood.label(outputs[0]),
        lambda: likelihood.label_table(outputs, y),
    ):
        with pytest.raises(CredoError, match=likelihood.name):
            call()
    with pytest.raises(SettingError, match=r"q=1\.5"):
        likelihood.mixture_quantile(outputs, 1.5)


@pytest.mark.parametrize("name", [n for n in CASES if n != "categorical"])
def test_sample_mean_by_z_test(name):
    likelihood, outputs, _ = problem(name)
    n = 2000
    draws = likelihood.sample(outputs[0].expand(n, -1, -1), 5).reshape(n, N, -1)
    mean, variance = likelihood.moments(outputs[0])
    z = (draws.mean(0) - mean) / (variance / n).sqrt()
    assert z.abs().max() < Z + 0.5  # up to 14 cells: the half keeps the failure rate below 1e-6


@pytest.mark.parametrize("name", CONTINUOUS)
def test_samples_follow_the_cdf(name):
    likelihood, outputs, _ = problem(name)
    n = 2000
    u = likelihood.marginal_cdf(outputs[0], likelihood.sample(outputs[0].expand(n, -1, -1), 6))
    # Moments of a uniform variable: u has variance 1/12, (u - 1/2)^2 has mean 1/12 and variance
    # 1/180.
    for value, variance in ((u - 0.5, 1 / 12), ((u - 0.5).square() - 1 / 12, 1 / 180)):
        assert (value.mean(0) / math.sqrt(variance / n)).abs().max() < Z + 0.5


@pytest.mark.parametrize("name", CASES)
def test_sample_repeats_with_its_seed(name):
    likelihood, outputs, _ = problem(name)
    first = likelihood.sample(outputs, 1)
    assert torch.equal(first, likelihood.sample(outputs, 1))
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    assert torch.equal(*(likelihood.sample(outputs, generator) for generator in generators))
    assert not torch.equal(first, likelihood.sample(outputs, 2))
    assert first.shape == likelihood(outputs).batch_shape + likelihood(outputs).event_shape


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept(name, dtype):
    likelihood, outputs, y = problem(name, dtype)
    results = [
        likelihood.log_prob(outputs, y),
        likelihood.entropy(outputs),
        likelihood.mixture_entropy(outputs),
    ]
    results += [
        likelihood.expected_log_prob(outputs, outputs.square(), y),
        *likelihood.mixture_moments(outputs),
    ]
    results += [*likelihood.uncertainty(outputs), likelihood.reported_variance(outputs)]
    if name in ORDERED:
        results += [likelihood.mixture_quantile(outputs, 0.5), likelihood.sample(outputs)]
    assert all(r.dtype == dtype and bool(r.isfinite().all()) for r in results)


@pytest.mark.parametrize("name", CASES)
def test_config_and_state_restore(name):
    likelihood, outputs, y = problem(name)
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter.add_(0.3)
    config = json.loads(json.dumps(likelihood.config()))
    other = likelihoods[likelihood.name].from_config(config)
    other.load_state_dict(likelihood.state_dict())
    assert torch.equal(other.log_prob(outputs, y), likelihood.log_prob(outputs, y))


@pytest.mark.parametrize("name", CASES)
def test_frozen_copy_does_not_follow_training(name):
    likelihood, outputs, y = problem(name)
    copy = likelihood.frozen()
    before = copy.log_prob(outputs, y)
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter.add_(1.0)
    assert torch.equal(copy.log_prob(outputs, y), before)
    assert not any(p.requires_grad for p in copy.parameters())


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if list(case.make().parameters())])
def test_a_sample_axis_may_replace_parameters(name):
    """Parameters of shape (S, 1, ...) act as S likelihoods, one for each draw of the outputs."""
    likelihood, outputs, y = problem(name)
    singles = [CASES[name].make() for _ in range(S)]
    for key, parameter in list(likelihood.named_parameters()):
        values = parameter.detach() + 0.3 * torch.randn(
            S, *parameter.shape, generator=torch.Generator().manual_seed(4)
        )
        width = parameter.shape[0] if parameter.dim() else 1
        setattr(likelihood, key, nn.Parameter(values.reshape(S, 1, width)))
        for single, value in zip(singles, values, strict=True):
            setattr(single, key, nn.Parameter(value))
    var = outputs.square()
    for call in (
        lambda lik, f, v: lik.log_prob(f, y),
        lambda lik, f, v: lik.entropy(f),
        lambda lik, f, v: lik.moments(f)[1],
        lambda lik, f, v: lik.expected_log_prob(f, v, y),
        lambda lik, f, v: Likelihood.expected_log_prob(lik, f, v, y),
        lambda lik, f, v: lik.marginal_cdf(f, y),
        lambda lik, f, v: lik(f).log_prob(y),
    ):
        expected = torch.stack(
            [call(single, f, v) for single, f, v in zip(singles, outputs, var, strict=True)]
        )
        torch.testing.assert_close(call(likelihood, outputs, var), expected)
    frozen = likelihood.frozen()
    assert frozen.mixture_entropy(outputs).shape == (N,)
    assert frozen.mixture_quantile(outputs, 0.9).shape == (
        N,
        likelihood.target_dim(outputs.shape[-1]),
    )
    assert frozen.sample(outputs).shape == outputs.shape


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_finite_and_vmap_agrees(name):
    likelihood, outputs, y = problem(name)
    wide = (outputs.float() * 10).requires_grad_()
    loss = likelihood.log_prob(wide, y).sum()
    loss.backward()
    assert wide.grad is not None and bool(wide.grad.isfinite().all())
    torch.testing.assert_close(
        torch.vmap(lambda f: likelihood.log_prob(f, y))(outputs), likelihood.log_prob(outputs, y)
    )


@pytest.mark.parametrize("name", CASES)
def test_bad_targets_are_refused(name):
    likelihood, outputs, y = problem(name)
    shaped = y.to(torch.float64).clone()
    for bad in (float("nan"), float("inf")):
        broken = shaped.clone()
        broken.view(N, -1)[3, 0] = bad
        with pytest.raises(DataError, match="row 3"):
            likelihood.check_targets(broken)
    with pytest.raises(DataError, match="all 7 targets"):
        likelihood.check_training_targets(torch.ones_like(shaped))
    with pytest.raises(DataError, match="at least one"):
        likelihood.check_targets(shaped[:0])
    with pytest.raises(DataError, match="6 targets for 7 predictions"):
        likelihood.check_pair(outputs, y[:6])
    with pytest.raises(DataError, match="shape"):
        likelihood.check_targets(torch.zeros(N, 2, 2))
    with pytest.raises(DataError, match="not numbers"):
        likelihood.check_targets(["a", "b"])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_inputs_are_floats_in_the_shape_of_the_targets(name):
    likelihood, _, y = problem(name)
    inputs = likelihood.inputs(y)
    assert inputs.is_floating_point() and inputs.shape == y.shape
    scale = 1 if not name.startswith("pixels") else likelihood.config()["levels"] - 1
    torch.testing.assert_close(inputs.double() * scale, y.double())
    assert not y.is_floating_point() or likelihood.inputs(y).dtype == y.dtype


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_watched_unless_a_likelihood_says_so(name):
    assert CASES[name].make().monitor() == {}


def test_get():
    likelihood = Gaussian(0.1)
    assert get(likelihood) is likelihood
    assert isinstance(get("poisson"), Poisson)
    with pytest.raises(SettingError, match="Did you mean 'gaussian'"):
        get("gausian")
    with pytest.raises(SettingError, match="3 is a int"):
        get(3)  # type: ignore[arg-type]


def test_width_mismatch_is_named():
    with pytest.raises(
        DataError, match="gives 3 outputs per datum, but the gaussian likelihood needs 2"
    ):
        Gaussian().check_pair(
            torch.zeros(4, N, 3), torch.randn(N, 2, generator=torch.Generator().manual_seed(0))
        )


def test_only_noise_of_one_deviation_is_gaussian():
    for name, kind in likelihoods.items():
        likelihood = kind(COVARIANCE) if kind is FullGaussian else kind()
        assert likelihood.as_gaussian() is (likelihood if name == "gaussian" else None)


def test_refuse_constant():
    y = torch.tensor([[1.0, 2.0], [1.0, 3.0]])
    with pytest.raises(DataError, match="x: all 2 targets in column 0 are 1; expected variety"):
        refuse_constant(y, "x", "variety")
    assert refuse_constant(y[:, 1], "x", "variety") is not None
