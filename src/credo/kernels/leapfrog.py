"""The leapfrog scheme, as one step that can be compiled: half a kick, a drift, half a kick.

It keeps volume and is reversible, so its end points can be accepted by energy alone; its error in
the energy is of second order in the step. A step is traced once into a graph of tensor operations,
gradient included. On a CPU that graph is compiled; on a GPU the compiled graph is captured and
replayed, so that a trajectory costs one launch per step.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.kernels.log_density import Point, Target
from credo.kernels.metric import force, velocity


@final
class Integrator:
    """``integrator(point, momentum, step, scale, count)``: the end of ``count`` leapfrog steps of
    every chain.
    """

    def __init__(self, target: Target, compile: bool = False) -> None:
        self.target, self.compile = target, compile
        self._known: dict[tuple[object, ...], _Compiled] = {}

    def __call__(
        self, point: Point, momentum: Tensor, step: Tensor, scale: Tensor, count: int
    ) -> tuple[Point, Tensor]:
        """``momentum`` ``(C, P)`` is whitened; ``step`` ``(C, 1)``, negative to go back in time."""
        if self.compile:
            return self._compiled(point, momentum, step, scale)(point, momentum, step, scale, count)
        position, value, slope = point
        for _ in range(count):
            position, momentum, value, slope = self.once(position, momentum, slope, step, scale)
        return Point(position, value, slope), momentum

    def once(
        self, position: Tensor, momentum: Tensor, slope: Tensor, step: Tensor, scale: Tensor
    ) -> tuple[Tensor, ...]:
        """One step: position, momentum, log density, slope."""
        momentum = momentum + 0.5 * step * force(scale, slope)
        position = position + step * velocity(scale, momentum)
        value, slope = self.target(position)
        return position, momentum + 0.5 * step * force(scale, slope), value, slope

    def _compiled(self, point: Point, momentum: Tensor, step: Tensor, scale: Tensor) -> _Compiled:
        key = (momentum.shape, momentum.dtype, scale.dim())
        if key not in self._known:
            self._known[key] = _Compiled(self, (point.position, momentum, point.slope, step, scale))
        return self._known[key]


def _options(like: Tensor) -> dict[str, Any] | None:
    """On a CPU tanh(x) as 2 sigmoid(2 x) - 1, within rounding of 1e-7: the vectorised tanh takes
    most of a small network's step.
    """
    from torch._inductor import config

    return (
        {"cpp.use_decompose_tanh": True}
        if not like.is_cuda and hasattr(config.cpp, "use_decompose_tanh")
        else None
    )


class _Compiled:
    """One step as a compiled graph, and on a GPU as a captured one."""

    def __init__(self, integrator: Integrator, example: tuple[Tensor, ...]) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx

        def once(
            position: Tensor, momentum: Tensor, slope: Tensor, step: Tensor, scale: Tensor
        ) -> tuple[Tensor, ...]:
            return integrator.once(position, momentum, slope, step, scale)

        try:
            traced = make_fx(once)(*example)
            self.step = torch.compile(
                traced, fullgraph=True, dynamic=False, options=_options(example[0])
            )
            self.step(*example)
        except Exception as error:
            raise SettingError(
                "compile=True: the compiler cannot trace this network "
                f"({str(error).splitlines()[0]}); use compile=False."
            ) from error
        self.graph: torch.cuda.CUDAGraph | None = None
        if example[0].is_cuda:
            self._capture(example)

    def __call__(
        self, point: Point, momentum: Tensor, step: Tensor, scale: Tensor, count: int
    ) -> tuple[Point, Tensor]:
        position, value, slope = point
        if self.graph is None:
            for _ in range(count):
                position, momentum, value, slope = self.step(position, momentum, slope, step, scale)
            return Point(position, value, slope), momentum
        for held, tensor in zip(self.inputs, (position, momentum, slope, step, scale), strict=True):
            held.copy_(tensor)
        for _ in range(count):
            self.graph.replay()
        position, momentum, slope = (held.clone() for held in self.inputs[:3])
        return Point(position, self.value.clone(), slope), momentum

    def _capture(self, example: tuple[Tensor, ...]) -> None:
        """A graph whose inputs are moved in place, so that replaying it goes on from where it
        was.
        """
        self.inputs = [tensor.clone() for tensor in example]

        def advance() -> Tensor:
            position, momentum, value, slope = self.step(*self.inputs)
            for held, tensor in zip(self.inputs[:3], (position, momentum, slope), strict=True):
                held.copy_(tensor)
            return value

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                advance()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.value = advance()
