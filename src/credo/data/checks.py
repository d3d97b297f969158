"""Turn what users pass into tensors, refuse what cannot be learned from before any work is done,
and find inputs to predict at that lie far from those of the fit.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
import torch
from torch import Tensor, nn

from credo.core.errors import DataError, Finding, SettingError
from credo.core.standardised import OwnUnits, Standardised
from credo.core.tree import Tree, is_real_table, map_named_leaves, named_leaves

Asked = str | bool | Standardised  # of standardising: "auto", yes or no, or known units
MOST_COLUMNS = 10_000
FAR = 1.001  # widths beyond; a grid may end one width away
SHARE, FARTHEST = 0.1, 10.0  # of the rows that are far; widths that no row may be away
# torch has only partial support for the wide unsigned kinds, so they are widened to the signed kind
# that holds them.
_WIDENED = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}


def check_inputs(
    x: Any, *, dtype: torch.dtype | None = None, like: Tree | None = None, name: str = "x"
) -> Tree:
    """Inputs as tensors: a tensor, array, DataFrame, or a dict or tuple of them sharing axis 0.

    Floating inputs are cast to ``dtype`` where one is given; whole numbers keep theirs. ``like`` is
    an example from training: its structure and the sizes after axis 0 must be met. Refuses NaN,
    infinite values, empty data, text, scalars and leaves of different lengths with a ``DataError``
    that names the row and column.
    """
    tensors = map_named_leaves(
        lambda where, leaf: _finite(where, to_tensor(leaf, where, dtype), leaf), x, name
    )
    found = list(named_leaves(tensors, name))
    if not found:
        raise DataError(
            f"{name} holds no tensors; pass a tensor, or a dict or tuple with at least one."
        )
    (first_name, first), *others = found
    for where, leaf in others:
        same_length(first_name, first, where, leaf)
    if like is not None:
        _check_like(tensors, like, name)
    return tensors


def taken(x: Any, dtype: torch.dtype | None, units: Standardised | None) -> Tree:
    """Checked inputs of a prediction, in standardised units where the model has any."""
    if units is None:
        return check_inputs(x, dtype=dtype)
    return units.inputs(check_inputs(x), dtype)


def standardise_asked(asked: Asked, prior: Any, net: nn.Module) -> Asked:
    """What ``standardise=`` comes to: "auto" is False with a prior of the user's, and for networks
    that look inputs up in a table or have hooks of their own in front.
    """
    if isinstance(asked, (bool, Standardised)):
        return asked
    if asked != "auto":
        raise SettingError(f"standardise={asked!r} is not valid; expected 'auto', True or False.")
    lookups = any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in net.modules())
    own = isinstance(net, OwnUnits) or bool(net._forward_pre_hooks)
    return False if prior is not None or lookups or own else asked


def check_pair(x: Any, y: Any, *, dtype: torch.dtype | None = None) -> tuple[Tree, Tensor]:
    """``(x, y)`` as tensors of one length; everything :func:`check_inputs` refuses is refused in
    ``y`` too.
    """
    inputs = check_inputs(x, dtype=dtype)
    if isinstance(y, (dict, tuple)):
        raise DataError(
            f"y is a {type(y).__name__}; expected one tensor, array, Series or DataFrame of "
            "targets."
        )
    targets = check_inputs(y, dtype=dtype, name="y")
    where, first = next(named_leaves(inputs, "x"))
    same_length(where, first, "y", targets)
    return inputs, targets


def same_length(name: str, first: Tensor, other_name: str, other: Tensor) -> None:
    """Refuse two tensors whose first axes differ."""
    if first.shape[0] != other.shape[0]:
        raise DataError(
            f"{name} has {first.shape[0]} rows and {other_name} has {other.shape[0]}; both must "
            "have one row per example."
        )


def to_tensor(value: Any, name: str, dtype: torch.dtype | None = None) -> Tensor:
    """One leaf as a tensor; float64 stays float64 unless ``dtype`` says otherwise."""
    tensor = (
        value.detach() if isinstance(value, Tensor) else _from_array(_as_array(value, name), name)
    )
    if tensor.is_sparse or tensor.is_complex():
        raise DataError(
            f"{name} is a {tensor.layout if tensor.is_sparse else tensor.dtype} tensor; expected "
            "dense real numbers."
        )
    if tensor.ndim == 0:
        raise DataError(
            f"{name} is a single number; expected one row per example, so at least one axis."
        )
    if tensor.numel() == 0:
        raise DataError(
            f"{name} is empty: its shape is {tuple(tensor.shape)}; pass at least one example with "
            "at least one value."
        )
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def _as_array(value: Any, name: str) -> np.ndarray:
    pandas = sys.modules.get(
        "pandas"
    )  # a frame can only arrive from a program that imported pandas
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return _from_frame(value, name)
    if pandas is not None and isinstance(value, (pandas.Series, pandas.Index)):
        return _from_frame(value.to_frame(), name)[:, 0]
    if isinstance(value, (np.ndarray, np.generic, list, int, float)):
        try:
            return np.asarray(value)
        except ValueError as error:
            raise DataError(
                f"{name} is a list whose rows have different lengths; expected a rectangular array."
            ) from error
    raise DataError(
        f"{name} is a {type(value).__name__}; expected a tensor, a numpy array, a DataFrame or a "
        "Series."
    )


def _from_frame(frame: Any, name: str) -> np.ndarray:
    import pandas

    for column in frame.columns:
        if not pandas.api.types.is_numeric_dtype(frame[column].dtype):
            raise DataError(
                f"{name}: column {column!r} holds {frame[column].dtype} values such as "
                f"{frame[column].iloc[:1].tolist()}; "
                "expected numbers, so encode it first (credo.data.TableSchema does)."
            )
    if any(pandas.api.types.is_extension_array_dtype(kind) for kind in frame.dtypes):
        return frame.to_numpy(dtype=np.float64, na_value=np.nan)
    return frame.to_numpy()


def _from_array(array: np.ndarray, name: str) -> Tensor:
    if array.dtype.kind not in "biuf":
        first = array.ravel()[:1].tolist()
        raise DataError(
            f"{name} has dtype {array.dtype} with values such as {first}; expected numbers, so "
            "encode it as numbers first."
        )
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise DataError(
            f"{name} has uint64 values up to {array.max()}; expected whole numbers below 2**63."
        )
    wanted = np.int64 if array.dtype == np.uint64 else _WIDENED.get(array.dtype, array.dtype)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        wanted = np.float64
    native = np.dtype(wanted).newbyteorder("=")
    # from_numpy shares memory but warns about read-only arrays and refuses negative strides.
    return torch.from_numpy(np.require(array.astype(native, copy=False), requirements=["C", "W"]))


def _finite(name: str, tensor: Tensor, given: Any) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    # One reduction decides the common case: a sum is finite only if every term is, unless it
    # overflows.
    if bool(torch.isfinite(tensor.sum())):
        return tensor
    bad = ~torch.isfinite(tensor)
    if not bool(bad.any()):
        return tensor
    place = bad.nonzero()[0].tolist()
    value = tensor[tuple(place)].item()
    what = "NaN" if math.isnan(value) else "an infinite value"
    columns = getattr(given, "columns", None)
    where = f"row {place[0]}"
    if len(place) == 2:
        where += (
            f", column {columns[place[1]]!r}" if columns is not None else f", column {place[1]}"
        )
    elif len(place) > 2:
        where += f", position {tuple(place[1:])}"
    count = int(bad.sum())
    raise DataError(
        f"{name} has {what} at {where} ({count} such value{'s' * (count > 1)}); remove or fill "
        "those rows first."
    )


def _check_like(given: Tree, like: Tree, name: str) -> None:
    wanted = dict(named_leaves(like, name))
    found = dict(named_leaves(given, name))
    if wanted.keys() != found.keys():
        raise DataError(
            f"The inputs are {', '.join(found)}; expected the structure of training: "
            f"{', '.join(wanted)}."
        )
    for where, leaf in found.items():
        if leaf.shape[1:] != wanted[where].shape[1:]:
            raise DataError(
                f"{where} has shape {tuple(leaf.shape[1:])} per example; "
                f"expected {tuple(wanted[where].shape[1:])} as in training."
            )


# --- where inputs were seen ----------------------------------------------------------------------


@final
@dataclass(frozen=True)
class InputRange:
    """Least and largest value of every column ``(D,)``, in the units of x, in double precision.

    A column's ``width`` is that of its range, and at least the median width of all columns, since a
    pixel that was always 0 may be anything that pixels are. Rows lie far outside in a column where
    they are beyond its range by more than one width. That is found where a tenth of the rows is, or
    where one is beyond by more than ten widths: a wrong unit or a shifted column, not the rare row
    of a long tail, nor a plot that goes on for a while on both sides.
    """

    least: Tensor
    most: Tensor

    @classmethod
    def of(
        cls, x: Any, units: Standardised | None, *earlier: InputRange | None
    ) -> InputRange | None:
        """That of x in standardised ``units``, and of ``earlier`` fits; None where one of these is
        not known or x is not one real table.
        """
        if not is_real_table(x) or x.shape[1] > MOST_COLUMNS:
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
