"""Exact answers to problems that have one, and when a fit counts as near.

Linear regression with known noise has a known posterior, and each family of posteriors a known best
member (``credo.conformance``). A linear autoencoder is probabilistic PCA (Tipping and Bishop 1999),
whose best marginal likelihood has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from credo.conformance.exact_targets import targets
from credo.conformance.problems import Conjugate
from credo.core.errors import CredoError
from credo.methods import methods
from credo.posteriors import Posterior
from credo_reproduce.defaults_problems import GENERATIVE, LATENT, NOISE, Problem

DRAWS = 4000  # of the posterior; then a variance has an error of 2 %
MEAN, VARIANCE = 0.5, 0.35  # how near: posterior deviations, and a share of the variance
NLL = 0.1  # nats per datum
FLOOR = 0.1  # share of the exact posterior variance below which a variance is as good as none


def conjugate_of(problem: Problem) -> Conjugate:
    """The exact posterior of linear regression on the training part, under N(0, 1)."""
    x, y = problem.train[0].double(), problem.train[1].double()[:, 0]
    design = _design(x)
    precision = torch.eye(design.shape[1]).double() + design.T @ design / NOISE**2
    mean = torch.linalg.solve(precision, design.T @ y / NOISE**2)
    least_squares = torch.linalg.lstsq(design, y[:, None]).solution[:, 0]
    return Conjugate(x, y, NOISE, mean, precision, least_squares, math.nan)


def _design(x: Tensor) -> Tensor:
    return torch.cat([x.double(), torch.ones(len(x), 1).double()], 1)


def exact_nll(problem: Problem) -> float | None:
    """Mean test nll of the exact answer, where there is one."""
    if problem.kind == "conjugate":
        exact, design = conjugate_of(problem), _design(problem.test[0])
        var = ((design @ exact.covariance) * design).sum(1) + NOISE**2
        predicted = Normal(design @ exact.mean, var.sqrt())
        return -float(predicted.log_prob(problem.test[1].double()[:, 0]).mean())
    if problem.kind == "generative":
        return principal_components_nll(problem.train[0], problem.test[0], LATENT)
    return None


def principal_components_nll(train: Tensor, test: Tensor, latent: int) -> float:
    """-mean log N(x; mean, W W^T + s I) with the W and s of maximum likelihood: s is the mean of
    the eigenvalues of the covariance that are left out, W W^T what the others exceed it by.
    """
    train, test = train.double(), test.double()
    values, vectors = torch.linalg.eigh(torch.cov(train.T, correction=0))
    noise = values[:-latent].mean()
    chosen = torch.cat([noise.expand(len(values) - latent), values[-latent:]])
    covariance = (vectors * chosen) @ vectors.T
    return -float(MultivariateNormal(train.mean(0), covariance).log_prob(test).mean())


def distance(method: str, problem: Problem, posterior: Posterior, seed: int) -> dict[str, Any]:
    """How far draws of weight and bias are from what the method should reach: the worst mean in
    exact posterior deviations, and the least and largest ratio of variances.

    Empty where the weights of this method are not those of the regression, or have no known answer.
    Methods whose spread is not that of the posterior (conformance says which) have no ratios; those
    of other families, whose best variance may be zero, have a tenth of the posterior's added to
    both sides.
    """
    kind = methods[method]
    if "conjugate_mean" in kind.exceptions or posterior.process is not None:
        return {}
    drawn = posterior.sample(DRAWS, seed=seed)
    if not {"weight", "bias"} <= set(drawn):
        return {}
    flat = torch.cat([drawn["weight"].flatten(1), drawn["bias"].flatten(1)], 1).double()
    exact = conjugate_of(problem)
    target = targets[kind.target](exact)
    if not (target.mean.isfinite().all() and target.variance.isfinite().all()):
        return {}
    off = (_mean(posterior, flat) - target.mean) / exact.covariance.diagonal().sqrt()
    found: dict[str, Any] = {"offset": float(off.abs().max())}
    varies = target.variance > 0
    if "conjugate_covariance" not in kind.exceptions and bool(varies.any()):
        floor = FLOOR * exact.covariance.diagonal()[varies]
        if kind.target in ("exact", "mean_field"):
            floor = torch.zeros_like(floor)
        ratio = (flat.var(0)[varies] + floor) / (target.variance[varies] + floor)
        found |= {"least_ratio": float(ratio.min()), "largest_ratio": float(ratio.max())}
    return found


def _mean(posterior: Posterior, drawn: Tensor) -> Tensor:
    """Of weight and bias: the posterior's own where it has one, since draws of a wide family know
    theirs by a part of its width only; else that of the draws.
    """
    try:
        mean = posterior.mean()
    except CredoError:
        return drawn.mean(0)
    return torch.cat([mean["weight"].flatten(), mean["bias"].flatten()]).double().detach()


class Verdict(NamedTuple):
    """How a cell is judged: "near", "far" (and a finding says so), "silent" (far, and no finding),
    or that there is nothing to judge; with the text that the table shows.
    """

    word: str
    text: str


def judge(result: Mapping[str, Any] | None, best: float | None) -> Verdict:
    """A cell against the best known test nll, or against the exact posterior where it has one."""
    if result is None:
        return Verdict("missing", "–")
    if result["status"] != "fitted":
        return Verdict(result["status"], result["status"])
    findings = [each["name"] for each in result["findings"]]
    near, gap = _near(result, best)
    if near is None:
        return Verdict("missing", "nothing to compare with")
    if near:
        count = f", {len(findings)} finding{'s'[: len(findings) > 1]}" if findings else ""
        return Verdict("near", f"near{count}")
    if not findings:
        return Verdict("silent", f"SILENT ({gap})")
    more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
    return Verdict("far", f"far ({gap}): {findings[0]}{more}")


def _near(result: Mapping[str, Any], best: float | None) -> tuple[bool | None, str]:
    """Whether it is, and what is furthest off."""
    offset, low, high = (result.get(k) for k in ("offset", "least_ratio", "largest_ratio"))
    if offset is not None:
        if not offset <= MEAN:
            return False, f"mean {offset:.2g} sd"
        if low is None or high is None:
            return True, ""
        if not low >= 1 - VARIANCE:
            return False, f"variance x {low:.2g}"
        return bool(high <= 1 + VARIANCE), f"variance x {high:.2g}"
    nll = result.get("nll")
    if nll is None:
        return False, "nll not finite"
    if best is None:
        return None, ""
    return bool(nll - best <= NLL), f"{nll - best:+.2f}"


def best_known(rows: list[Mapping[str, Any]], method: str) -> float | None:
    """For a method, of all cells of one problem and seed: for a generative model the exact answer;
    else the best test nll that a search among settings of this method has found; else that of map
    at its defaults or of the base rate.

    In regression whose posterior is known only another model, such as a Gaussian process, is judged
    by its nll, and no other model has to have that of the right one.
    """
    fitted = [row for row in rows if row["status"] == "fitted" and row.get("nll") is not None]
    exact = [row["exact_nll"] for row in fitted if row.get("exact_nll") is not None]
    if exact and fitted[0]["problem"] in GENERATIVE:
        return exact[0]
    searched = [row["nll"] for row in fitted if row["trial"] > 0 and row["method"] == method]
    if searched:
        return min(searched)
    known = [row["base_nll"] for row in fitted if "base_nll" in row]
    known += [row["nll"] for row in fitted if row["method"] == "map"]
    return min(known, default=None)
