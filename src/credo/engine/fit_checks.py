"""Checks of descents, of what they end at, and of predictions by the nll."""

from __future__ import annotations

import math

import torch

from credo.core.errors import CredoError, Finding
from credo.core.seeds import Streams
from credo.engine.findings import Case, new_checks
from credo.engine.fit_job import base_rate
from credo.engine.outputs import Draws, sampled_outputs
from credo.engine.settling import fall, tolerance
from credo.posteriors import kl

MATERIAL = 0.01  # nats per example by which a fit must beat a constant
FALLING = 0.03  # nats per example that a fall must promise to be worth a word
FULL_RATE = 2 / 3  # of a fit, after which its learning rate falls or has fallen
SAME = 0.05  # of a logarithm, by which a standard deviation has not moved
COLLAPSED = 0.01  # nats per weight below which a prior says no more than the posterior
DEAR = 0.3  # nats per example that noise may cost
BY_HEART, LEARNED = 0.01, 2.0  # nats per example: of labels, and gained over a constant
DRAWS = 8  # where a KL is sampled; their own streams, so that the global generator stays as found

checks = new_checks()


@checks.register("no better than a constant")
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
    x, y = case.rows
    try:
        outputs, _ = sampled_outputs(model, Draws.mean(posterior, model), x, buffers, 0)
    except CredoError:
        return None  # a posterior without a mean
    targets = model.likelihood.check_targets(y)
    at_mean = -float(model.likelihood.log_prob(outputs[0], targets).mean())
    if losses[-1] - at_mean < DEAR:
        return None
    mixture = case.nll
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
