"""Data as a fit sees them: on the model's device, with targets as its likelihood wants them, in one
order or in many at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, final

import torch
from torch import Tensor

from credo.core.errors import DataError
from credo.core.tree import leaves, map_leaves, stack
from credo.data.source import Arrays, Source
from credo.engine.model import Model


def on_device(source: Source, model: Model) -> Source:
    """In-memory data move to the device once; targets are checked and cast here or batch by
    batch.
    """
    arrays = source.arrays()
    if arrays is None:
        return Source(_Checked(source, model), source.num_data)
    x, y = arrays
    return Source(
        Arrays(model.move(x), model.move(model.likelihood.check_targets(y))), source.num_data
    )


def own_batches(
    source: Source, orders: Sequence[torch.Generator], batch_size: int | None
) -> Iterator[tuple[Any, Tensor]]:
    """One epoch of batches ``(K, B, ...)``: row k holds what ``source(orders[k], batch_size)``
    gives.
    """
    arrays = source.arrays()
    if arrays is None:
        for batches in zip_longest(*(source(order, batch_size) for order in orders)):
            shapes = [
                [tuple(leaf.shape) for leaf in leaves(batch) if leaf is not None]
                for batch in batches
            ]
            odd = next((each for each in shapes if each != shapes[0]), None)
            if odd is not None:
                raise DataError(
                    "Members that learn at once take a batch of the same shape each, and here "
                    f"one has {shapes[0]} and another {odd}; give the "
                    "data as tensors or a Dataset, or let the loader make batches of one size and "
                    "length."
                )
            yield stack(batches)
        return
    x, y = arrays
    for part in own_orders(orders, len(y), y.device).split(batch_size or len(y), 1):
        flat = part.reshape(-1)

        def pick(leaf: Any, flat: Tensor = flat) -> Any:
            return leaf.index_select(0, flat).reshape(
                len(orders), -1, *leaf.shape[1:]
            )  # rows in one go: faster than leaf[part]

        yield map_leaves(pick, x), pick(y)


def own_orders(orders: Sequence[torch.Generator], total: int, device: torch.device) -> Tensor:
    """Rows of the data in every order, ``(K, total)``."""
    return torch.stack(
        [torch.randperm(total, generator=order, device=order.device) for order in orders]
    ).to(device)


@final
class _Checked:
    """A feed that casts targets as the likelihood wants them."""

    def __init__(self, source: Source, model: Model) -> None:
        self.source, self.model = source, model

    def batches(self, generator: torch.Generator | None, batch_size: int | None) -> Iterator[Any]:
        """Batches with checked targets."""
        for x, y in self.source(generator, batch_size):
            yield x, self.model.likelihood.check_targets(y)
