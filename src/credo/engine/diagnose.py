"""What went wrong in a fit, as far as its own records tell: findings with evidence and remedy.

Each check reads the history, the posterior and the targets, or predictions of some training rows,
which are made once for all. Where nothing is wrong there is no finding. A check is a function from
a :class:`Case` to a finding or None, registered under the name that its finding carries: here those
of all fits and of samplers, in ``fit_checks`` those of descents and what they end at, in
``value_checks`` those of real targets.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from credo.core.errors import Finding, FindingError, FindingWarning
from credo.core.registry import Registry
from credo.core.tree import take
from credo.engine.fit_job import FitJob, Problem, base_rate
from credo.engine.method import Method
from credo.engine.model import Fitted, Model
from credo.engine.validation import predicted
from credo.likelihoods.continuous_likelihood import ContinuousLikelihood
from credo.metrics.chain_diagnostics import MIN_DRAWS, ess_bulk, rhat
from credo.predictive import Predictive

ROWS, FEW = 1000, 64  # of the training data, on which a fit is asked to predict
PRODUCTS = 2e9  # of weights, rows and draws that this may take, unless FEW rows take more
DRAWS = 16  # of the posterior, that predict
MATERIAL = 0.01  # nats per example by which a fit must beat a constant
R_HAT, LEAST_DRAWS = 1.05, 100.0  # of outputs and of the log density
R_HAT_Y, LEAST_DRAWS_Y = 1.1, 25.0  # of y, whose noise the chains share
DIVERGENT = 0.01  # of trajectories
PARETO_K = 0.7  # above which importance weights have a tail too heavy for averages
LARGE = 1 << 28  # bytes from which a tensor is not read through


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

    @cached_property
    def rows(self) -> tuple[Any, Tensor]:
        """Some training rows as the model sees them, evenly spaced where all are in memory: at most
        1,000, and fewer of a large network.
        """
        problem, source = self.problem, self.fit_job.source
        cost = DRAWS * max(problem.products, problem.num_weights, 1)
        count = min(ROWS, source.num_data, max(FEW, int(PRODUCTS / cost)))
        arrays = source.arrays()
        if arrays is None:
            x, y = next(iter(source(None, count)))
            chosen = torch.arange(min(count, len(y)))
        else:
            x, y = arrays
            chosen = torch.arange(count) * len(y) // count
        chosen = chosen.to(y.device)
        return self.model.move(take(x, chosen)), self.model.move(y[chosen])

    @cached_property
    def predictive(self) -> Predictive:
        """What the method predicts at ``rows``, in the units of the history."""
        with torch.no_grad():
            return predicted(self.model, self.method, self.fitted, self.rows[0], DRAWS)

    @cached_property
    def nll(self) -> float:
        """Of these predictions, per row."""
        return -float(self.predictive.log_prob(self.rows[1]).mean())

    def column(self, *keys: str) -> list[float]:
        """Sums of these entries over the rows that have all of them."""
        return [sum(row[k] for k in keys) for row in self.history if all(k in row for k in keys)]


@dataclass(frozen=True)
class Check:
    """A function that looks at a case, and ``of`` which fits: "all", "samplers", "descents", or
    those of real "values".
    """

    run: Callable[[Case], Finding | None]
    of: str = "all"

    def fits(self, case: Case) -> bool:
        """Whether it can find anything there."""
        if self.of == "values":
            return isinstance(case.model.likelihood, ContinuousLikelihood)
        return self.of == "all" or case.method.is_sampler == (self.of == "samplers")


#: name -> check, in the order in which findings are told
checks: Registry[Check] = Registry("check of a fit")


Run = TypeVar("Run", bound=Callable[[Case], Finding | None])


def checked(name: str, of: str = "all") -> Callable[[Run], Run]:
    """Decorator: ``@checked("still falling", of="descents")``."""

    def add(run: Run) -> Run:
        checks.register(name)(Check(run, of))
        return run

    return add


def diagnose(case: Case) -> list[Finding]:
    """The findings of all checks; empty where nothing is wrong. A check that cannot be made, as of
    a likelihood that cannot be copied, is a finding itself: a fit that is done must not be lost.
    """
    found = []
    for name, check in checks.items():
        try:
            finding = check.run(case) if check.fits(case) else None
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            evidence = f"{name!r} could not be checked: {reason}"
            finding = Finding("not checked", "warning", evidence, "look at predictions yourself")
        found += [] if finding is None else [finding]
    return found


def tell(findings: Sequence[Finding], strict: bool = False) -> None:
    """Warn of each finding; with ``strict`` all of them are one error, and the fit is kept."""
    if strict and findings:
        raise FindingError(" ".join(map(sentence, findings)))
    for finding in findings:
        warnings.warn(sentence(finding), FindingWarning, stacklevel=4)


def sentence(finding: Finding) -> str:
    """A finding in one line."""
    return f"{finding.name} ({finding.severity}): {finding.evidence}; {finding.remedy}."


@checked("no better than a constant")
def no_better_than_constant(case: Case) -> Finding | None:
    """Predictions are those of the best constant: nothing of the inputs has arrived in the network,
    as where the noise of the weights has drowned the data. A KL that dwarfs what the data say ends
    here too, and is in the evidence. By the rows that a trial or the user
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
    return "training", case.nll, constant, len(case.rows[1])


