"""Data as a fit sees them: on the model's device, with targets as its likelihood wants them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch

from credo.data.source import Arrays, Source
from credo.engine.model import Model


def on_device(source: Source, model: Model) -> Source:
    """In-memory data move to the device once; targets are checked and cast here or batch by batch."""
    arrays = source.arrays()
    if arrays is None:
        return Source(_Checked(source, model), source.num_data)
    x, y = arrays
    return Source(Arrays(model.move(x), model.move(model.likelihood.check_targets(y))), source.num_data)


@final
class _Checked:
    """A feed that casts targets as the likelihood wants them."""

    def __init__(self, source: Source, model: Model) -> None:
        self.source, self.model = source, model

    def batches(self, generator: torch.Generator | None, batch_size: int | None) -> Iterator[Any]:
        """Batches with checked targets."""
        for x, y in self.source(generator, batch_size):
            yield x, self.model.likelihood.check_targets(y)
