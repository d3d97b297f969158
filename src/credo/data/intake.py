"""The one door for data: arrays, frames, data sets and loaders all become a :class:`Source`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from credo.core.errors import DataError
from credo.core.standardised import Standardised
from credo.core.tree import is_real_table
from credo.data.checks import Asked, check_pair
from credo.data.source import Arrays, Columns, Indexed, Source, Stream, as_tree

_PAIR = "expected (x, y), a Dataset, a DataLoader, or an iterable of (x, y) batches"


def intake(data: Any, *, num_data: int | None = None, dtype: torch.dtype | None = None) -> Source:
    """Make a :class:`Source` of ``(x, y)``, a ``Dataset``, a ``DataLoader`` or an iterable of
    batches.

    N scales the data term of every objective, so it is never guessed: where the number of examples
    cannot be read off the data, ``num_data`` is required; where it can, a different ``num_data`` is
    taken as the size of the whole data set of which this is a part. ``dtype`` casts floating inputs
    and targets. Bad data raises ``DataError``.
    """
    if num_data is not None and (
        not isinstance(num_data, int) or isinstance(num_data, bool) or num_data < 1
    ):
        raise DataError(
            f"num_data={num_data!r} is not valid; expected the number of examples in the data "
            "set, a whole number above 0."
        )
    if isinstance(data, Source):
        return data
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = tuple(data.tensors)
    if isinstance(data, DataLoader):
        return Source(Stream(data), num_data or _loader_length(data), dtype)
    if isinstance(data, IterableDataset):
        return Source(Stream(data), num_data or _unknown("An IterableDataset"), dtype)
    if isinstance(data, Dataset):
        total = len(data)  # type: ignore[arg-type]
        if total == 0:
            raise DataError("The Dataset is empty; pass at least one example.")
        return Source(Indexed(data), num_data or total, dtype)
    if _is_pair(data):
        x, y = check_pair(as_tree(data[0]), data[1], dtype=dtype)
        return Source(Arrays(x, y), num_data or y.shape[0], dtype)
    if (
        isinstance(data, (tuple, dict))
        or hasattr(data, "shape")
        or isinstance(data, (str, bytes))
        or not isinstance(data, Iterable)
    ):
        size = f" of {len(data)}" if isinstance(data, (tuple, dict)) else ""
        raise DataError(f"The data is a {type(data).__name__}{size}; {_PAIR}.")
    return Source(Stream(data), num_data or _count(data), dtype)


def in_standard_units(
    data: Any, source: Source, asked: Asked, *, noise_learned: bool, dtype: torch.dtype
) -> tuple[Source, Standardised | None]:
    """The source of these data in standardised units, and the units; or as it is, and None.

    ``asked``: "auto" for inputs or targets on a wild scale (``Columns.wild``), True for any, or
    units that are known. Inputs are one real tensor (N, D), or nothing is done; targets are real,
    with noise whose size is learned, else they are left alone.
    """
    if isinstance(data, Source) and isinstance(asked, Standardised):
        return source, asked  # who made it has used them
    arrays = source.arrays()
    if arrays is not None and asked == "auto" and not is_real_table(arrays[0]):
        return source, None
    exact = source if arrays is None else intake(data, num_data=source.num_data)
    if isinstance(asked, (bool, str)):
        x, y = exact.columns(), Columns()
        y.add(_columns(source.targets() if exact is source else exact.targets()))
        if asked is True and not x.real:
            raise DataError("standardise=True takes inputs that are one real tensor (N, D).")
        use_x = x.real and (asked is True or x.wild)
        use_y = x.real and y.real and noise_learned and (asked is True or y.wild)
        if not (use_x or use_y):
            return source, None
        units = Standardised(*(x.units() if use_x else (None, None)), *(y.units() if use_y else ()))
    else:
        source.targets()  # in one pass, before it is copied
        units = asked
    changed = exact.changed(lambda x: units.inputs(x, dtype), lambda y: units.targets(y, dtype))
    return changed, units


def _columns(y: Tensor) -> Tensor:
    """Targets as real columns ``(N, D)``, whatever they are."""
    return y.double().unsqueeze(-1) if y.dim() == 1 else y.double()


def _is_pair(data: Any) -> bool:
    """A tuple of two, or a list of two that is not a list of two ``(x, y)`` batches."""
    if isinstance(data, tuple):
        return len(data) == 2
    return (
        isinstance(data, list)
        and len(data) == 2
        and not all(isinstance(part, tuple) and len(part) == 2 for part in data)
    )


def _loader_length(loader: DataLoader[Any]) -> int:
    """Examples in one pass of a loader, where torch's own samplers make that certain."""
    plan = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset) or type(plan) is not BatchSampler:
        return _unknown("A DataLoader over an IterableDataset or with its own batching")
    sampler = plan.sampler
    whole = len(loader.dataset)  # type: ignore[arg-type]
    plain = isinstance(sampler, (SequentialSampler, DistributedSampler))
    if plain or (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == whole
    ):
        return whole or _empty()
    if isinstance(sampler, SubsetRandomSampler):
        return len(sampler) or _empty()
    return _unknown(f"A DataLoader with a {type(sampler).__name__}")


def _count(data: Iterable[Any]) -> int:
    """Examples in a list of batches; anything else may be endless or one-shot and is not
    counted.
    """
    if isinstance(data, list):
        if not data:
            return _empty()
        if all(
            isinstance(part, (tuple, list)) and len(part) == 2 and hasattr(part[1], "__len__")
            for part in data
        ):
            return sum(len(part[1]) for part in data) or _empty()
    return _unknown(f"A {type(data).__name__}")


def _unknown(what: str) -> int:
    raise DataError(
        f"{what} does not say how many examples there are; pass num_data=, the size of the whole "
        "data set."
    )


def _empty() -> int:
    raise DataError("The data is empty; pass at least one example.")
