"""What a network costs: parameters, multiply-adds counted from shapes, and seconds measured side by
side.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.core.settings import positive
from credo.core.tree import map_rows, num_rows

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# least seconds of one turn: far above the clock's resolution, short enough to fall between
# interruptions
_TURN = 1e-3
_TURNS = 3  # in a round, of which the best counts


@final
@dataclass(frozen=True)
class Cost:
    """What a network costs.

    ``macs``: multiply-adds of one example. ``bytes``: of parameters and buffers. ``uncounted``:
    modules with matrices of their own whose multiply-adds are not in ``macs``: neither dense,
    convolution nor embedding, or never called as modules, such as the parts of attention.
    """

    parameters: int
    nonzero: int
    macs: int
    bytes: int
    uncounted: tuple[str, ...] = ()


def _linear(module: Any, x: Tensor, y: Tensor) -> int:
    return y.numel() * module.in_features


def _conv(module: Any, x: Tensor, y: Tensor) -> int:
    return y.numel() * math.prod(module.weight.shape[1:])


def _transposed(module: Any, x: Tensor, y: Tensor) -> int:
    return x.numel() * math.prod(module.weight.shape[1:])


def _lookup(module: Any, x: Tensor, y: Tensor) -> int:
    return 0


_COUNTERS = (
    {nn.Linear: _linear, nn.Embedding: _lookup}
    | dict.fromkeys(_CONVS, _conv)
    | dict.fromkeys(_TRANSPOSED, _transposed)
)


@torch.no_grad()
def count(net: nn.Module, example: Any) -> Cost:
    """Count parameters, and the multiply-adds of dense and convolutional layers in one pass over
    ``example``, per example of it.

    A dense layer takes (outputs x inputs), a convolution (outputs x input channels per group x
    kernel), zeros included; a lookup none.
    """
    macs, called, hooks = 0, set(), []

    def add(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        nonlocal macs
        called.add(module)
        macs += next(rule for kind, rule in _COUNTERS.items() if isinstance(module, kind))(
            module, args[0], out
        )

    for module in net.modules():
        if isinstance(module, tuple(_COUNTERS)):
            hooks.append(module.register_forward_hook(add))
    modes = {module: module.training for module in net.modules()}
    try:
        net.eval()
        net(example)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    own = {
        n: m
        for n, m in net.named_modules()
        if any(p is not None and p.dim() > 1 for p in m._parameters.values())
    }
    parameters, buffers = list(net.parameters()), list(net.buffers())
    return Cost(
        parameters=sum(p.numel() for p in parameters),
        nonzero=sum(int(p.count_nonzero()) for p in parameters),
        macs=macs // num_rows(example),
        bytes=sum(t.numel() * t.element_size() for t in [*parameters, *buffers]),
        uncounted=tuple(name for name, module in own.items() if module not in called),
    )


def repeated_batch(example: Any, size: int) -> Any:
    """A batch of ``size`` inputs: those of ``example``, repeated as often as it takes."""
    index = torch.arange(size) % num_rows(example)
    return map_rows(lambda leaf: leaf[index.to(leaf.device)], example)


def latency(
    nets: Mapping[str, Callable[[Any], Any]], example: Any, rounds: int = 20
) -> dict[str, Tensor]:
    """Seconds per call of each network, ``(rounds,)``, on one thread; compare by the median over
    rounds of the ratio.

    They take turns, so that a busy machine slows all alike, and a round holds the best of three
    turns: what interrupts a turn only ever adds to it. The networks run as they are: put them in
    evaluation mode first.
    """
    positive("rounds", rounds, 1)
    if not nets:
        raise SettingError("latency got no networks; expected a dict of names and modules.")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            once = {
                name: min(_seconds(net, example, 1) for _ in range(_TURNS))
                for name, net in nets.items()
            }
            calls = {name: max(1, math.ceil(_TURN / seconds)) for name, seconds in once.items()}
            turns = [
                {name: _seconds(net, example, calls[name]) for name, net in nets.items()}
                for _ in range(_TURNS * rounds)
            ]
    finally:
        torch.set_num_threads(threads)
    times = {
        name: torch.tensor([turn[name] for turn in turns], dtype=torch.float64) for name in nets
    }
    return {name: row.reshape(rounds, _TURNS).amin(1) for name, row in times.items()}


def _seconds(net: Callable[[Any], Any], example: Any, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        net(example)
    return (time.perf_counter() - start) / calls
