"""Hamiltonian Monte Carlo: one draw of every chain by a trajectory of given length.

The leapfrog scheme, half a kick, a drift, half a kick, keeps volume and is reversible, so its end
points can be accepted by energy alone; its error in the energy is of second order in the step. With
``compile`` the tensor operations of a step, gradient included, are recorded once and compiled; on a
GPU the compiled step is captured and replayed, so that a trajectory costs one launch per step.

With H = -log density + r.r / 2 a trajectory's end is accepted with probability min(1, exp((H - H')
/ T)); T = 1 samples the target, a lower T its power 1 / T. The change in the energy is divided by T
and momenta have variance T, so that one step size serves all temperatures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from credo.core.capture import CapturedGraph
from credo.core.recorded_pass import operations, untraceable
from credo.kernels.log_density import DIVERGENT, Point, Target, accepted, choose, normal, rate_of
from credo.kernels.metric import force, velocity


@final
@dataclass
class Integrator:
    """``integrator(point, momentum, step, scale, count)``: the end of ``count`` leapfrog steps of
    every chain.
    """

    target: Target
    compile: bool = False
    _known: dict[tuple[object, ...], _Compiled] = field(default_factory=dict, init=False)

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


def _inductor_options(like: Tensor) -> dict[str, Any] | None:
    """On a CPU tanh(x) as 2 sigmoid(2 x) - 1, within rounding of 1e-7: the vectorised tanh takes
    most of a small network's step.
    """
    from torch._inductor import config

    return (
        {"cpp.use_decompose_tanh": True}
        if not like.is_cuda and hasattr(config.cpp, "use_decompose_tanh")
        else None
    )


@final
class _Compiled:
    """One step, compiled for arguments like ``example``, and on a GPU captured."""

    def __init__(self, integrator: Integrator, example: tuple[Tensor, ...]) -> None:
        graph = operations(lambda *tensors: integrator.once(*tensors), example)
        try:
            self.step = torch.compile(
                graph, fullgraph=True, dynamic=False, options=_inductor_options(example[0])
            )
            self.step(*example)
        except Exception as error:
            raise untraceable(error) from error
        self.captured = self._capture(example) if example[0].is_cuda else None

    def __call__(
        self, point: Point, momentum: Tensor, step: Tensor, scale: Tensor, count: int
    ) -> tuple[Point, Tensor]:
        position, value, slope = point
        if self.captured is None or not count:
            for _ in range(count):
                position, momentum, value, slope = self.step(position, momentum, slope, step, scale)
            return Point(position, value, slope), momentum
        self.captured.load((position, momentum, slope, step, scale))
        for _ in range(count):
            value = self.captured.replay()
        position, momentum, slope = (moved.clone() for moved in self.captured.static_inputs[:3])
        return Point(position, value.clone(), slope), momentum

    def _capture(self, example: tuple[Tensor, ...]) -> CapturedGraph[Tensor]:
        """A step that moves its own inputs, so that each replay goes on from where the last one
        ended; its result is the log density there.
        """
        inputs = [tensor.clone() for tensor in example]

        def advance() -> Tensor:
            position, momentum, value, slope = self.step(*inputs)
            for moved, tensor in zip(inputs[:3], (position, momentum, slope), strict=True):
                moved.copy_(tensor)
            return value

        return CapturedGraph(advance, inputs)


class TrajectoryInfo(NamedTuple):
    """Diagnostics of a trajectory, per chain ``(C,)``."""

    log_density: Tensor
    energy: Tensor
    divergent: Tensor
    acceptance: Tensor


class Move(NamedTuple):
    """What one draw was: where the chains are now, and per chain ``(C,)`` acceptance rate,
    divergence and energy.
    """

    point: Point
    rate: Tensor
    divergent: Tensor
    energy: Tensor

    @property
    def info(self) -> TrajectoryInfo:
        """As diagnostics."""
        return TrajectoryInfo(self.point.value, self.energy, self.divergent, self.rate)


def kinetic(momentum: Tensor) -> Tensor:
    """r.r / 2 per chain, summed in double precision."""
    return 0.5 * momentum.double().square().sum(-1)


def hmc(
    integrator: Integrator,
    point: Point,
    step: Tensor,
    scale: Tensor,
    count: int,
    generator: torch.Generator,
    temperature: float = 1.0,
) -> Move:
    """One draw after ``count`` steps of size ``step`` ``(C, 1)`` under the metric ``scale``."""
    momentum = normal(point.position, generator) * math.sqrt(temperature)
    before = kinetic(momentum) - point.value.double()
    end, turned = integrator(point, momentum, step, scale, count)
    after = kinetic(turned) - end.value.double()
    gain = (before - after) / temperature
    rate = rate_of(gain)
    take = accepted(rate, generator)
    divergent = ~(gain > -DIVERGENT)
    return Move(choose(take, end, point), rate, divergent, torch.where(take, after, before))


def first_step(
    integrator: Integrator,
    point: Point,
    scale: Tensor,
    generator: torch.Generator,
    guess: Tensor | float,
) -> Tensor:
    """A step size ``()`` at which a single step is accepted about four times in five, found by
    halving and doubling the guess.
    """
    step = torch.as_tensor(guess, dtype=torch.float64, device=point.position.device)
    direction = 0
    for _ in range(50):
        steps = step.to(point.position.dtype).expand(len(point.position), 1)
        rate = float(hmc(integrator, point, steps, scale, 1, generator).rate.double().mean())
        now = 1 if rate > 0.8 else -1
        if direction and now != direction:
            break
        direction = now
        step = step * 2.0**now
    return step