@checked("not a number")
def not_a_number(case: Case) -> Finding | None:
    """The posterior or the noise of y holds NaN. An objective that is no longer finite has ended a
    descent before; this is for what is computed after it, such as a curvature.
    """
    parts = {
        "the posterior": case.fitted.posterior.state_dict(),
        "the likelihood": case.model.likelihood.state_dict(),
    }
    for what, tensors in parts.items():
        for name, tensor in tensors.items():
            if tensor.nbytes <= LARGE and bool(tensor.isnan().any()):
                count = int(tensor.isnan().sum())
                evidence = f"{count} of {tensor.numel()} numbers of {what} ({name}) are NaN"
                remedy = "lower lr, or look for inputs or targets on a wild scale"
                return Finding("not a number", "serious", evidence, remedy)
    return None


@checked("weights carried by few draws")
def few_draws_carry_the_weight(case: Case) -> Finding | None:
    """Importance weights with a heavy tail: their averages do not settle."""
    found = [row["pareto_k"] for row in case.history if row.get("pareto_k") is not None]
    if not found or found[-1] <= PARETO_K:
        return None
    evidence = f"the weights' Pareto k is {found[-1]:.2f}, above {PARETO_K}"
    remedy = "use a richer proposal, or hmc"
    return Finding("weights carried by few draws", "serious", evidence, remedy)


@checked("chains not mixed", of="samplers")
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
        value = float(rhat(densities))
        most, what = R_HAT, f"the log density of {len(densities)} chains has"
    if not value > most:
        return None
    evidence = f"{what} R-hat {value:.3f}"
    if predicted is not None and outputs is not None:
        evidence += f" (worst output {outputs:.3f})"
    remedy = "raise num_warmup and num_draws, and compare predictions with credo.audit.diagnose"
    return Finding("chains not mixed", "serious", evidence, remedy)


@checked("divergent trajectories", of="samplers")
def divergent_trajectories(case: Case) -> Finding | None:
    """Trajectories that left the surface of constant energy: a part of the posterior is cut off."""
    rows = [row["divergent"] for row in case.history if "divergent" in row and not row["warmup"]]
    share = float(torch.as_tensor(rows, dtype=torch.float64).mean()) if rows else 0.0
    if share <= DIVERGENT:
        return None
    evidence = f"{100 * share:.1f} % of the draws' trajectories diverged"
    remedy = "raise target_rate or num_warmup, or use a prior with lighter tails"
    return Finding("divergent trajectories", "warning", evidence, remedy)


@checked("few effective draws", of="samplers")
def few_effective_draws(case: Case) -> Finding | None:
    """Draws repeat each other: of all chains they count as few, by what they predict of y where
    that was recorded; else by the network's outputs, else by the log density.
    """
    densities = _log_densities(case)
    if densities is None or not bool(densities.isfinite().all()):
        return None
    still = int((densities.amax(1) == densities.amin(1)).sum())
    if still:
        evidence = f"{still} of {len(densities)} chains have not moved"
        return Finding("few effective draws", "serious", evidence, "raise num_warmup")
    row = case.history[-1]
    outputs, predicted = row.get("ess"), row.get("ess_y")
    if predicted is not None:
        least, count, what = LEAST_DRAWS_Y, predicted, "predictions of y"
    elif outputs is not None:
        least, count, what = LEAST_DRAWS, outputs, "worst output"
    else:
        least, count, what = LEAST_DRAWS, float(ess_bulk(densities)), "log density"
    if not count < min(least, 0.5 * densities.numel()):
        return None
    evidence = f"{densities.numel()} draws count as {count:.0f} by their {what}"
    if predicted is not None and outputs is not None:
        evidence += f" (as {outputs:.0f} by their worst output)"
    return Finding("few effective draws", "warning", evidence, "raise num_draws or thin")


def _log_densities(case: Case) -> Tensor | None:
    """Log densities of the draws ``(C, D)``, where the history has enough of them."""
    rows = [
        row["log_density"] for row in case.history if "log_density" in row and not row["warmup"]
    ]
    return torch.tensor(rows, dtype=torch.float64).T if len(rows) >= 2 * MIN_DRAWS else None


@checked("untrained normalisation", of="samplers")
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
    if not untouched:
        return None
    evidence = f"BatchNorm {untouched[0]!r} has seen no data and runs as it came"
    return Finding("untrained normalisation", "warning", evidence, "fit 'map' first and sample it")
