"""Checks of samplers: whether chains have mixed and draws count."""

from __future__ import annotations

import math

import numpy as np

from credo.core.errors import Finding
from credo.engine.findings import Case, new_checks

R_HAT, LEAST_DRAWS = 1.05, 100.0  # of outputs and of the log density
R_HAT_Y, LEAST_DRAWS_Y = 1.1, 40.0  # of y, whose noise the chains share
DIVERGENT = 0.01  # of trajectories

checks = new_checks()


@checks.register("chains not mixed")
def chains_not_mixed(case: Case) -> Finding | None:
    """The chains differ by more between them than within them: in what they predict of y, noise
    included, where that was recorded; else in the network's outputs, else in their log density.
    """
    densities = _log_densities(case)
    if densities is None or len(densities) < 2:
        return None
    row = case.history[-1]
    outputs, predicted = row.get("r_hat"), row.get("r_hat_y")
    if predicted is not None:
        most, value, what = R_HAT_Y, predicted, f"predictions of y by {len(densities)} chains have"
    elif outputs is not None:
        most, value, what = R_HAT, outputs, f"the worst output of {len(densities)} chains has"
    else:
        value = split_r_hat(densities)
        most, what = R_HAT, f"the log density of {len(densities)} chains has"
    if not value > most:
        return None
    evidence = f"{what} R-hat {value:.3f}"
    if predicted is not None and outputs is not None:
        evidence += f" (worst output {outputs:.3f})"
    remedy = "raise num_warmup and num_draws, and compare predictions with credo.audit.diagnose"
    return Finding("chains not mixed", "serious", evidence, remedy)


@checks.register("divergent trajectories")
def divergent_trajectories(case: Case) -> Finding | None:
    """Trajectories that left the surface of constant energy: a part of the posterior is cut off."""
    rows = [row["divergent"] for row in case.history if "divergent" in row and not row["warmup"]]
    share = float(np.mean(rows)) if rows else 0.0
    if share <= DIVERGENT:
        return None
    evidence = f"{100 * share:.1f} % of the draws' trajectories diverged"
    remedy = "raise target_rate or num_warmup, or use a prior with lighter tails"
    return Finding("divergent trajectories", "warning", evidence, remedy)


@checks.register("few effective draws")
def few_effective_draws(case: Case) -> Finding | None:
    """Draws repeat each other: of all chains they count as few, by what they predict of y where
    that was recorded; else by the network's outputs, else by the log density.
    """
    densities = _log_densities(case)
    if densities is None or not np.isfinite(densities).all():
        return None
    row = case.history[-1]
    outputs, predicted = row.get("ess"), row.get("ess_y")
    if predicted is not None:
        least, count, what = LEAST_DRAWS_Y, predicted, "predictions of y"
    elif outputs is not None:
        least, count, what = LEAST_DRAWS, outputs, "worst output"
    else:
        least, count, what = LEAST_DRAWS, effective_draws(densities), "log density"
    if not count < min(least, 0.5 * densities.size):
        return None
    evidence = f"{densities.size} draws count as {count:.0f} by their {what}"
    if predicted is not None and outputs is not None:
        evidence += f" (as {outputs:.0f} by their worst output)"
    return Finding("few effective draws", "warning", evidence, "raise num_draws or thin")


def _log_densities(case: Case) -> np.ndarray | None:
    """Log densities of the draws ``(C, D)``, where the history has them."""
    if not case.method.is_sampler:
        return None
    rows = [
        row["log_density"] for row in case.history if "log_density" in row and not row["warmup"]
    ]
    return np.asarray(rows, dtype=np.float64).T if len(rows) >= 8 else None


def split_r_hat(densities: np.ndarray) -> float:
    """sqrt(1 + B / W) of half chains ``(2 C, D / 2)``: B the variance between their means, W the
    mean variance within them.
    """
    half = densities.shape[1] // 2
    parts = np.concatenate([densities[:, :half], densities[:, -half:]])
    within = parts.var(1, ddof=1).mean()
    return math.sqrt((half - 1) / half + parts.mean(1).var(ddof=1) / max(within, 1e-300))


def effective_draws(densities: np.ndarray) -> float:
    """C D / (1 + 2 sum of autocorrelations), summed while neighbouring pairs are positive."""
    centred = densities - densities.mean(1, keepdims=True)
    count = densities.shape[1]
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(centred, size)) ** 2
    covariance = np.fft.irfft(spectrum, size)[:, :count].mean(0) / count
    if covariance[0] <= 0:
        return 0.0
    rho, total = covariance / covariance[0], 0.0
    for lag in range(1, count - 1, 2):
        pair = rho[lag] + rho[lag + 1]
        if pair <= 0:
            break
        total += pair
    return densities.size / (1.0 + 2.0 * total)
