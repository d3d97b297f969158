"""Gradients of the expected nll for drop rates: measured at a fixed posterior, or exact by going
through all masks.
"""

from __future__ import annotations

import copy
import math
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from credo.bnn import BNN
from credo.core.seeds import isolated, mix
from credo.engine.elbo import Elbo
from credo.estimators import estimators
from credo.posteriors import ConcreteDropout

LAYERS = {"input": "0.weight", "hidden": "2.weight"}


class Kind(NamedTuple):
    """A gradient: its label, the method's setting, its temperature, the estimator it amounts to,
    and whether bias is allowed.
    """

    label: str
    gradient: str
    temperature: float
    estimator: str
    biased: bool

    @property
    def passes(self) -> int:
        """Forward passes of one gradient."""
        return estimators[self.estimator].passes


KINDS = (
    Kind("concrete, t = 0.1", "concrete", 0.1, "local", True),
    Kind("concrete, t = 0.01", "concrete", 0.01, "local", True),
    Kind("REINFORCE", "reinforce", 0.1, "reinforce", False),
    Kind("ARM", "arm", 0.1, "arm", False),
)


class Moments(NamedTuple):
    """Mean, standard error and variance of a layer's gradient."""

    mean: float
    error: float
    variance: float


def rates_of(bnn: BNN) -> ConcreteDropout:
    """The family with the rates."""
    return next(family for family in bnn.posterior.factors if isinstance(family, ConcreteDropout))


def gradients(
    bnn: BNN, kind: Kind, x: Tensor, y: Tensor, count: int, seed: int, rate: float | None = None
) -> dict[str, Moments]:
    """The gradient of the mean nll of a batch for each layer's logit, ``count`` times at the same
    posterior, or at another ``rate``.
    """
    posterior = copy.deepcopy(bnn.posterior)
    family = next(member for member in posterior.factors if isinstance(member, ConcreteDropout))
    family.temperature = kind.temperature
    if rate is not None:
        for logit in family.logits:
            logit.fill_(math.log(rate / (1 - rate)))
    family.logits.requires_grad_(True)
    elbo = Elbo(bnn.model, posterior, estimators[kind.estimator], kl="optimizer")
    shell = bnn.model.shell()
    shell.place(bnn.model.frozen())
    shell.train(True)
    logits = {layer: family.logit(name) for layer, name in LAYERS.items()}
    drawn = torch.empty(count, len(logits), dtype=torch.float64)
    with isolated(mix(seed, kind.label), x.device):
        for row in drawn:
            row.copy_(
                torch.stack(torch.autograd.grad(elbo(x, y)[0] / len(y), list(logits.values())))
            )
    means, variances = drawn.mean(0).tolist(), drawn.var(0).tolist()
    return {
        layer: Moments(mean, math.sqrt(var / count), var)
        for layer, mean, var in zip(logits, means, variances, strict=True)
    }


def exact(bnn: BNN, x: Tensor, y: Tensor) -> dict[str, float]:
    """The same gradient without noise, by going through all masks of the inputs and the hidden
    units of one ReLU layer.
    """
    family, mean = rates_of(bnn), bnn.posterior.mean()
    logits = {
        layer: family.logit(name).detach().clone().requires_grad_(True)
        for layer, name in LAYERS.items()
    }
    sizes = {layer: mean[name].shape[1] for layer, name in LAYERS.items()}
    total = torch.zeros((), device=x.device)
    for bits in product((0.0, 1.0), repeat=sum(sizes.values())):
        masks = dict(
            zip(sizes, torch.tensor(bits, device=x.device).split(list(sizes.values())), strict=True)
        )
        chance, signal = torch.ones((), device=x.device), x
        for layer, name in LAYERS.items():
            keep, mask = torch.sigmoid(-logits[layer]), masks[layer]
            chance = chance * (keep ** mask.sum()) * ((1 - keep) ** (1 - mask).sum())
            signal = F.linear(
                signal * mask / keep, mean[name], mean[name.replace("weight", "bias")]
            )
            signal = F.relu(signal) if layer == "input" else signal
        total = total + chance * F.cross_entropy(signal, y)
    return dict(
        zip(
            logits,
            (float(g) for g in torch.autograd.grad(total, list(logits.values()))),
            strict=True,
        )
    )
