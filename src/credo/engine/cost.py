"""What a pass of the network costs: counted, not timed, so that decisions by it repeat."""

from __future__ import annotations

import math

from credo.data.source import Source
from credo.engine.model import Model


def products_per_example(model: Model, source: Source) -> int:
    """Products of weights and numbers in one pass over one example: of dense layers as many as they
    have weights, of a convolution one per weight and place. Recurrent layers count once.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        outputs = model.probe(source.example(1))
    return math.ceil(counter.get_total_flops() / (2 * max(len(outputs), 1)))
