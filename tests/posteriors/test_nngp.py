"""The posterior over functions against independent Gaussian process regression, and what its draws
are.
"""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Kernel, StationaryKernelMixin
from zoo.stats import follows, has_covariance, has_mean, has_variance

from credo.core.errors import CredoError, DataError
from credo.core.seeds import Streams
from credo.posteriors import Posterior, RowNoise, WideNetwork
from credo.posteriors import nngp as module
from credo.posteriors.nngp import check_rows

WEIGHTS, BIASES = (1.3, 2.0, 1.7), (0.2, 0.1, 0.4)


class ArcCosine(StationaryKernelMixin, Kernel):
    """Two hidden layers of rectifiers, written for numpy from the published formula."""

    def __init__(self):
        """scikit-learn copies a kernel by the arguments of its constructor: none."""

    def __call__(self, X, Y=None, eval_gradient=False):
        def step(cov, left, right):
            angle = np.arccos(np.clip(cov / np.sqrt(np.outer(left, right)), -1, 1))
            return (
                np.sqrt(np.outer(left, right))
                * (np.sin(angle) + (np.pi - angle) * np.cos(angle))
                / (2 * np.pi)
            )

        Y = X if Y is None else Y
        cov, left, right = (
            WEIGHTS[0] / X.shape[1] * k + BIASES[0] for k in (X @ Y.T, (X**2).sum(1), (Y**2).sum(1))
        )
        for weight, bias in zip(WEIGHTS[1:], BIASES[1:], strict=True):
            cov, left, right = (
                weight * step(cov, left, right) + bias,
                weight * left / 2 + bias,
                weight * right / 2 + bias,
            )
        return cov

    def diag(self, X):
        return np.array([self(row[None])[0, 0] for row in X])


def problem(outputs=1, num_data=25, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(num_data, 3)), rng.normal(size=(num_data, outputs))
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(rng.normal(size=(7, 3)))


def fitted(x, y, *stds):
    return WideNetwork.condition(
        x, y, torch.tensor(stds, dtype=torch.float64).square(), WEIGHTS, BIASES, ["relu", "relu"]
    )


def test_posterior_equals_gaussian_process_regression():
    """Of scikit-learn, with the kernel above; to 1e-8."""
    x, y, new = problem(outputs=2)
    theirs = GaussianProcessRegressor(ArcCosine(), alpha=0.3**2, optimizer=None).fit(
        x.numpy(), y.numpy()
    )
    mean, cover = theirs.predict(new.numpy(), return_cov=True)
    ours = fitted(x, y, 0.3)
    assert np.allclose(ours.average(new), mean, rtol=0, atol=1e-8)
    assert np.allclose(ours.joint_at(new)[0], mean, rtol=0, atol=1e-8) and np.allclose(
        ours.joint_at(new)[1], cover[..., 0], rtol=0, atol=1e-8
    )
    found, var = ours.marginals_at(new)
    assert np.allclose(found, mean, rtol=0, atol=1e-8)
    assert np.allclose(var, cover.diagonal(axis1=0, axis2=1).T, rtol=0, atol=1e-8)


def test_evidence_is_the_log_density_of_the_targets():
    x, y, _ = problem(outputs=2)
    cover = ArcCosine()(x.numpy())
    for stds in ((0.3,), (0.3, 0.8)):
        each = stds * 2 if len(stds) == 1 else stds
        expected = sum(
            multivariate_normal(np.zeros(25), cover + std**2 * np.eye(25)).logpdf(y[:, d])
            for d, std in enumerate(each)
        )
        assert math.isclose(fitted(x, y, *stds).log_evidence(y), expected, rel_tol=1e-10)


def test_outputs_with_noise_of_their_own_are_posteriors_of_their_own():
    x, y, new = problem(outputs=2)
    both, (mean, cover) = fitted(x, y, 0.3, 0.8), fitted(x, y, 0.3, 0.8).joint_at(new)
    assert cover.shape == (2, 7, 7)
    for d, std in enumerate((0.3, 0.8)):
        one = fitted(x, y[:, d : d + 1], std)
        torch.testing.assert_close(mean[:, d], one.average(new)[:, 0])
        torch.testing.assert_close(cover[d], one.joint_at(new)[1])
        torch.testing.assert_close(both.marginals_at(new)[1][:, d], one.marginals_at(new)[1][:, 0])


