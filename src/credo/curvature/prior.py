"""The prior as Laplace's approximation sees it: a precision for every weight at the mode, and the distance from the prior's mean."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Normal

from credo.core.errors import SettingError
from credo.curvature.evidence import Centred
from credo.engine.model import Model
from credo.posteriors import Params


def centred(model: Model, values: Params, base: bool = False) -> Centred:
    """Precision and offset by random parameter, in double precision; ``base``: without the factors of a tuned prior.

    A normal prior has its own precision. Any other counts by the curvature of its log density at the mode, as if it were the normal that has
    the same slope there; where the density is not concave, as at the tails of heavy ones, there is none and it is refused.
    """
    prior = getattr(model.prior, "base", model.prior) if base else model.prior
    precision, offset = {}, {}
    for name, site in model.sites.items():
        if name not in model.random:
            continue
        value, distribution = values[name].detach().double(), prior.at(site)
        if type(distribution) is Normal:
            scale = distribution.scale.detach().double()
            precision[name] = scale.reshape(-1)[0].pow(-2) if scale.numel() == 1 else scale.pow(-2).expand(value.shape)
            offset[name] = value - distribution.loc.detach().double()
            continue
        curve, slope = _derivatives(distribution, values[name].detach())
        if not bool((curve > 0).all()):
            raise SettingError(
                f"laplace needs a prior whose log density curves downwards at the mode, but {name!r} has {distribution}; use a normal prior."
            )
        precision[name], offset[name] = curve.double(), (-slope / curve).double()
    return Centred(precision, offset)


def _derivatives(distribution: torch.distributions.Distribution, value: Tensor) -> tuple[Tensor, Tensor]:
    """-d^2 log p / dw^2 and d log p / dw, element by element."""
    with torch.enable_grad():
        w = value.clone().requires_grad_()
        (slope,) = torch.autograd.grad(distribution.log_prob(w).sum(), w, create_graph=True)
        curve = torch.autograd.grad(slope.sum(), w)[0] if slope.requires_grad else torch.zeros_like(w)
    return -curve, slope.detach()


def log_prior(model: Model, values: Params) -> float:
    """log p(w) of the random parameters."""
    total = 0.0
    for name, site in model.sites.items():
        if name in model.random:
            total += float(model.prior.at(site).log_prob(values[name].detach()).double().sum())
    return total
