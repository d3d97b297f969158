"""Variational dropout with independent weight noise: w = theta (1 + sqrt(alpha) eps), one alpha per weight, at most 1.

The standard deviation sqrt(alpha) |theta| moves with the mean, so theta's gradient gathers both paths of a Gaussian posterior:
dL/dtheta = dL/dmean + dL/dlog(std) / theta, and dL/dlog(alpha) = 1/2 dL/dlog(std). The prior is log-uniform, under which the KL depends
on alpha alone; Kingma et al. fit it for alpha <= 1 by KL = -1/2 log(alpha) - c1 alpha - c2 alpha^2 - c3 alpha^3 + constant.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from credo.bnn import BNN
from credo.engine.elbo import Elbo
from credo.estimators import estimators
from credo.nets import mlp
from credo.posteriors import MeanField, Posterior

C1, C2, C3 = 1.16145124, -1.50204118, 0.58629921
_TINY = 1e-8  # a mean may not be exactly zero: its noise would be gone for ever
_SILENT = -40.0  # log of a deviation that float32 cannot tell from zero beside any weight


@final
class TiedNoise:
    """theta and log alpha of a perceptron's weights, and gradients for them under any estimator."""

    def __init__(self, sizes: tuple[int, ...], alpha: float, device: torch.device) -> None:
        self.bnn = BNN(mlp(sizes[0], sizes[1:-1], sizes[-1]).to(device), "categorical")
        self.family = MeanField.start(self.bnn.model.values(), 1.0)
        self.theta = self.family.flat_mean.detach().clone()
        self.log_alpha = torch.full_like(self.theta, math.log(alpha))
        self._elbos: dict[str, Elbo] = {}
        self.bnn.model.shell().train(True)

    def elbo(self, estimator: str) -> Elbo:
        """The objective under an estimator, over the one family all of them share."""
        if estimator not in self._elbos:
            self._elbos[estimator] = Elbo(self.bnn.model, Posterior([self.family]), estimators[estimator], kl="apart")
        return self._elbos[estimator]

    @torch.no_grad()
    def place(self, noise: bool = True) -> None:
        """Write mean and standard deviation into the family; without noise the deviation is zero."""
        self.theta.copy_(torch.where(self.theta.abs() < _TINY, torch.full_like(self.theta, _TINY), self.theta))
        self.family.flat_mean.copy_(self.theta)
        if noise:
            torch.add(self.theta.abs().log(), self.log_alpha, alpha=0.5, out=self.family.raw_std.data)
        else:
            self.family.raw_std.fill_(_SILENT)

    def gradients(self, estimator: str, x: Tensor, y: Tensor, rows: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Summed nll and its gradients for theta and log alpha as ``place`` left them.

        ``rows`` examples at a time, which is exact only where examples do not share their noise.
        """
        elbo, total = self.elbo(estimator), torch.zeros((), device=x.device)
        mean, raw = self.family.flat_mean, self.family.raw_std
        mean.grad = raw.grad = None
        for part_x, part_y in zip(x.split(rows or len(y)), y.split(rows or len(y)), strict=True):
            nll = elbo(part_x, part_y)[0]
            nll.backward()
            total += nll.detach()
        assert mean.grad is not None and raw.grad is not None
        return total, mean.grad + raw.grad / self.theta, 0.5 * raw.grad

    def train(self, x: Tensor, y: Tensor, epochs: int, batch: int, lr: float, order: torch.Generator) -> float:
        """Adam on (N / M) nll + KL with local noise; alpha stays at most 1. Returns the last epoch's nll in nats per example."""
        optimizer = torch.optim.Adam([self.theta, self.log_alpha], lr=lr)
        count, nll = len(y), torch.zeros((), device=x.device)
        for _ in range(epochs):
            nll = torch.zeros_like(nll)
            for rows in torch.randperm(count, generator=order).to(y.device).split(batch):
                self.place()
                part, theta, log_alpha = self.gradients("local", x[rows], y[rows])
                alpha = self.log_alpha.exp()
                self.theta.grad = theta / len(rows)
                self.log_alpha.grad = log_alpha / len(rows) + _kl_slope(alpha) / count
                optimizer.step()
                self.log_alpha.clamp_(max=0.0)
                nll += part
        return float(nll) / count

    @torch.no_grad()
    def error(self, x: Tensor, y: Tensor) -> float:
        """Share of wrong labels of the network at theta."""
        self.place(noise=False)
        shell = self.bnn.model.shell()
        shell.place(self.family.layout.split(self.theta))
        return float((shell(x).argmax(1) != y).double().mean())


def _kl_slope(alpha: Tensor) -> Tensor:
    """dKL / dlog(alpha) of one weight."""
    return -0.5 - alpha * (C1 + alpha * (2 * C2 + alpha * 3 * C3))
