"""Batches in many orders at once: one for each member of an ensemble, or each chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from credo.core.errors import DataError
from credo.core.tree import leaves, map_leaves, stack
from credo.data.source import Source


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
