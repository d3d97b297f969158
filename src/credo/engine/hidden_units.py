"""Units of a network that have stopped to say anything.

A unit is dead where its activation gives one and the same number for all rows, and where what
enters the activation is at least as large as it was when the network came: a ReLU that is pushed
far below zero, a tanh far into its end. A unit that a prior has switched off is none of these,
since what enters it has shrunk; nor is one whose weights are drawn from a wide posterior, since it
is alive in other draws. Seen are activations that are modules, not functions called in ``forward``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from credo.core.shell import Shell
from credo.engine.model import Fitted, Model
from credo.engine.outputs import Draws, sampled_outputs
from credo.posteriors import Posterior

LEAST_UNITS = 8  # of a layer of which one speaks
MOST = 0.75  # of its units that may be dead: in a random ReLU network of one input half are
GROWN = 0.25  # of its units by which the dead must have become more
DRAWS = 4  # of the posterior, half of which must agree
NOT_HIDDEN = (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d, nn.MultiheadAttention)


@dataclass(frozen=True)
class Layer:
    """The worst layer: its activation, its units, and how many are dead now and were at first."""

    name: str
    units: int
    dead: int
    dead_at_start: int


@torch.no_grad()
def dead_units(model: Model, fitted: Fitted, x: Any) -> Layer | None:
    """The layer with the largest share of dead units at ``x`` (of the median draw), where that is
    more than three quarters; None where there is none.
    """
    if not any(_is_activation(module) for module in model.net.modules()):
        return None
    posterior = fitted.posterior
    (first,) = _seen(model, posterior, fitted, x, 1)
    if not any(constant.double().mean() > MOST for constant, _ in first.values()):
        return None
    start = _pass(model, Draws.point(model.values()), x, model.buffers())[0]
    draws = _seen(model, posterior, fitted, x, DRAWS)
    worst: Layer | None = None
    for key, (constant, _) in first.items():
        if any(key not in units for units in (start, *draws)):
            continue
        at_first, usual = start[key][0], start[key][1].median()
        counts = sorted(int((c & (size >= usual)).sum()) for c, size in (d[key] for d in draws))
        dead, units, before = counts[(len(counts) - 1) // 2], len(constant), int(at_first.sum())
        if dead <= max(MOST * units, before + GROWN * units):
            continue
        if worst is None or dead * worst.units > worst.dead * units:
            worst = Layer(key[0] or "network", units, dead, before)
    return worst


Units = dict[tuple[str, int], tuple[Tensor, Tensor]]
"""(path, call) -> which units gave one number for all rows, and the size of what entered each."""


def _seen(model: Model, posterior: Posterior, fitted: Fitted, x: Any, count: int) -> list[Units]:
    return _pass(model, Draws.of(posterior, count, 0), x, fitted.buffers)


def _pass(model: Model, draws: Draws, x: Any, buffers: Any) -> list[Units]:
    """What was seen in each draw."""
    with _watched(model.shell()) as met:
        sampled_outputs(model, draws, x, buffers, 0, vectorise=False)
    count, found = len(draws.numbers), [Units() for _ in draws.numbers]
    for path, calls in met.items():
        each = len(calls) // count
        for place, units in enumerate(calls[: each * count]):
            if units is not None:
                found[place // each][path, place % each] = units
    return found


@contextmanager
def _watched(shell: Shell) -> Iterator[dict[str, list[tuple[Tensor, Tensor] | None]]]:
    """Activations of the layers, call by call; None of those that are not told of."""
    met: dict[str, list[tuple[Tensor, Tensor] | None]] = {}
    sizes: dict[str, Tensor | None] = {}
    handles = []
    for path, module in shell.module.named_modules():
        if _is_activation(module):

            def enter(module: nn.Module, args: Any, path: str = path) -> None:
                # read before the activation, which may work in place
                rows = _by_unit(args[0] if args else None)
                sizes[path] = None if rows is None else rows.square().mean(1).sqrt()

            def leave(module: nn.Module, args: Any, output: Any, path: str = path) -> None:
                rows, size = _by_unit(output), sizes.get(path)
                units = None
                if rows is not None and size is not None and len(size) == len(rows):
                    units = _constant(rows), size
                met.setdefault(path, []).append(units)

            handles += [
                module.register_forward_pre_hook(enter),
                module.register_forward_hook(leave),
            ]
    try:
        yield met
    finally:
        for handle in handles:
            handle.remove()


def _is_activation(module: nn.Module) -> bool:
    """Whether it is one of torch's elementwise activations."""
    return type(module).__module__ == "torch.nn.modules.activation" and not isinstance(
        module, NOT_HIDDEN
    )


def _by_unit(values: Any) -> Tensor | None:
    """``(C, ...)`` of a layer's ``(N, C)``, ``(N, C, H, W)`` or ``(N, ..., C)``; None of anything
    else.
    """
    real = isinstance(values, Tensor) and values.is_floating_point() and values.dim() >= 2
    if not real:
        return None
    rows = values.movedim(1 if values.dim() == 4 else -1, 0).flatten(1)
    return rows if len(rows) >= LEAST_UNITS and rows.shape[1] >= 2 else None


def _constant(rows: Tensor) -> Tensor:
    """Which rows hold one number."""
    low, high = rows.aminmax(dim=1)
    return low == high
