"""Outputs without draws: one pass that carries means and variances of the activations, shown as
points that have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.roots import semidefinite_root
from credo.core.seeds import generator
from credo.core.tree import split
from credo.engine.model import Model
from credo.estimators.moments import propagate
from credo.posteriors import Posterior
from credo.predictive.shortcuts import Shortcut, shortcuts


def moment_outputs(
    model: Model,
    posterior: Posterior,
    x: Any,
    buffers: Mapping[str, Tensor],
    samples: int,
    covariance: str,
    batch_size: int | None,
) -> Tensor:
    """Outputs ``(S, N, F)`` that stand for the Gaussian which moment propagation gives: one pass,
    and no draw of any weight.

    The same fixed points for every input, moved and scaled so that their mean and covariance over S
    are exactly the Gaussian's.
    """
    if posterior.noisy_modules:
        raise SettingError(
            "The network is random by itself, which moments do not see; predict without "
            "shortcut='moments'."
        )
    if samples < 2:
        raise SettingError(
            f"samples={samples}: moments are shown by points with their variance, of which it "
            "takes at least 2."
        )
    shell = model.shell()
    shell.train(False)
    shell.place(model.frozen())
    shell.place(buffers)
    parts = []
    with torch.no_grad():
        for batch in split(model.move(x), batch_size):
            mean, variance = propagate(shell, posterior, batch, covariance, model.output)
            parts.append(shown(mean, variance, samples))
    return torch.cat(parts, 1)


shortcuts.register("moments")(Shortcut(partial(moment_outputs, covariance="diagonal")))
shortcuts.register("moments_full")(Shortcut(partial(moment_outputs, covariance="full")))


def shown(mean: Tensor, covariance: Tensor, samples: int) -> Tensor:
    """Points ``(S, N, F)`` with exactly this mean and these variances ``(N, F)`` or covariances
    ``(N, F, F)``, the same ones for every input.
    """
    points = _white(samples, mean.shape[-1]).to(mean)
    if covariance.dim() > mean.dim():
        return mean + torch.einsum("sf,nof->sno", points, semidefinite_root(covariance))
    return mean + covariance.clamp_min(0).sqrt() * points.unsqueeze(1)


def _white(samples: int, width: int) -> Tensor:
    """``(S, width)`` points like normal draws, with mean zero and identity covariance exactly,
    where S allows it.
    """
    quantiles = (torch.arange(samples, dtype=torch.float64) + 0.5) / samples
    ladder = torch.special.ndtri(quantiles)
    order = [
        torch.randperm(samples, generator=generator("white", column)) for column in range(width)
    ]
    points = torch.stack([ladder[o] for o in order], 1)
    points = points - points.mean(0)
    cover = points.T @ points / samples
    if samples > 2 * width:
        return torch.linalg.solve_triangular(torch.linalg.cholesky(cover), points.T, upper=False).T
    return points / cover.diagonal().sqrt().clamp_min(1e-12)
