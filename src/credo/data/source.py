"""Batches of ``(x, y)`` from arrays, data sets or loaders, behind one callable."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import starmap
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from credo.core.errors import DataError
from credo.core.seeds import LOCK
from credo.core.tree import Tree, is_real_table, named_leaves, take
from credo.data.checks import check_pair

Batch = tuple[Tree, Tensor]
# examples at a time from an ``IterableDataset``, which cannot be asked for everything at once
STREAM_BATCH = 128
FAR, SMALL, NARROW = 5.0, 0.1, 1e-4  # when columns are on a wild scale
CACHED = 1 << 16  # numbers that a processor sums without fetching them twice


class Feed(Protocol):
    """What a :class:`Source` draws from: raw batches in order, or shuffled by ``generator``."""

    def batches(self, generator: torch.Generator | None, batch_size: int | None) -> Iterator[Any]:
        """One pass over the data."""
        ...


@final
class Arrays:
    """Whole tensors in memory; a batch is a slice or a gather of rows."""

    def __init__(self, x: Tree, y: Tensor) -> None:
        self.x, self.y = x, y

    def batches(self, generator: torch.Generator | None, batch_size: int | None) -> Iterator[Batch]:
        """All rows once; the last batch may be smaller."""
        total = self.y.shape[0]
        size = batch_size or total
        if generator is None:
            for start in range(0, total, size):
                rows = slice(start, start + size)
                yield take(self.x, rows), self.y[rows]
            return
        order = torch.randperm(total, generator=generator, device=generator.device).to(
            self.y.device
        )
        for rows in order.split(size):
            yield take(self.x, rows), self.y[rows]


@final
class Indexed:
    """A map-style ``Dataset``; examples are fetched and stacked batch by batch."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def batches(self, generator: torch.Generator | None, batch_size: int | None) -> Iterator[Any]:
        """All examples once; the last batch may be smaller."""
        total = len(self.dataset)  # type: ignore[arg-type]
        order = (
            torch.arange(total)
            if generator is None
            else torch.randperm(total, generator=generator, device=generator.device)
        )
        rows = order.tolist()
        size = batch_size or total

        def stacked() -> Iterator[Any]:
            for start in range(0, total, size):
                yield default_collate([self.dataset[row] for row in rows[start : start + size]])

        return sealed(stacked, generator)


@final
class Stream:
    """A ``DataLoader`` or another iterable of batches, with its own batching and order."""

    def __init__(self, batches: Iterable[Any]) -> None:
        # A one-shot iterator would be empty in the second epoch, so what it gives is kept and given
        # again.
        self.source = Replay(batches) if isinstance(batches, Iterator) else batches

    def batches(self, generator: torch.Generator | None, batch_size: int | None) -> Iterator[Any]:
        """One pass; ``batch_size`` only matters to an ``IterableDataset``, which gives single
        examples.
        """
        source = self.source
        if isinstance(source, IterableDataset):
            source = DataLoader(source, batch_size=batch_size or STREAM_BATCH)
        return sealed(lambda: iter(source), generator)


@final
class Replay:
    """An iterable over a one-shot iterator that keeps what it has seen in memory."""

    def __init__(self, once: Iterator[Any]) -> None:
        self._once, self._seen = once, []

    def __iter__(self) -> Iterator[Any]:
        place = 0
        while True:
            if place == len(self._seen):
                try:
                    self._seen.append(next(self._once))
                except StopIteration:
                    return
            yield self._seen[place]
            place += 1


def sealed(make: Callable[[], Iterator[Any]], generator: torch.Generator | None) -> Iterator[Any]:
    """Iterate with a private stream of random numbers, seeded from ``generator``.

    Loaders and augmentations draw from torch's global generator; here those draws repeat from run
    to run and leave the caller's global state as it was. Randomness from numpy or ``random`` is not
    covered.
    """
    seed = (
        0
        if generator is None
        else int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    )
    state = torch.Generator().manual_seed(seed).get_state()
    iterator: Iterator[Any] | None = None
    while True:
        with LOCK:
            outside = torch.get_rng_state()
            torch.set_rng_state(state)
            try:
                iterator = make() if iterator is None else iterator
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                state = torch.get_rng_state()
                torch.set_rng_state(outside)
        yield batch


