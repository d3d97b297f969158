"""Checks of the networks that a posterior is made of."""

from __future__ import annotations

import torch
from torch import nn

from credo.core.errors import Finding
from credo.core.sites import is_deep
from credo.engine.findings import Case, new_checks

ALIKE = 1e-3  # sd of members over the size of their weights

checks = new_checks()


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