def test_joint_draws_have_the_posterior_covariance():
    x, y, new = problem(outputs=2)
    for stds in ((0.3,), (0.3, 0.8)):
        family = fitted(x, y, *stds)
        draws = family.outputs(new, RowNoise(1, range(4000), 7), joint=True)
        mean, cover = family.joint_at(new)
        has_mean(draws, mean)
        for d in range(2):
            has_covariance(draws[..., d], cover if cover.dim() == 2 else cover[d])
        assert abs(float(torch.corrcoef(draws[:, 0].T)[0, 1])) < 5 / math.sqrt(
            4000
        )  # outputs are independent


def test_single_draws_have_the_marginals_and_are_normal():
    x, y, new = problem()
    family = fitted(x, y, 0.3)
    draws = family.outputs(new, RowNoise(2, range(4000), 7), joint=False)
    mean, var = family.marginals_at(new)
    has_mean(draws, mean)
    has_variance(draws, var)
    follows((draws[:, 3, 0] - mean[3, 0]) / var[3, 0].sqrt(), norm.cdf)


def test_inputs_in_parts_give_the_same(monkeypatch):
    x, y, new = problem()
    family = fitted(x, y, 0.3)
    whole, average = family.marginals_at(new), family.average(new)
    monkeypatch.setattr(module, "_BUDGET", 50)  # two inputs at a time
    for one, other in zip(
        (*whole, average), (*family.marginals_at(new), family.average(new)), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_single_precision_inputs_lose_nothing_but_the_last_rounding():
    x, y, new = problem()
    family, single = fitted(x, y, 0.3), new.float()
    for one, other in zip(
        family.marginals_at(single), family.marginals_at(single.double()), strict=True
    ):
        assert one.dtype == torch.float32 and torch.equal(one, other.float())
    draws = family.outputs(single, RowNoise(0, range(3), 7), joint=True)
    assert draws.dtype == torch.float32 and draws.shape == (3, 7, 1)


def test_it_is_rebuilt_from_its_config_and_state():
    x, y, new = problem(outputs=2)
    for stds in ((0.3,), (0.3, 0.8)):
        before = Posterior([fitted(x, y, *stds)])
        after = Posterior.from_config(before.config())
        after.load_state_dict(before.state_dict(), assign=True)
        assert after.process is not None and isinstance(before.process, WideNetwork)
        for one, other in zip(
            after.process.marginals_at(new), before.process.marginals_at(new), strict=True
        ):  # type: ignore[attr-defined]
            assert torch.equal(one, other)


def test_certain_where_there_are_data_and_as_the_prior_far_away():
    x, y, _ = problem()
    family = fitted(x, y, 1e-3)
    assert float(family.marginals_at(x)[1].max()) < 1.01e-6  # the variance of the noise, at most
    torch.testing.assert_close(family.average(x), y, atol=1e-2, rtol=0)
    far = 1e3 * torch.ones(1, 3, dtype=torch.float64)
    assert float(family.marginals_at(far)[1]) > 0.01 * float(family.prior_variance(far))


def test_what_is_refused(monkeypatch):
    x, y, new = problem()
    family = fitted(x, y, 0.3)
    with pytest.raises(
        DataError, match=r"takes 3 numbers per example, but these inputs have shape \(7, 2\)"
    ):
        family.marginals_at(new[:, :2])
    with pytest.raises(CredoError, match="no weights to draw"):
        family.draw(Streams(0, range(2)))
    with pytest.raises(CredoError, match="no density over weights"):
        family.log_prob({})
    with pytest.raises(
        CredoError,
        match=r"noise s = 1e-12 is too small beside prior deviations up to [\d.]+; use a larger "
        r"std",
    ):
        fitted(torch.cat([x, x]), torch.cat([y, y]), 1e-12)
    with pytest.raises(
        CredoError,
        match=r"all 30000 inputs, which would take about 22 GB in double precision; at most 20000",
    ):
        check_rows(30_000)
    monkeypatch.setattr(module, "MAX_ROWS", 25)
    with pytest.raises(CredoError, match="between all 26 inputs"):
        family.joint_at(torch.zeros(26, 3))
    with pytest.raises(CredoError, match="between all 26 inputs"):
        fitted(torch.zeros(26, 3), torch.zeros(26, 1), 0.3)
