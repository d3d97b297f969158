"""How precisely a weight must be stored: as precisely as the posterior knows it.

Rounding a weight by less than its posterior standard deviation changes it by less than the data can
tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from credo.bnn import BNN
from credo.compress.pruned import Pruned, pruned_of
from credo.compress.quantised import Coded, Quantised, Raw, rounded_book
from credo.core.errors import SettingError
from credo.core.standardised import units_of

STEP_BITS = 8  # of a float16 in which the step of a grid is written
POINT_LEVELS = 16  # of parameters without a posterior, on either side of zero


@final
@dataclass(frozen=True)
class Precision:
    """Bits of one number of a layer: a sign, ``exponent`` and ``significand``.

    ``error``: the largest rounding error with these bits; ``std``: the layer's mean posterior
    standard deviation.
    """

    significand: int
    exponent: int
    error: float
    std: float

    @property
    def bits(self) -> int:
        """Sign, exponent and significand together."""
        return 1 + self.exponent + self.significand


def precision(source: BNN | Pruned) -> dict[str, Precision]:
    """Bits that the nonzero weights of each layer need: the fewest significand bits whose rounding
    error is at most the mean posterior sd.

    Exponent bits cover the sizes from the largest weight down to that error (after Louizos et al.
    2017).
    Parameters without a posterior sd, and layers without a weight, are left out.
    """
    pruned, out = pruned_of(source), {}
    for name, parameter in pruned.net.named_parameters():
        values, std = _nonzero(pruned, name, parameter.detach())
        if std is None or not len(values):
            continue
        top, mean_std = math.floor(math.log2(float(values.abs().max()))), float(std.mean())
        significand = max(0, math.ceil(top - math.log2(max(mean_std, 1e-30))) - 1)
        error = 2.0 ** (top - significand - 1)
        lowest = min(top, math.floor(math.log2(error)))
        out[name] = Precision(
            significand, max(0, math.ceil(math.log2(top - lowest + 1))), error, mean_std
        )
    return out


def quantise(source: BNN | Pruned, step: float = 1.0, levels: int | None = None) -> Quantised:
    """Weights rounded to few values: multiples of ``step`` times twice the mean posterior sd of a
    layer, or the best ``levels`` values.

    A step of 1 rounds by at most that sd. ``levels``: k-means per tensor, weighted by 1 / sd^2
    where there is a posterior; needed where there is none. Biases and other parameters without a
    posterior lie on a grid of 16 values on either side of zero. Buffers are stored as they are.
    What rounds to zero is pruned.
    """
    if not step > 0 or (levels is not None and levels < 1):
        raise SettingError(
            f"quantise: step={step!r}, levels={levels!r}; expected a step above 0 and at least "
            "one level."
        )
    pruned, entries = pruned_of(source), {}
    named = dict(pruned.net.named_parameters())
    for name, tensor in pruned.net.state_dict().items():
        if name not in named:
            entries[name] = Raw(tensor)
            continue
        value = tensor.detach().float().cpu()
        nonzero, std = _nonzero(pruned, name, value)
        if not len(nonzero):
            entries[name] = Coded.of(torch.zeros_like(value))
        elif levels is not None and value.dim() > 1:
            entries[name] = Coded.of(_nearest(value, _k_means(nonzero, std, levels)))
        elif std is not None:
            entries[name] = Coded.of(_on_grid(value, 2.0 * step * float(std.mean())))
        elif value.dim() > 1:
            raise SettingError(
                f"quantise: {name!r} has no posterior standard deviation to choose a grid by; "
                "give levels=, e.g. levels=16."
            )
        else:
            entries[name] = Coded.of(_on_grid(value, float(nonzero.abs().max()) / POINT_LEVELS))
    return Quantised(entries, units_of(pruned.net))


def _nonzero(pruned: Pruned, name: str, value: Tensor) -> tuple[Tensor, Tensor | None]:
    """Values that are not zero, and their posterior deviations if any is above zero."""
    nonzero = value != 0
    std = pruned.std.get(name)
    std = None if std is None or not bool((std[nonzero] > 0).any()) else std[nonzero].float()
    return value[nonzero], std


def _on_grid(value: Tensor, width: float) -> Tensor:
    """Rounded to multiples of a width that few bits store."""
    width = float(rounded_book(torch.tensor([width]), STEP_BITS))
    return (value / width).round() * width


def _nearest(value: Tensor, book: Tensor) -> Tensor:
    """Each number's nearest value of the codebook; zeros stay zero."""
    places = (value.reshape(-1, 1) - book).abs().argmin(1)
    return torch.where(value == 0, 0.0, book[places].reshape(value.shape))


def _k_means(values: Tensor, std: Tensor | None, levels: int, rounds: int = 50) -> Tensor:
    """The ``levels`` numbers nearest to the values, by Lloyd's algorithm from evenly spaced
    quantiles, each rounded to ten bits.
    """
    weight = (
        torch.ones_like(values) if std is None else std.clamp_min(float(std.max()) * 1e-3).pow(-2)
    )
    book = values.quantile(torch.linspace(0, 1, min(levels, len(values.unique())) + 2)[1:-1])
    for _ in range(rounds):
        places = (values.unsqueeze(1) - book).abs().argmin(1)
        mass = torch.zeros_like(book).index_add(0, places, weight)
        total = torch.zeros_like(book).index_add(0, places, weight * values)
        book = torch.where(mass > 0, total / mass.clamp_min(1e-30), book)
    book = book[book.abs() > float(torch.finfo(torch.float16).tiny)]
    return rounded_book(book, 10).unique()


def average_bits(found: Mapping[str, Precision], pruned: Pruned) -> float:
    """Mean bits of a nonzero weight over all layers."""
    counts = {
        name: int(dict(pruned.net.named_parameters())[name].count_nonzero()) for name in found
    }
    return sum(found[n].bits * c for n, c in counts.items()) / max(sum(counts.values()), 1)
