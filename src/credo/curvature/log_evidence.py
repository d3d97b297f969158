"""Laplace's approximation of the marginal likelihood, and the width of the prior that maximises it.

log p(D) = log p(D given w) + log p(w) + P/2 log 2 pi - 1/2 log det(H + D), at the maximum w of the
joint density, D the prior's precision: a precision for every weight, beside its distance from the
prior's mean, is how Laplace's approximation counts a prior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from credo.core.errors import CredoError, SettingError
from credo.curvature.blocks import Block, Precision
from credo.curvature.structures import Measured, earlier_families, independent_normal
from credo.engine.model import Model
from credo.likelihoods.fisher_information import NormalNoiseTerms
from credo.posteriors import Params

GRID = torch.linspace(
    -12.0, 12.0, 49, dtype=torch.float64
)  # logarithms of factors on the prior's precision that are tried first
STEPS = 60  # of quasi-Newton then


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


def log_evidence(
    blocks: Sequence[Block],
    nll: float,
    prior: PriorAtMode,
    log_factors: Mapping[str, Tensor] | None = None,
    noise: NormalNoiseTerms | None = None,
    noise_log_factor: Tensor | None = None,
) -> Tensor:
    """In nats, for the prior's precision times exp(log_factors) by parameter; differentiable in
    ``log_factors``.

    With ``noise`` also for a noise variance over exp(noise_log_factor) = c, which multiplies the
    curvature: log det(c H + D) = log det(H + D / c) + P log c.
    """
    precision = dict(prior.precision)
    if log_factors is not None:
        precision = _times(precision, log_factors)
    total = torch.as_tensor(prior.shift - nll, dtype=torch.float64)
    precision_over_noise = precision
    if noise is not None and noise_log_factor is not None:
        total = (
            total
            + 0.5 * noise.count * noise_log_factor
            - 0.5 * noise.misfit * torch.expm1(noise_log_factor)
        )
        precision_over_noise = _times(precision, dict.fromkeys(precision, -noise_log_factor))
    for block in blocks:
        total = total - 0.5 * block.log_det(precision_over_noise) + block.prior_shift
        for name in block.names:
            p, w = precision[name], prior.offset[name].double()
            total = total + 0.5 * (p.log().expand(w.shape) - p * w.square()).sum()
            if noise is not None and noise_log_factor is not None:
                total = total - 0.5 * w.numel() * noise_log_factor
    return total


def _times(precision: Precision, logs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The precision times exp(logs).

    Equal numbers times the same factor become one tensor: by that a block knows that they move
    together.
    """
    made: dict[Any, Tensor] = {}
    out = {}
    for name, p in precision.items():
        own = p.dim() or p.requires_grad
        key = (id(p) if own else 0, 0.0 if own else float(p), id(logs[name]))
        if key not in made:
            made[key] = p * logs[name].exp()
        out[name] = made[key]
    return out


def _by_parameter(values: Tensor, sharing: Sequence[Sequence[str]]) -> dict[str, Tensor]:
    """One number for all parameters that share it, by parameter: the same tensor for each."""
    return {
        name: value for value, group in zip(values.unbind(), sharing, strict=True) for name in group
    }


class PriorAndNoise(NamedTuple):
    """Logarithms of the factors on the prior's precision by parameter, and on one over the noise
    variance.
    """

    log_factors: dict[str, Tensor]
    noise_log_factor: float


def best_prior_and_noise(
    blocks: Sequence[Block],
    nll: float,
    prior: PriorAtMode,
    sharing: Sequence[Sequence[str]],
    noise: NormalNoiseTerms,
) -> PriorAndNoise:
    """The prior's width in every group and the noise that together maximise the evidence."""
    start = best_log_factors(blocks, nll, prior, sharing)
    point = torch.stack(
        [*(start[group[0]] for group in sharing), torch.zeros_like(start[sharing[0][0]])]
    )

    def value(values: Tensor) -> Tensor:
        return -log_evidence(
            blocks, nll, prior, _by_parameter(values[:-1], sharing), noise, values[-1]
        )

    found = _minimise(value, point)
    edge = 2 * float(GRID[-1])
    return PriorAndNoise(_by_parameter(found[:-1].clamp(-edge, edge), sharing), float(found[-1]))


def best_log_factors(
    blocks: Sequence[Block], nll: float, prior: PriorAtMode, sharing: Sequence[Sequence[str]]
) -> dict[str, Tensor]:
    """Logarithms of the factors on the prior's precision, one for every group of parameters, that
    maximise the evidence.

    All factors together along a grid first, so that the search starts at the right size; then
    quasi-Newton over all of them.
    """
    device = next(iter(prior.offset.values())).device

    def value(values: Tensor) -> Tensor:
        return -log_evidence(blocks, nll, prior, _by_parameter(values, sharing))

    def attempt(values: Tensor) -> float:
        try:
            return float(value(values))
        except CredoError:  # so wide that no prior is left beside the curvature's rounding
            return math.inf

    with torch.no_grad():
        ones = torch.ones(len(sharing), dtype=torch.float64, device=device)
        tried = [attempt(ones * float(g)) for g in GRID]
    start = ones * float(GRID[min(range(len(tried)), key=tried.__getitem__)])
    found = _minimise(value, start).clamp(2 * float(GRID[0]), 2 * float(GRID[-1]))
    return _by_parameter(found, sharing)


def _minimise(value: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """By torch's LBFGS with a line search, in double precision."""
    point = start.clone().requires_grad_()
    mover = torch.optim.LBFGS(
        [point], lr=1.0, max_iter=STEPS, tolerance_grad=1e-8, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        mover.zero_grad()
        loss = value(point)
        loss.backward()
        return loss

    with torch.enable_grad():
        mover.step(closure)
    return point.detach()
