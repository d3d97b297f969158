"""The improved variational online Newton optimizer: natural-gradient descent on a mean-field
Gaussian.

With lambda = N / beta examples' worth of data and delta = prior precision / lambda, gradients g of
the mean nll over draws and their reparameterised curvature estimate h' (Price: 2 d nll / d
variance) give

    momentum <- b1 momentum + (1 - b1) g
    h        <- (1 - r) h + r h' + r^2 (h - h')^2 / (2 (h + delta))
    newton    = (momentum / (1 - b1^t) + delta (mean - prior mean)) / (h + delta)
    mean     <- mean - lr clip(newton, -far, far)
    std       = 1 / sqrt(lambda (h + delta))

where r = max(1 - b2, 20 / (t + 1000)) and far = point_lr / first lr. The curvature is an average
over all steps so far in which the last ones count most, so that a fit forgets where it started. A
weight without curvature widens by 1 % a step at most, and no mean moves further in a step than Adam
would at the rate ``point_lr``: where many weights act as one, a diagonal Newton step is too long by
their number, and means that diffuse are lost before the data have been learned.

A schedule of the KL's weight c divides lambda by it (no further down than a hundredth, where std
would vanish). Any estimator that leaves a gradient on the standard deviation serves. Everything
that is not a mean-field Gaussian (points, noise of the likelihood) moves by Adam.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.engine.elbo import Elbo
from credo.posteriors import MeanField
from credo.posteriors.std_transform import NormalStats

LEAST = 0.01  # of the KL's weight
AVERAGE, DELAY = 20.0, 1000.0  # of the curvature's average over all steps
PIECE = (
    1 << 16
)  # numbers a CPU takes at a time, so that the dozen passes over them stay in its cache


def _one(family: MeanField) -> Tensor:
    return torch.ones((), dtype=family.flat_mean.dtype, device=family.flat_mean.device)


class Newton(NamedTuple):
    """Settings: decay of the gradient and of the curvature, curvature to start from, and lambda."""

    beta1: float
    beta2: float
    hess_init: float
    effective: float


class Ivon(torch.optim.Adam):
    """See the module's equations; ``pairs`` are the Gaussians with their priors' statistics."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        lr: float | Tensor,
        pairs: Sequence[tuple[MeanField, NormalStats]],
        newton: Newton,
        point_lr: float = 1e-3,
        compile: bool = False,
    ) -> None:
        own = {id(p) for family, _ in pairs for p in (family.flat_mean, family.raw_std)}
        rest = [p for p in parameters if id(p) not in own]
        fresh = (
            (lambda: lr.clone()) if isinstance(lr, Tensor) else (lambda: lr)
        )  # no two groups share a tensor
        groups: list[dict[str, Any]] = [
            {"params": [f.flat_mean, f.raw_std], "lr": fresh(), "factor": 1.0, "kl_weight": _one(f)}
            for f, _ in pairs
        ]
        if rest:
            groups.append({"params": rest, "lr": fresh(), "factor": point_lr / float(lr)})
        super().__init__(groups, lr=lr, fused=True, capturable=isinstance(lr, Tensor))
        self.pairs, self.newton, self.far = list(pairs), newton, point_lr / float(lr)
        self._move = torch.compile(newton_step, dynamic=False) if compile else newton_step
        on_cpu = not compile and all(f.flat_mean.device.type == "cpu" for f, _ in pairs)
        self._piece = PIECE if on_cpu else None
        for family, prior in self.pairs:
            start = torch.full_like(family.flat_mean, newton.hess_init)
            self.state[family.flat_mean] = {
                "step": torch.zeros((), device=start.device),
                "momentum": torch.zeros_like(start),
                "hessian": start,
                "weight": _one(family),
            }
            with torch.no_grad():
                family.raw_std.copy_(
                    -0.5 * (newton.effective * (start + 1.0 / (newton.effective * prior.var))).log()
                )

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """One step of everything: Adam sees only what has a gradient left after the Gaussians took
        theirs.
        """
        grads = [(f.flat_mean.grad, f.raw_std.grad) for f, _ in self.pairs]
        for family, _ in self.pairs:
            family.flat_mean.grad = family.raw_std.grad = None
        out = super().step(closure)
        for (family, prior), (grad, raw_grad), group in zip(
            self.pairs, grads, self.param_groups, strict=False
        ):
            assert grad is not None and raw_grad is not None
            state = self.state[family.flat_mean]
            state["step"] += 1
            weight = group["kl_weight"].clamp(min=LEAST)
            vectors = (
                family.flat_mean,
                family.raw_std,
                grad,
                raw_grad,
                state["momentum"],
                state["hessian"],
                prior.mean,
                prior.var,
            )
            for part in _pieces(vectors, self._piece):
                self._move(
                    self.newton,
                    self.far,
                    state["step"],
                    group["lr"],
                    state["weight"],
                    weight,
                    *part,
                )
            state["weight"].copy_(weight)
        return out


def _pieces(vectors: Sequence[Tensor | None], size: int | None) -> Iterator[tuple[Any, ...]]:
    """The vectors cut into pieces of at most ``size``; single numbers, and what is None, go with
    every piece.
    """
    numel = max(v.numel() for v in vectors if v is not None)
    if size is None or numel <= size:
        yield tuple(vectors)
        return
    for start in range(0, numel, size):
        yield tuple(v if v is None or v.numel() == 1 else v[start : start + size] for v in vectors)


def newton_step(
    newton: Newton,
    far: float,
    step: Tensor,
    lr: float | Tensor,
    before: Tensor,
    weight: Tensor,
    mean: Tensor,
    raw: Tensor,
    grad: Tensor,
    raw_grad: Tensor,
    momentum: Tensor,
    hessian: Tensor,
    prior_mean: Tensor | None,
    prior_var: Tensor,
) -> None:
    """The module's equations on flat vectors, in place; ``raw`` is log std, ``before`` the KL's
    weight at the last step.
    """
    beta1, beta2, _, whole = newton
    precision = hessian + before / (whole * prior_var)
    estimate = raw_grad.mul_(precision).mul_(
        whole / before
    )  # d nll / d log std = std^2 h', and std^2 = 1 / (lambda precision)
    effective = whole / weight
    delta = 1.0 / (effective * prior_var)
    gap = hessian - estimate
    rate = (AVERAGE / (step + DELAY)).clamp(min=1 - beta2)  # no less than an average over all steps
    hessian.sub_(gap * rate).addcdiv_(gap.square_().mul_(0.5 * rate.square()), precision)
    momentum.lerp_(grad, 1 - beta1)
    torch.add(hessian, delta, out=precision)
    pull = mean * delta if prior_mean is None else (mean - prior_mean) * delta
    pull.add_(momentum / (1 - beta1**step)).div_(precision)
    torch.log(precision.mul_(effective), out=raw).mul_(-0.5)
    mean.sub_(pull.clamp_(-far, far) * lr)


def ivon(
    elbo: Elbo, lr: float | Tensor, num_data: int, newton: Newton, point_lr: float, compile: bool
) -> Ivon:
    """The Newton step for every Gaussian of an objective, Adam for the rest."""
    pairs = []
    for family in elbo.posterior.factors:
        if isinstance(family, MeanField):  # the only family that has this step
            stats = family.fold(elbo.model.prior_over(family))
            if stats is None:
                raise SettingError(
                    "ivon needs a normal prior on every random parameter; use method='vi' for "
                    "others."
                )
            pairs.append((family, stats))
    trained = [p for p in elbo.parameters() if p.requires_grad]
    return Ivon(trained, lr, pairs, newton, point_lr, compile)
