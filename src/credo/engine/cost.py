"""What a pass of the network costs: counted, not timed, so that decisions by it repeat."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from credo.data.source import Source
from credo.engine.model import Model

PER_NUMBER = 60  # products that a number costs which an operation writes to memory


def products_per_example(model: Model, source: Source) -> int:
    """Products of weights and numbers that one more example costs in a pass, with 60 for every
    number that operations write: of dense layers as many as they have weights and 60 per unit, of a
    convolution one per weight and place. Recurrent layers count once.
    """
    from torch.utils.flop_counter import FlopCounterMode

    def cost(count: int) -> tuple[float, int]:
        with Written() as written, FlopCounterMode(display=False) as counter:
            outputs = model.probe(source.example(count))
        return counter.get_total_flops() / 2 + PER_NUMBER * written.numbers, len(outputs)

    (one, rows), (two, more) = cost(1), cost(2)
    return math.ceil((two - one) / (more - rows) if more > rows else one / max(rows, 1))


@final
class Written(TorchDispatchMode):
    """Counts the numbers that operations write, views left out."""

    numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if all(each.alias_info is None for each in func._schema.returns):
            several = outputs if isinstance(outputs, (tuple, list)) else [outputs]
            self.numbers += sum(o.numel() for o in several if isinstance(o, torch.Tensor))
        return outputs
