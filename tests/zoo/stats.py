"""Tests of distributions with a declared failure rate.

Every comparison is a z-score against ``Z``: a right program fails one comparison with probability
5.7e-7 (two-sided normal tail at 5), so a suite of 10,000 comparisons fails once in 175 seeds; and
the seeds are fixed.
"""

import math

import torch

Z = 5.0
#: Smallest p-value a Kolmogorov-Smirnov test may give: the same failure rate as ``Z``.
P_VALUE = 5.7e-7


def _var_error(a):
    """Squared standard error of the sample variance of draws along axis 0, from the fourth
    moment.
    """
    centred = a - a.mean(0)
    return ((centred**4).mean(0) - a.var(0, correction=0) ** 2).clamp_min(0) / len(a)


def _check(difference, squared_error, what, z):
    # A rounding floor: two equal constants differ by float noise and have no sampling error at all.
    floor = 1e-9 if difference.dtype == torch.float64 else 1e-5
    scores = difference.abs() / (squared_error.sqrt() + floor)
    assert torch.isfinite(scores).all() and float(scores.max()) < z, (
        f"{what}: |z| = {float(scores.max()):.2f} > {z}"
    )


def same_mean(a, b, z=Z):
    _check(a.mean(0) - b.mean(0), a.var(0) / len(a) + b.var(0) / len(b), "means differ", z)


def same_variance(a, b, z=Z):
    _check(a.var(0) - b.var(0), _var_error(a) + _var_error(b), "variances differ", z)


def has_mean(a, mean, z=Z):
    mean = torch.as_tensor(mean, dtype=a.dtype)
    _check(a.mean(0) - mean, a.var(0) / len(a), "mean", z)


def has_variance(a, var, z=Z):
    var = torch.as_tensor(var, dtype=a.dtype)
    _check(a.var(0) - var, _var_error(a), "variance", z)


def has_covariance(a, cov, z=Z):
    """Draws (S, P) against a covariance (P, P), entry by entry."""
    centred = a - a.mean(0)
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    has_mean(products, cov, z)


def follows(values, cdf, p_value=P_VALUE):
    """Kolmogorov-Smirnov test of draws against a distribution function."""
    from scipy.stats import kstest

    result = kstest(values.numpy(), cdf)
    assert result.pvalue > p_value, f"KS p-value {result.pvalue:.2g}"


def log_mean_exp(values):
    return torch.logsumexp(values, 0) - math.log(len(values))
