"""What went wrong in a fit, as far as its own records tell: findings with evidence and remedy.

Each check reads the history, the posterior and the targets; the network runs only where these leave
a doubt, so all of them together take milliseconds. Where nothing is wrong there is no finding. A
check is a function from a :class:`Case` to a finding or None, registered under the name that its
finding carries.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from credo.core.errors import CredoError, Finding, FindingError, FindingWarning
from credo.core.registry import Registry
from credo.core.seeds import Streams
from credo.core.sites import is_deep
from credo.data.source import Arrays, Source
from credo.engine.fit_job import FitJob, Problem, base_rate
from credo.engine.method import Method
from credo.engine.model import Fitted, Model
from credo.engine.outputs import Draws, sampled_outputs
from credo.engine.settling import fall, tolerance
from credo.engine.validation import validation_nll
from credo.posteriors import kl

MATERIAL = 0.01  # nats per example by which a fit must beat a constant
FALLING = 0.03  # nats per example that a fall must promise to be worth a word
FULL_RATE = 2 / 3  # of a fit, after which its learning rate falls or has fallen
SAME = 0.05  # of a logarithm, by which a standard deviation has not moved
R_HAT, LEAST_DRAWS, DIVERGENT, PARETO_K = 1.05, 100.0, 0.01, 0.7
ALIKE = 1e-3  # sd of members over the size of their weights
COLLAPSED = 0.01  # nats per weight below which a prior says no more than the posterior
ROWS = 1000  # of the training data, on which a doubtful fit is asked to predict
DEAR = 0.3  # nats per example that noise may cost
BY_HEART, LEARNED = 0.01, 2.0  # nats per example: of labels, and gained over a constant
DRAWS = 8  # where a KL is sampled; their own streams, so that the global generator stays as found


@dataclass(frozen=True)
class Case:
    """A finished fit: its model, method and result, and its job with history, data and N and P."""

    model: Model
    method: Method
    fitted: Fitted
    fit_job: FitJob

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        """A row per epoch, or per draw."""
        return self.fit_job.history

    @property
    def problem(self) -> Problem:
        """N and P."""
        return self.fit_job.problem

    def column(self, *keys: str) -> list[float]:
        """Sums of these entries over the rows that have all of them."""
        return [sum(row[k] for k in keys) for row in self.history if all(k in row for k in keys)]


#: name -> check, in the order in which findings are told
checks: Registry[Callable[[Case], Finding | None]] = Registry("check of a fit")


def diagnose(case: Case) -> list[Finding]:
    """The findings of all checks; empty where nothing is wrong. A check that cannot be made, as of
    a likelihood that cannot be copied, is a finding itself: a fit that is done must not be lost.
    """
    found = []
    for name, check in checks.items():
        try:
            finding = check(case)
        except (RuntimeError, CredoError) as error:
            evidence = f"{name!r} could not be checked: {str(error).splitlines()[0]}"
            finding = Finding("not checked", "warning", evidence, "look at predictions yourself")
        found += [] if finding is None else [finding]
    return found


def tell(findings: Sequence[Finding], strict: bool) -> None:
    """Warn of each finding; with ``strict`` all of them are one error, and the fit is kept."""
    if strict and findings:
        raise FindingError(" ".join(map(sentence, findings)))
    for finding in findings:
        warnings.warn(sentence(finding), FindingWarning, stacklevel=4)


def sentence(finding: Finding) -> str:
    """A finding in one line."""
    return f"{finding.name} ({finding.severity}): {finding.evidence}; {finding.remedy}."


@checks.register("no better than a constant")
def no_better_than_constant(case: Case) -> Finding | None:
    """Predictions are those of the best constant: nothing of the inputs has arrived in the network,
    as where the noise of the weights has drowned the data. By the rows that a trial or the user
    held out, where there are such; else by the training data.
    """
    where, nll, constant, rows = _against_constant(case)
    slack = max(MATERIAL, 2.0 / math.sqrt(rows)) if where == "training" else 0.0
    if not math.isfinite(constant) or nll < constant - slack:
        return None
    evidence = f"the nll on {where} data is {nll:.4g}, that of a constant prediction {constant:.4g}"
    kl = case.history[-1].get("kl", 0.0) if case.history else 0.0
    if kl > 0.0:
        evidence += f", beside a KL of {kl:.4g} nats"
    remedy = "use more data, a smaller network, a narrower prior, or other inputs"
    return Finding("no better than a constant", "serious", evidence, remedy)


def _against_constant(case: Case) -> tuple[str, float, float, int]:
    """On which data, the nll per example there, that of the best constant, and their number."""
    likelihood, source = case.model.likelihood, case.fit_job.source
    nothing = "", math.inf, math.nan, 1
    trial, held_out = case.fitted.trial, case.fit_job.validation
    if held_out is not None and case.history and "validation_nll" in case.history[-1]:
        constant = base_rate(likelihood, source, held_out)
        units = case.model.standardised
        constant += 0.0 if units is None else units.log_volume  # the history is in units of y
        return "validation", case.history[-1]["validation_nll"], constant, held_out.num_data
    if trial is not None:
        nll, constant = trial["chosen"]["held_out_nll"], trial["constant_nll"]
        nll = math.inf if nll is None else nll
        return "held-out", nll, math.inf if constant is None else constant, trial["held_out"]
    losses = [row["nll"] for row in case.history if "nll" in row]
    if not losses or case.fitted.posterior.process is not None:
        return nothing
    count = case.problem.num_data
    constant = base_rate(likelihood, source)
    loss = losses[-1] / count  # an average over draws, whose mixture may predict better
    if loss > constant + MATERIAL or loss < constant - max(MATERIAL, 2.0 / math.sqrt(count)):
        return "training", loss, constant, count
    x, y = next(iter(source(None, min(ROWS, count))))
    score = validation_nll(case.model, Source(Arrays(x, y), len(y)))
    return "training", score(case.fitted.posterior, case.fitted.buffers), constant, len(y)


@checks.register("learned by heart")
def learned_by_heart(case: Case) -> Finding | None:
    """Points without a trial that reproduce every training target say nothing of new data."""
    posterior, rows = case.fitted.posterior, case.problem.num_data
    point = [f for f in posterior.factors if f.atoms is not None]
    weights = sum(s.numel for s in (case.model.random | case.model.point).values())
    losses = [row["nll"] / rows for row in case.history if "nll" in row]
    free = bool(point) and not case.method.is_sampler and case.fitted.trial is None
    if not (free and losses and weights > rows):
        return None
    likelihood, source = case.model.likelihood, case.fit_job.source
    constant = base_rate(likelihood, source)
    noisy = any(True for _ in likelihood.parameters())
    if not (constant - losses[-1] > LEARNED if noisy else losses[-1] < BY_HEART):
        return None
    evidence = (
        f"{weights} weights give {rows} targets a training nll of {losses[-1]:.2g} each, where a "
        f"constant has {constant:.3g}"
    )
    remedy = "give validation data, or fit 'vi', 'laplace' or 'deep_ensemble' with their defaults"
    return Finding("learned by heart", "warning", evidence, remedy)


@checks.register("noise costs more than it may")
@torch.no_grad()
def noise_is_dear(case: Case) -> Finding | None:
    """Draws of the weights predict the training data much worse than their mean does: many more
    weights than data can tell keep noise that the network as a whole does not bear.
    """
    losses = [row["nll"] / case.problem.num_data for row in case.history if "nll" in row]
    posterior = case.fitted.posterior
    random = any(f.atoms is None for f in posterior.factors)
    if case.method.is_sampler or posterior.process is not None or not (random and losses):
        return None
    if case.method.shortcut is not None or not math.isfinite(losses[-1]):
        return None
    model, buffers = case.model, case.fitted.buffers
    x, y = next(iter(case.fit_job.source(None, min(ROWS, case.problem.num_data))))
    try:
        outputs, _ = sampled_outputs(model, Draws.mean(posterior, model), x, buffers, 0)
    except CredoError:
        return None  # a posterior without a mean
    at_mean = -float(
        model.likelihood.log_prob(outputs[0], model.likelihood.check_targets(model.move(y))).mean()
    )
    if losses[-1] - at_mean < DEAR:
        return None
    mixture = validation_nll(model, Source(Arrays(x, y), len(y)))(posterior, buffers)
    units = model.standardised
    mixture -= 0.0 if units is None else units.log_volume
    if mixture - at_mean < DEAR / 2:  # single draws cost, but not all of them together
        return None
    evidence = (
        f"the training nll is {mixture:.3g} per example ({losses[-1]:.3g} by single draws), and "
        f"{at_mean:.3g} with the mean of the weights"
    )
    remedy = "use more data, a smaller network, 'laplace' or 'deep_ensemble', or beta below 1"
    return Finding("noise costs more than it may", "warning", evidence, remedy)


@checks.register("still falling")
def still_falling(case: Case) -> Finding | None:
    """The objective of a descent was still falling when its learning rate began to: what it lost
    since is noise as well.
    """
    ended = case.fit_job.ended.get("ended")
    losses = case.column("nll", "kl")
    losses = losses[: round(FULL_RATE * len(losses))]
    if case.method.is_sampler or ended == "settled" or len(losses) < 8:
        return None
    drop, error = fall(losses)
    least = max(
        FALLING * case.problem.num_data, tolerance(case.problem.num_data, case.problem.num_weights)
    )
    if drop <= max(3.0 * error, least):
        return None
    evidence = f"the objective was falling by {drop:.3g} nats between two sixths of the fit"
    return Finding("still falling", "warning", evidence, "train longer, or with a larger lr")


@checks.register("spread at its start")
def spread_at_start(case: Case) -> Finding | None:
    """Standard deviations are those that the fit began with, so they say nothing of the data."""
    start = getattr(case.method, "init_std", None)
    if not isinstance(start, float):
        return None
    found = [f.std() for f in case.fitted.posterior.factors if f.name == "mean_field"]
    stds = [s.reshape(-1) for each in found if each is not None for s in each.values()]
    if not stds:
        return None
    median = float(torch.cat(stds).log().median())
    if abs(median - math.log(start)) > SAME:
        return None
    evidence = f"half of all standard deviations are within 5 % of init_std={start:g}"
    return Finding("spread at its start", "serious", evidence, "train longer, or with a larger lr")


@checks.register("collapsed prior")
@torch.no_grad()
def collapsed_prior(case: Case) -> Finding | None:
    """The KL to a learned prior is next to nothing: then it no longer holds the weights back.

    With a hyperparameter per weight the prior can follow q wherever it goes, and the fit is maximum
    likelihood in disguise; share hyperparameters over more weights, or give them a hyperprior.
    """
    if not case.model.prior.is_learned:
        return None
    for family in case.fitted.posterior.factors:
        prior = case.model.prior_over(family)
        if family.atoms is not None or prior is None or not family.kl_is_bound:
            continue
        share = float(kl(family, prior, Streams(0, range(DRAWS)))) / family.varying
        if share < COLLAPSED:
            evidence = (
                "the learned prior has collapsed onto the posterior, with a KL of "
                f"{share:.2g} nats per weight over {family.varying} weights"
            )
            remedy = (
                "learn it for larger groups (per='layer'), learn fewer of its arguments, or give "
                "it a hyperprior"
            )
            return Finding("collapsed prior", "warning", evidence, remedy)
    return None


@checks.register("chains not mixed")
def chains_not_mixed(case: Case) -> Finding | None:
    """The chains differ by more between them than within them: in the network's outputs at a few
    inputs, where these were looked at, else in their log density.
    """
    densities = _log_densities(case)
    if densities is None or len(densities) < 2:
        return None
    known = case.history[-1].get("r_hat")
    value = split_r_hat(densities) if known is None else known
    if not value > R_HAT:
        return None
    what = "log density" if known is None else "worst output"
    evidence = f"the {what} of {len(densities)} chains has R-hat {value:.3f}"
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
    """Draws repeat each other: of all chains they count as few, by the network's outputs where
    these were looked at, else by the log density.
    """
    densities = _log_densities(case)
    if densities is None or not np.isfinite(densities).all():
        return None
    known = case.history[-1].get("ess")
    count = effective_draws(densities) if known is None else known
    if count >= min(LEAST_DRAWS, 0.5 * densities.size):
        return None
    what = "log density" if known is None else "worst output"
    evidence = f"{densities.size} draws count as {count:.0f} by their {what}"
    return Finding("few effective draws", "warning", evidence, "raise num_draws or thin")


@checks.register("weights carried by few draws")
def few_draws_carry_the_weight(case: Case) -> Finding | None:
    """Importance weights with a heavy tail: their averages do not settle."""
    found = [row["pareto_k"] for row in case.history if row.get("pareto_k") is not None]
    if not found or found[-1] <= PARETO_K:
        return None
    evidence = f"the weights' Pareto k is {found[-1]:.2f}, above {PARETO_K}"
    remedy = "use a richer proposal, or hmc"
    return Finding("weights carried by few draws", "serious", evidence, remedy)


@checks.register("members alike")
def members_alike(case: Case) -> Finding | None:
    """Networks of a set that are one and the same have no disagreement to show."""
    families = [f for f in case.fitted.posterior.factors if f.name == "samples"]
    if case.method.is_sampler or not families or not is_deep(case.model.sites.values()):
        return None  # one layer has one optimum
    draws = torch.cat([family.state_dict()["flat"] for family in families], 1).double()
    size = float(draws.square().mean().sqrt())
    if len(draws) < 2 or float(draws.std(0).square().mean().sqrt()) > ALIKE * size:
        return None
    evidence = f"the weights of {len(draws)} members differ by less than {ALIKE:g} of their size"
    remedy = "start members at random (init='random'), or train a larger network"
    return Finding("members alike", "warning", evidence, remedy)


@checks.register("untrained normalisation")
def untrained_normalisation(case: Case) -> Finding | None:
    """A sampler runs the network in evaluation mode, with statistics that no data have set."""
    norms = (nn.modules.batchnorm._BatchNorm,)
    untouched = [
        name
        for name, module in case.model.net.named_modules()
        if isinstance(module, norms)
        and module.num_batches_tracked is not None
        and int(module.num_batches_tracked) == 0
    ]
    if not case.method.is_sampler or not untouched:
        return None
    evidence = f"BatchNorm {untouched[0]!r} has seen no data and runs as it came"
    return Finding("untrained normalisation", "warning", evidence, "fit 'map' first and sample it")


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
