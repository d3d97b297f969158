"""How an unconstrained number becomes a standard deviation, and draws and moments of independent
normals together with their KL to a normal prior, as single nodes of autograd that know it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from credo.core.registry import Registry

std_transforms: Registry[StdTransform] = Registry("scale")


def triangular(raw: Tensor) -> Tensor:
    """diag(s) (I + A / sqrt(n)) from a square of raw numbers: s = exp of its diagonal, A what is
    below it.

    Correlations are relative to the deviations s. Entries of a plain factor have gradients that are
    mostly noise, and an optimizer with steps of equal size walks them all away from zero: n of them
    would soon outweigh a small diagonal.
    """
    std = raw.diagonal().exp().unsqueeze(-1)
    eye = torch.eye(len(raw), dtype=raw.dtype, device=raw.device)
    return std * (eye + raw.tril(-1) / math.sqrt(len(raw)))


def raw_triangular(factor: Tensor) -> Tensor:
    """The inverse of :func:`triangular`, for a lower triangular matrix with a positive diagonal."""
    std = factor.diagonal()
    return math.sqrt(len(factor)) * (factor / std.unsqueeze(-1)).tril(-1) + torch.diag(std.log())


class StdTransform(ABC):
    """std = g(raw), increasing, with what the fused KL needs of its derivative."""

    @abstractmethod
    def std(self, raw: Tensor) -> Tensor:
        """Standard deviation, not variance."""

    @abstractmethod
    def raw(self, std: float) -> float:
        """The raw value that gives this standard deviation."""

    @abstractmethod
    def log_std(self, raw: Tensor, std: Tensor) -> Tensor:
        """log std, by the cheaper way."""

    @abstractmethod
    def pull(self, std: Tensor, grad_std: Tensor, grad_log: Tensor) -> Tensor:
        """Gradient for raw, from one for std (which may be overwritten) and one for log std
        (0-dim).
        """

    @abstractmethod
    def pull_var(self, var: Tensor, twice: Tensor, grad_log: Tensor) -> Tensor:
        """Gradient for raw, from ``twice`` one for var (which may be overwritten) and one for log
        std (0-dim).
        """


class Log(StdTransform):
    """std = exp(raw): the gradient of the KL is then free of divisions, and Adam's step is
    relative.
    """

    def std(self, raw: Tensor) -> Tensor:
        """exp(raw)."""
        return raw.exp()

    def raw(self, std: float) -> float:
        """log(std)."""
        return math.log(std)

    def log_std(self, raw: Tensor, std: Tensor) -> Tensor:
        """raw itself."""
        return raw

    def pull(self, std: Tensor, grad_std: Tensor, grad_log: Tensor) -> Tensor:
        """grad_std * std + grad_log."""
        return grad_std.mul_(std).add_(grad_log)

    def pull_var(self, var: Tensor, twice: Tensor, grad_log: Tensor) -> Tensor:
        """twice * var + grad_log."""
        return twice.mul_(var).add_(grad_log)


class Softplus(StdTransform):
    """std = log(1 + exp(raw)), the parameterisation of Blundell et al. (2015)."""

    def std(self, raw: Tensor) -> Tensor:
        """log(1 + exp(raw))."""
        return F.softplus(raw)

    def raw(self, std: float) -> float:
        """log(exp(std) - 1), without overflow."""
        return std + math.log(-math.expm1(-std))

    def log_std(self, raw: Tensor, std: Tensor) -> Tensor:
        """log of std."""
        return std.log()

    def pull(self, std: Tensor, grad_std: Tensor, grad_log: Tensor) -> Tensor:
        """(grad_std + grad_log / std) * sigmoid(raw), where sigmoid(raw) = 1 - exp(-std)."""
        return (grad_std + grad_log / std) * -torch.expm1(-std)

    def pull_var(self, var: Tensor, twice: Tensor, grad_log: Tensor) -> Tensor:
        """As ``pull``, with the gradient for std being ``twice`` times std."""
        std = var.sqrt()
        return self.pull(std, twice * std, grad_log)


std_transforms.register("log")(Log())
std_transforms.register("softplus")(Softplus())


class NormalStats(NamedTuple):
    """Mean and variance of a factorised normal prior: numbers, or one per element of the flat
    vector; no mean is mean zero.
    """

    mean: Tensor | None
    var: Tensor


def _shift(mean: Tensor, prior_mean: Tensor | None) -> Tensor:
    return mean if prior_mean is None else mean - prior_mean


def _kl_value(mean: Tensor, std: Tensor, log_std: Tensor, prior: NormalStats) -> Tensor:
    """KL[q, p] = sum 1/2 [(std^2 + (mean - prior mean)^2) / prior var - 1 + log prior var] - log
    std.
    """
    shift = _shift(mean, prior.mean)
    if prior.var.dim() == 0:
        square = (torch.dot(std, std) + torch.dot(shift, shift)) / prior.var
        constant = mean.numel() * (prior.var.log() - 1)
    else:
        square = ((std * std + shift * shift) / prior.var).sum()
        constant = (prior.var.log() - 1).sum()
    return 0.5 * (square + constant) - log_std.sum()


def _added(grad: Tensor, value: Tensor, pull: Tensor) -> Tensor:
    """grad + value * pull, on a CPU in one pass; ``addcmul`` with a 0-dim factor is six times
    slower there.
    """
    if pull.dim() == 0 and pull.device.type == "cpu" and not torch.compiler.is_compiling():
        return torch.add(grad, value, alpha=float(pull))
    return torch.addcmul(grad, value, pull)


class WeightsAndKL(torch.autograd.Function):
    """(w, KL) in one node: the KL's gradient rides along with the weights', which saves two passes
    over all of them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        raw: Tensor,
        eps: Tensor,
        prior_mean: Tensor | None,
        prior_var: Tensor,
        std_transform: StdTransform,
    ) -> Any:
        std = std_transform.std(raw)
        ctx.std_transform = std_transform
        ctx.save_for_backward(mean, std, eps, prior_mean, prior_var)
        kl = _kl_value(
            mean, std, std_transform.log_std(raw, std), NormalStats(prior_mean, prior_var)
        )
        return torch.addcmul(mean, std, eps), kl

    @staticmethod
    def backward(ctx: Any, grad_w: Tensor, grad_kl: Tensor) -> Any:
        mean, std, eps, prior_mean, prior_var = ctx.saved_tensors
        pull = grad_kl / prior_var
        grad_mean = _added(grad_w, _shift(mean, prior_mean), pull)
        grad_std = _added(grad_w * eps, std, pull)
        return grad_mean, ctx.std_transform.pull(std, grad_std, -grad_kl), None, None, None, None


