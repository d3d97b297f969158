"""Where a fit has seen inputs, column by column, and inputs that lie far outside of it.

A column's ``width`` is that of its training range, and at least the median width of all columns,
since a pixel that was always 0 may be anything that pixels are. Rows lie far outside in a column
where they are beyond its range by more than one width. That is found where a tenth of the rows is,
or where one is beyond by more than ten widths: a wrong unit or a shifted column, not the rare row
of a long tail, nor a plot that goes on for a while on both sides.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor

from credo.core.errors import Finding, FindingWarning
from credo.core.standardised import Standardised
from credo.core.tree import is_real_table
from credo.data.source import Source

MOST_COLUMNS = 10_000
FAR = 1.001  # widths beyond; a grid may end one width away
SHARE, FARTHEST = 0.1, 10.0  # of the rows that are far; widths that no row may be away


@final
@dataclass(frozen=True)
class InputRange:
    """Least and largest value of every column ``(D,)``, in the units of x, in double precision."""

    least: Tensor
    most: Tensor

    @classmethod
    def of(
        cls, source: Source, units: Standardised | None, *earlier: InputRange | None
    ) -> InputRange | None:
        """That of data in memory, which are in standardised ``units``, and of ``earlier`` fits;
        None where one of these is not known or x is not one real table.
        """
        arrays = source.arrays()
        x = None if arrays is None else arrays[0]
        if x is None or not is_real_table(x) or x.shape[1] > MOST_COLUMNS:
            return None
        ends = torch.stack(x.aminmax(dim=0)).double()
        own = (ends if units is None else units.raw_inputs(ends)).cpu()
        least, most = own
        for other in earlier:
            if other is None or other.least.shape != least.shape:
                return None
            least, most = least.minimum(other.least), most.maximum(other.most)
        return cls(least, most)

    def tensors(self) -> dict[str, Tensor]:
        """As they are stored."""
        return {"least": self.least, "most": self.most}

    @classmethod
    def stored(cls, tensors: dict[str, Tensor]) -> Self | None:
        """The inverse of ``tensors``; None of a model that was stored without."""
        return cls(**tensors) if tensors else None

    def ends(self, units: Standardised | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """Least and most in standardised ``units``."""
        both = torch.stack([self.least, self.most]).to(device)
        least, most = both if units is None else units.inputs(both, torch.float64)
        return least, most


@final
class Outside:
    """What lies outside of a range that is ``known``, of batch after batch of inputs in
    standardised ``units``.
    """

    def __init__(self, known: InputRange | None, units: Standardised | None) -> None:
        self._known, self._units, self._rows = known, units, 0
        self._low = self._high = self._over = self._beyond = torch.zeros(0)

    def seen(self, x: Any) -> Any:
        """``x``, after a look at it."""
        known = self._known
        if known is None or not is_real_table(x) or x.shape[1] != len(known.least):
            return x
        low, high = x.aminmax(dim=0)
        least, most = known.ends(self._units, x.device)
        size = torch.maximum(least.abs(), most.abs()).clamp_min(1.0)
        width = torch.where(most > least, most - least, size)
        width = width.maximum(width.median())
        beyond, over = torch.maximum(least - low, high - most) / width, torch.zeros_like(width)
        if bool((beyond > FAR).any()):
            over = (torch.maximum(least - x, x - most) > FAR * width).sum(0).to(width)
        if self._rows:
            low, high = low.minimum(self._low), high.maximum(self._high)
            over, beyond = over + self._over, beyond.maximum(self._beyond)
        self._low, self._high, self._over, self._beyond = low, high, over, beyond
        self._rows += len(x)
        return x

    @property
    def findings(self) -> list[Finding]:
        """Inputs out of range, if there were any."""
        known = self._known
        if known is None or not self._rows:
            return []
        loud = (self._over >= SHARE * self._rows) | (self._beyond > FARTHEST)
        loud &= self._over > 0
        if not bool(loud.any()):
            return []
        column = int(torch.where(loud, self._beyond, -1.0).argmax())
        both = torch.stack([self._low, self._high]).double()
        both = both if self._units is None else self._units.raw_inputs(both)
        low, high = both[:, column].tolist()
        least, most = float(known.least[column]), float(known.most[column])
        evidence = (
            f"column {column} of x is between {low:.4g} and {high:.4g}, in training it was between "
            f"{least:.4g} and {most:.4g}; so far out are {int(loud.sum())} of {len(loud)} columns"
        )
        remedy = "check the units and the order of columns, or do not rely on predictions there"
        return [Finding("inputs out of range", "warning", evidence, remedy)]

    def tell(self) -> None:
        """Warn of them, once."""
        for finding in self.findings:
            warnings.warn(finding.sentence, FindingWarning, stacklevel=4)
