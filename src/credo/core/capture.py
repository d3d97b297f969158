"""Work on a GPU captured once as a CUDA graph and replayed: one launch in place of hundreds.

Small networks wait for launches and not for arithmetic: a captured training step takes a tenth of
the eager one's time (``benchmarks/results/h200_joint.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, final

import torch
from torch import Tensor

T = TypeVar("T")
WARM_UP = 3  # runs in which libraries choose their algorithms and lazily made tensors appear


def _nothing() -> None:
    pass


@final
class CapturedGraph(Generic[T]):
    """``work()`` as a CUDA graph, which always reads and writes the same memory.

    What differs from one replay to the next is copied into ``static_inputs``, which ``work`` reads;
    ``result`` is what ``work`` returned and is overwritten by every replay. ``work`` runs three
    times before it is captured, on a side stream, so whatever it changes has to be put back by the
    caller. ``release`` is called before those runs and after each: it drops what would keep
    autograd nodes of a run alive, because these belong to the stream that they were made on.
    """

    def __init__(
        self,
        work: Callable[[], T],
        static_inputs: Sequence[Tensor],
        release: Callable[[], None] = _nothing,
    ) -> None:
        self.static_inputs = list(static_inputs)
        release()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                work()
                release()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self.result = work()

    def load(self, inputs: Sequence[Tensor]) -> None:
        """Copy these into the static inputs."""
        for static, tensor in zip(self.static_inputs, inputs, strict=True):
            static.copy_(tensor)

    def replay(self) -> T:
        """Run once more on what the static inputs hold."""
        self.graph.replay()
        return self.result