class MomentsAndKL(torch.autograd.Function):
    """(mean, var, KL) in one node, for linear maps that meet the family instead of its weights."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        raw: Tensor,
        prior_mean: Tensor | None,
        prior_var: Tensor,
        std_transform: StdTransform,
    ) -> Any:
        std = std_transform.std(raw)
        var = std * std
        ctx.std_transform = std_transform
        ctx.save_for_backward(mean, var, prior_mean, prior_var)
        kl = _kl_value(
            mean, std, std_transform.log_std(raw, std), NormalStats(prior_mean, prior_var)
        )
        return mean.view_as(mean), var, kl

    @staticmethod
    def backward(ctx: Any, grad_mean: Tensor, grad_var: Tensor, grad_kl: Tensor) -> Any:
        mean, var, prior_mean, prior_var = ctx.saved_tensors
        pull = grad_kl / prior_var
        raw = ctx.std_transform.pull_var(var, torch.add(pull, grad_var, alpha=2), -grad_kl)
        return _added(grad_mean, _shift(mean, prior_mean), pull), raw, None, None, None


class _Perturb(torch.autograd.Function):
    """mean + sqrt(var) eps; the floor keeps the gradient finite where the input is exactly zero."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, eps: Tensor) -> Tensor:
        std = var.clamp_min(torch.finfo(var.dtype).tiny).sqrt_()
        ctx.save_for_backward(eps, std)
        return torch.addcmul(mean, std, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        eps, std = ctx.saved_tensors
        return grad, (grad * eps).div_(std).mul_(0.5), None


def perturb(mean: Tensor, var: Tensor, eps: Tensor) -> Tensor:
    """mean + sqrt(var) eps, with a finite gradient at var = 0."""
    return _Perturb.apply(mean, var, eps)  # type: ignore[return-value]
