"""Checks of what a posterior is made of: its draws, its networks, its rates."""

from __future__ import annotations

import math

import torch
from torch import nn

from credo.core.errors import Finding
from credo.core.sites import is_deep
from credo.engine.findings import Case, new_checks
from credo.engine.hidden_units import dead_units
from credo.likelihoods.continuous_likelihood import ContinuousLikelihood

PARETO_K = 0.7  # above which importance weights have a tail too heavy for averages
ALIKE = 1e-3  # sd of members over the size of their weights
WIDE, LOUD = 1.25, 1.5  # sds of the targets that predictions, or learned noise, may have
LEAST_ROWS = 20  # from which on the sd of targets is known
BEYOND_PRIOR = 3.0  # prior sds that the sd of a weight may have
NO_RATE, FULL_RATE = 1e-3, 0.95  # drop rates that leave no noise, or no network
LARGE = 1 << 28  # bytes from which a tensor is not read through

checks = new_checks()


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


@checks.register("not a number")
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


@checks.register("noise exploded")
def noise_exploded(case: Case) -> Finding | None:
    """The learned noise of y is 1.5 times as wide as the targets and more, in the median of the
    rows; or half of all weights have an sd of more than three times their prior's.
    """
    remedy = "train longer with a smaller lr, or give standardised targets"
    likelihood, sizes = case.model.likelihood, _sizes(case)
    learned = isinstance(likelihood, ContinuousLikelihood) and likelihood.learns_size
    if learned and sizes is not None:
        noise = sizes[1]
        if noise > LOUD * _slack(case):
            evidence = f"the learned noise of y has {noise:.3g} times the sd of the targets"
            return Finding("noise exploded", "serious", evidence, remedy)
    ratio = _beyond_prior(case)
    if ratio > BEYOND_PRIOR:
        evidence = f"half of all weights have more than {ratio:.3g} times the sd of their prior"
        return Finding("noise exploded", "serious", evidence, remedy)
    return None


@checks.register("wider than the targets")
def wider_than_targets(case: Case) -> Finding | None:
    """Predictions of training rows are 1.25 times as wide as the targets themselves and more, in
    the median: the noise of the weights has drowned the data. Not told of learned noise alone,
    which is a finding of its own.
    """
    sizes = _sizes(case)
    if sizes is None:
        return None
    total, noise = sizes
    told = case.model.likelihood.learns_size and noise > LOUD * _slack(case)
    if told or not total > WIDE * _slack(case):
        return None
    evidence = (
        f"in the median the predictive sd is {total:.3g} times that of the targets, the noise of y "
        f"alone {noise:.3g} times"
    )
    remedy = "use more data, a smaller network, a narrower prior, or another size of the noise"
    return Finding("wider than the targets", "serious", evidence, remedy)


def _slack(case: Case) -> float:
    """1 and two standard errors of the targets' sd."""
    return 1.0 + 2.0 / math.sqrt(2.0 * case.problem.num_data)


def _sizes(case: Case) -> tuple[float, float] | None:
    """Predictive sd of y, and that of its noise alone, in units of the targets' sd: medians over
    rows and columns. None of other than real targets, of few rows, and without moments.
    """
    likelihood = case.model.likelihood
    real = isinstance(likelihood, ContinuousLikelihood) and likelihood.observed is likelihood
    if not real or likelihood.of_inputs or case.problem.num_data < LEAST_ROWS:
        return None
    targets = likelihood.check_targets(case.fit_job.source.targets()).double()
    size = targets.reshape(len(targets), -1).std(0)
    predictive = case.predictive
    _, noise, doubt = predictive.likelihood.mixture_moments(predictive.outputs)
    ratios = torch.stack([noise + doubt, noise]).double().sqrt() / size.to(noise.device)
    total, alone = ratios.flatten(1).median(1).values.tolist()
    return (total, alone) if math.isfinite(total) else None


def _beyond_prior(case: Case) -> float:
    """The median over weights of their sd over that of their prior, of independent normals."""
    ratios = []
    for family in case.fitted.posterior.factors:
        prior, normals = case.model.prior_over(family), family.independent_normals()
        each = None if prior is None else prior.elementwise
        for name, normal in ({} if each is None else normals or {}).items():
            try:
                width = each[name].stddev  # type: ignore[index]
            except NotImplementedError:  # a flat prior, or one without moments
                continue
            ratios.append((normal.stddev / width.to(normal.stddev)).expand(normal.stddev.shape))
    return float(torch.cat([r.reshape(-1) for r in ratios]).median()) if ratios else 0.0


@checks.register("rates collapsed")
def rates_collapsed(case: Case) -> Finding | None:
    """All learned drop rates ended next to nothing, so that no uncertainty is left, or next to one,
    so that no network is left.
    """
    rates = [r for f in case.fitted.posterior.factors for r in f.learned_rates().values()]
    if not rates or (max(rates) > NO_RATE and min(rates) < FULL_RATE):
        return None
    evidence = f"the learned drop rates are between {min(rates):.2g} and {max(rates):.2g}"
    lost = "no uncertainty" if max(rates) <= NO_RATE else "no network"
    remedy = "set a rate with 'mc_dropout', or fit 'vi' or 'deep_ensemble'"
    return Finding("rates collapsed", "warning", f"{evidence}, which leave {lost}", remedy)


@checks.register("dead units")
def dead_units_of_layers(case: Case) -> Finding | None:
    """Most units of a hidden layer give one and the same number for all rows, and did not when the
    network came; see :mod:`credo.engine.hidden_units` for what counts as dead.
    """
    if case.fitted.posterior.process is not None:
        return None
    layer = dead_units(case.model, case.fitted, case.rows[0])
    if layer is None:
        return None
    evidence = (
        f"{layer.dead} of {layer.units} units behind {layer.name!r} give the same number for all "
        f"of {len(case.rows[1])} training rows, {layer.dead_at_start} when the network came"
    )
    remedy = "lower lr, or use an activation with a slope everywhere, such as GELU"
    return Finding("dead units", "warning", evidence, remedy)
