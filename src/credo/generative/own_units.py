"""Data on a wild scale: the encoder and the decoder then know standardised data, and what is around
them data as they came.

With one deviation of the noise in the units of the data, which starts at their size, this is the
same family of densities with other numbers in it; a learning rate can find those.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from credo.core.standardised import Standardised, with_units
from credo.core.tree import is_real_table
from credo.data.source import Source
from credo.likelihoods.base import Likelihood
from credo.likelihoods.continuous_likelihood import ContinuousLikelihood


class Units(NamedTuple):
    """Mean and standard deviation of every column, ``(D,)``."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, source: Source, likelihood: Likelihood, *nets: nn.Module) -> Units | None:
        """Those of data in memory, rows of numbers of which a column is on a wild scale
        (``Columns.wild``), where the size of the noise is one number that is learned; else None.
        """
        arrays = source.arrays()
        sized = isinstance(likelihood, ContinuousLikelihood) and likelihood.log_size is not None
        own = any(net._forward_pre_hooks or isinstance(net, torch.fx.GraphModule) for net in nets)
        if arrays is None or not is_real_table(arrays[0]) or own:
            return None
        if not (sized and likelihood.learns_size):  # pyright: ignore  a continuous one
            return None
        columns = source.columns()
        return cls(*columns.units()) if columns.wild else None

    @classmethod
    def stored(cls, config: dict[str, list[float]] | None) -> Units | None:
        """The inverse of ``config``."""
        if config is None:
            return None
        mean, std = (torch.tensor(config[key], dtype=torch.float64) for key in ("mean", "std"))
        return cls(mean, std)

    def config(self) -> dict[str, list[float]]:
        """As a run holds them."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    def around(self, encoder: nn.Module, decoder: nn.Module) -> tuple[nn.Module, nn.Module]:
        """Copies that take and give data as they came."""
        encoder, decoder = copy.deepcopy((encoder, decoder))
        mean, std = self
        return (
            with_units(encoder, Standardised(x_mean=mean, x_std=std)),
            with_units(decoder, Standardised(y_mean=mean, y_std=std)),
        )

    @torch.no_grad()
    def widen(self, likelihood: Likelihood) -> None:
        """Let the noise start as many times as large as the data are."""
        assert isinstance(likelihood, ContinuousLikelihood)
        log_size = getattr(likelihood, str(likelihood.log_size))
        each = log_size.numel() > 1
        log_size += self.std.log() if each else math.log(float(self.std.square().mean().sqrt()))
