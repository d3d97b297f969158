"""Data without targets: tensors, arrays, data sets and loaders as the pairs that everything else in
the library takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from credo.core.errors import DataError
from credo.data.checks import check_inputs
from credo.data.intake import intake
from credo.data.source import Source, Stream
from credo.likelihoods.base import Likelihood
from credo.likelihoods.target_checks import unit_targets


@final
class DataCheck:
    """Checks data: all of one shape (that of the first, unless given), with values that the
    likelihood can have made.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        dtype: torch.dtype,
        binarise: bool,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.likelihood, self.dtype, self.binarise, self.shape = likelihood, dtype, binarise, shape
        self.before = "the first data have" if shape is None else "this model was fitted to"

    def check_one(self, x: Any, where: str) -> Tensor:
        """A single datum, named by ``where`` in a ``DataError``."""
        try:
            value = x if isinstance(x, Tensor) else np.asarray(x)
            return self(value[None])[0]
        except (DataError, ValueError) as error:
            raise DataError(f"{where}: {error}") from error

    def __call__(self, x: Any) -> Tensor:
        """The data as a tensor ``(N, *shape)``, or a ``DataError``."""
        tensor = check_inputs(x, dtype=self.dtype)
        if not isinstance(tensor, Tensor):
            raise DataError(f"The data are a {type(x).__name__}; expected one tensor or array.")
        tensor = tensor if tensor.dim() > 1 else tensor.unsqueeze(-1)
        shape = tuple(tensor.shape[1:])
        if self.shape is not None and shape != self.shape:
            raise DataError(f"The data have shape {shape} each; {self.before} {self.shape}.")
        tensor = tensor.to(self.dtype) if self.binarise or tensor.dtype == torch.bool else tensor
        self.targets(tensor)
        self.shape = shape
        return tensor

    def targets(self, x: Tensor) -> Tensor:
        """As the likelihood sees them, checked."""
        flat = x.flatten(1)
        return (
            unit_targets(flat, "binarise=True")
            if self.binarise
            else self.likelihood.check_targets(flat)
        )


def _without_target(given: Any) -> Any:
    """The data of an example or a batch, without what stands beside them; a list of numbers is a
    datum itself.
    """
    paired = isinstance(given, tuple) or (
        isinstance(given, list) and bool(given) and not isinstance(given[0], (int, float))
    )
    return given[0] if paired else given


@final
class UnlabelledBatches:
    """A loader of which only the data count: every batch is checked, and gets zeros as targets."""

    def __init__(self, loader: Iterable[Any], check: DataCheck) -> None:
        self.loader, self.check = loader, check

    def __iter__(self) -> Iterator[Any]:
        for count, batch in enumerate(self.loader):
            try:
                x = self.check(_without_target(batch))
            except DataError as error:
                raise DataError(f"Batch {count}: {error}") from error
            yield x, torch.zeros(len(x))


@final
class UnlabelledExamples(Dataset[Any]):
    """A data set of which only the data count, checked example by example."""

    def __init__(self, data: Dataset[Any], check: DataCheck) -> None:
        self.data, self.check = data, check

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]

    def __getitem__(self, row: int) -> Any:
        return self.check.check_one(_without_target(self.data[row]), f"Example {row}"), torch.zeros(
            ()
        )


@final
class UnlabelledStream(IterableDataset[Any]):
    """The same for a data set without a length."""

    def __init__(self, data: IterableDataset[Any], check: DataCheck) -> None:
        self.data, self.check = data, check

    def __iter__(self) -> Iterator[Any]:
        for count, row in enumerate(self.data):
            yield self.check.check_one(_without_target(row), f"Example {count}"), torch.zeros(())


def source_of(x: Any, check: DataCheck, num_data: int | None = None) -> Source:
    """Data of any kind as a source of pairs."""
    if isinstance(x, TensorDataset):
        x = x.tensors[0]
    if isinstance(x, DataLoader):
        return Source(Stream(UnlabelledBatches(x, check)), intake(x, num_data=num_data).num_data)
    if isinstance(x, IterableDataset):
        return intake(UnlabelledStream(x, check), num_data=num_data)
    if isinstance(x, Dataset):
        return intake(UnlabelledExamples(x, check), num_data=num_data)
    tensor = check(x)
    return intake((tensor, torch.zeros(len(tensor))), num_data=num_data)


def first_data(source: Source, count: int) -> Tensor:
    """The first ``count`` data, or all where there are fewer."""
    parts: list[Tensor] = []
    for x, _ in source(None, None):
        parts.append(x)  # type: ignore[arg-type]
        if sum(map(len, parts)) >= count:
            break
    return torch.cat(parts)[:count]
