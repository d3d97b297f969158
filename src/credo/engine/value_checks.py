"""Checks of models of real targets: how wide predictions and learned noise are."""

from __future__ import annotations

import math

import torch

from credo.core.errors import Finding
from credo.engine.diagnose import Case, checked

WIDE, LOUD = 1.25, 1.5  # sds of the targets that predictions, or learned noise, may have
LEAST_ROWS = 20  # from which on the sd of targets is known


@checked("noise exploded", of="values")
def noise_exploded(case: Case) -> Finding | None:
    """The learned noise of y is 1.5 times as wide as the targets and more, in the median of the
    rows.
    """
    sizes = _sizes(case) if case.model.likelihood.learns_size else None
    if sizes is None or not sizes[1] > LOUD * _slack(case):
        return None
    evidence = f"the learned noise of y has {sizes[1]:.3g} times the sd of the targets"
    remedy = "train longer with a smaller lr, or give standardised targets"
    return Finding("noise exploded", "serious", evidence, remedy)


@checked("wider than the targets", of="values")
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
    other = likelihood.observed is not likelihood or likelihood.of_inputs
    if other or case.problem.num_data < LEAST_ROWS:
        return None
    targets = likelihood.check_targets(case.fit_job.source.targets()).double()
    size = targets.reshape(len(targets), -1).std(0)
    predictive = case.predictive
    _, noise, doubt = predictive.likelihood.mixture_moments(predictive.outputs)
    ratios = torch.stack([noise + doubt, noise]).double().sqrt() / size.to(noise.device)
    total, alone = ratios.flatten(1).median(1).values.tolist()
    return (total, alone) if math.isfinite(total) else None
