"""Draws and moments of independent normals together with their KL to a normal prior, as single
nodes of autograd.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from credo.posteriors.std_transform import StdTransform


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