@final
class Columns:
    """Mean, standard deviation and range of every column of real ``(N, D)`` tensors, in double
    precision; of anything else ``real`` is False.
    """

    def __init__(self) -> None:
        self.real, self.count = True, 0
        self.mean = self.square = self.least = self.most = torch.zeros(0)
        self.rounding = 0.0

    def add(self, x: Any) -> None:
        """More rows."""
        self.real &= is_real_table(x)
        if not self.real:
            return
        if self.count == 0:
            self.rounding = torch.finfo(x.dtype).eps
        for rows in x.detach().split(max(1, CACHED // x.shape[1])):
            self._add(rows.double() if rows.dtype != torch.float64 else rows.clone())

    def _add(self, rows: Tensor) -> None:
        each = rows.new_full((len(rows),), 1.0 / len(rows))  # products are the quickest sums
        least, most, mean = rows.amin(0), rows.amax(0), each @ rows
        square = len(rows) * (each @ rows.sub_(mean).square_())
        if self.count == 0:
            self.mean, self.square, self.least, self.most = mean, square, least, most
            self.count = len(rows)
            return
        total, gap = self.count + len(rows), mean - self.mean
        self.square = self.square + square + gap.square() * (self.count * len(rows) / total)
        self.mean = self.mean + gap * (len(rows) / total)
        self.least, self.most = self.least.minimum(least), self.most.maximum(most)
        self.count = total

    @property
    def std(self) -> Tensor:
        """Of every column, ``(D,)``."""
        return (self.square / max(self.count, 1)).sqrt()

    @property
    def varying(self) -> Tensor:
        """Whether a column is more than one number and its rounding, ``(D,)``."""
        size = torch.maximum(self.least.abs(), self.most.abs())
        return self.most - self.least > 2.0 * self.rounding * size

    def units(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, or 1 for a constant, of every column; on the CPU."""
        return self.mean.cpu(), torch.where(self.varying, self.std, 1.0).cpu()

    @property
    def wild(self) -> bool:
        """Whether weights of about 1 would be far from what these columns need: one that varies is
        far from 0 (abs(mean) > 5), wide (sd > 5) or narrow (a range below 1e-4), or all are (no sd
        of 0.1).
        """
        if not self.real or not bool(self.varying.any()):
            return False
        mean, std = self.mean[self.varying].abs(), self.std[self.varying]
        narrow = (self.most - self.least)[self.varying].min() < NARROW
        return bool((mean > FAR).any() or (std > FAR).any() or narrow or std.max() < SMALL)


@final
class Source:
    """Batches of checked ``(x, y)``, epoch by epoch.

    ``num_data`` is N, the number of examples in the data set. ``source(generator, batch_size)``
    iterates one epoch: in order without a generator, permuted with one; the last partial batch is
    kept and ``batch_size=None`` means one batch of everything. A loader keeps its own batching and
    order. In-memory data is checked when the source is made; other data batch by batch, because
    loaders may give different numbers in every pass.
    """

    def __init__(self, feed: Feed, num_data: int, dtype: torch.dtype | None = None) -> None:
        self.num_data = num_data
        self._feed, self._dtype = feed, dtype
        self._targets: Tensor | None = feed.y if isinstance(feed, Arrays) else None
        self._own_batches = 1
        self._change: Callable[[Tree, Tensor], Batch] | None = None
        self._fingerprint: Callable[[], str | None] | None = None

    def __call__(
        self, epoch_generator: torch.Generator | None = None, batch_size: int | None = None
    ) -> Iterator[Batch]:
        """One epoch of ``(x, y)``."""
        if batch_size is not None and batch_size < 1:
            raise DataError(
                f"batch_size={batch_size} is not valid; expected a whole number above 0, or None "
                "for everything at once."
            )
        raw = self._feed.batches(epoch_generator, batch_size)
        batches = raw if isinstance(self._feed, Arrays) else self._checking(raw)
        yield from batches if self._change is None else starmap(self._change, batches)

    def arrays(self) -> Batch | None:
        """The whole ``(x, y)`` where it is in memory, else None."""
        return (self._feed.x, self._feed.y) if isinstance(self._feed, Arrays) else None

    def example(self, n: int = 2) -> Tree:
        """The first ``n`` inputs (fewer where the first batch is smaller)."""
        x, _ = next(iter(self(None, n)))
        return take(x, slice(0, n))

    def targets(self) -> Tensor:
        """All targets ``(N, ...)`` in the order of an unshuffled pass, which is made once where
        they are not in memory.
        """
        if self._targets is None:
            parts = [y for _, y in self(None, 1024)]
            self._targets, self._own_batches = torch.cat(parts), len(parts)
        return self._targets

    def columns(self) -> Columns:
        """Scales of the inputs' columns, found in the pass that gives the targets."""
        columns, parts, exact = Columns(), [], copy.copy(self)
        exact._dtype = None
        for x, y in exact(None, 1024):
            columns.add(x)
            parts.append(y)
        if self._targets is None:
            y = torch.cat(parts)
            y = y.to(self._dtype) if self._dtype is not None and y.is_floating_point() else y
            self._targets, self._own_batches = y, len(parts)
        return columns

    def changed(
        self, inputs: Callable[[Tree], Tree], targets: Callable[[Tensor], Tensor]
    ) -> Source:
        """The same data as these functions of every batch, which get it as precise as it came."""
        if isinstance(self._feed, Arrays):
            changed = Source(Arrays(inputs(self._feed.x), targets(self._feed.y)), self.num_data)
            changed._fingerprint = self.fingerprint
            return changed
        other = copy.copy(self)
        other._dtype, other._change = None, lambda x, y: (inputs(x), targets(y))
        other._targets = None if self._targets is None else targets(self._targets)
        return other

    def fingerprint(self) -> str | None:
        """A digest of data held in memory, as they were given, so that a run is not resumed with
        other data; None where they are read as they come.
        """
        if self._fingerprint is not None:
            return self._fingerprint()
        if not isinstance(self._feed, Arrays):
            return None
        digest = hashlib.blake2b(digest_size=8)
        for name, leaf in [*named_leaves(self._feed.x, "x"), *named_leaves(self._feed.y, "y")]:
            digest.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
            digest.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()

    def num_batches(self, batch_size: int | None) -> int:
        """Batches in one epoch; a loader keeps its own batching, whatever ``batch_size`` says."""
        total = len(self.targets())
        if isinstance(self._feed, Stream):
            if not isinstance(self._feed.source, IterableDataset):
                return self._own_batches
            batch_size = batch_size or STREAM_BATCH
        return 1 if batch_size is None else math.ceil(total / batch_size)

    def _checking(self, raw: Iterator[Any]) -> Iterator[Batch]:
        count = -1
        for count, batch in enumerate(raw):
            yield check_batch(batch, count, self._dtype)
        if count < 0:
            raise DataError("The data gave no batches; pass at least one example.")


def check_batch(batch: Any, count: int, dtype: torch.dtype | None) -> Batch:
    """One batch of a data set or loader as ``(x, y)`` tensors; the error names the batch."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, (tuple, list, dict)) else ""
        raise DataError(
            f"Batch {count} is a {type(batch).__name__}{size}; expected a pair (x, y); for "
            "several inputs give ((x1, x2), y)."
        )
    try:
        return check_pair(as_tree(batch[0]), batch[1], dtype=dtype)
    except DataError as error:
        raise DataError(f"Batch {count}: {error}") from error


def as_tree(x: Any) -> Any:
    """``default_collate`` turns tuples of tensors into lists; as inputs they are tuples again."""
    if (
        isinstance(x, list)
        and x
        and all(isinstance(part, (Tensor, dict, list, tuple)) for part in x)
    ):
        return tuple(as_tree(part) for part in x)
    if isinstance(x, dict):
        return {key: as_tree(value) for key, value in x.items()}
    return x
