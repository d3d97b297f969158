"""How an unconstrained number becomes a standard deviation."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

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
