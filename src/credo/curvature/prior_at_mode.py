"""The prior as Laplace's approximation counts it: a precision for every weight at the mode, and the
distance from the prior's mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from credo.core.errors import SettingError
from credo.curvature.blocks import Precision
from credo.curvature.structures import Measured, earlier_families, independent_normal
from credo.engine.model import Model
from credo.posteriors import Params


class PriorAtMode(NamedTuple):
    """The prior's precision by parameter, the weights' distance from its mean, and what its log
    density has beyond that normal's.
    """

    precision: Precision
    offset: Params
    shift: float = 0.0


def prior_at_mode(model: Model, values: Params, measured: Measured) -> PriorAtMode:
    """The prior of the weights that curvature was measured of; where an earlier posterior has a
    whole covariance, its off-diagonal precision goes into the block.
    """
    joint = next((f for f in earlier_families(model) if not independent_normal(f)), None)
    if joint is None:
        return elementwise_prior(model, values, places=measured.chosen)
    normal = joint.conjugate_normal()
    block = next((b for b in measured.blocks if set(b.names) == set(joint.names)), None)
    taken = None if normal is None or block is None else block.take_joint_prior(normal, values)
    if taken is None:
        raise SettingError(
            "laplace can add data to an earlier posterior over the same parameters; this one is "
            f"{joint.name!r} over {', '.join(joint.names)}."
        )
    return PriorAtMode(*taken)


def elementwise_prior(
    model: Model, values: Params, untuned: bool = False, places: Mapping[str, Tensor] | None = None
) -> PriorAtMode:
    """Precision and offset by random parameter, in double precision; ``untuned``: without the
    factors of a tuned prior.

    With flat ``places`` by parameter of single weights, those alone.

    A normal prior has its own precision. Any other counts by the curvature of its log density at
    the mode, as if it were the normal that has the same slope there and, by ``shift``, the same
    density; where the density is not concave, as at the tails of heavy ones, there is none and it
    is refused.
    """
    tunable = model.prior.tunable
    prior = tunable.base if untuned and tunable is not None else model.prior
    precision, offset, shift = {}, {}, 0.0
    for name, site in model.sites.items():
        if name not in model.random or (places is not None and name not in places):
            continue
        distribution = prior.at(site)
        chosen = None if places is None else places[name]
        if type(distribution) is Normal:
            value, scale = values[name].detach().double(), distribution.scale.detach().double()
            each = scale.pow(-2)
            precision[name] = (
                each.reshape(-1)[0] if each.numel() == 1 else _at(each.expand(value.shape), chosen)
            )
            offset[name] = _at(value - distribution.loc.detach().double(), chosen)
            continue
        log_density, slope, curve = (
            _at(part, chosen) for part in _derivatives(distribution, values[name].detach())
        )
        if not bool((curve > 0).all()):
            raise SettingError(
                "laplace needs a prior whose log density curves downwards at the mode, but "
                f"{name!r} has {distribution}; use a normal prior."
            )
        precision[name], offset[name] = curve, -slope / curve
        normal = Normal(0.0, curve.rsqrt(), validate_args=False)
        shift += float((log_density - normal.log_prob(offset[name])).sum())
    return PriorAtMode(precision, offset, shift)


def _at(values: Tensor, places: Tensor | None) -> Tensor:
    """Single weights of a parameter, or all of it."""
    return values if places is None else values.reshape(-1)[places]


def _derivatives(
    distribution: torch.distributions.Distribution, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log p, d log p / dw and -d^2 log p / dw^2, element by element; one that does not depend on w
    has slope zero.
    """
    with torch.enable_grad():
        w = value.clone().requires_grad_()
        parts = [distribution.log_prob(w)]
        for _ in range(2):
            last = parts[-1].sum()
            parts.append(
                torch.autograd.grad(last, w, create_graph=True)[0]
                if last.requires_grad
                else torch.zeros_like(w)
            )
    log_density, slope, curve = (part.detach().double() for part in parts)
    return log_density, slope, -curve
