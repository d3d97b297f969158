"""What slimming is worth: size, work, seconds and outputs of a network before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from credo.bnn import BNN
from credo.compress.channels import analyse
from credo.compress.cost import Cost, count, latency, repeated_batch
from credo.compress.pruned import Pruned
from credo.compress.same_outputs import difference
from credo.compress.slim import network_of
from credo.core.errors import CredoError, NetworkError
from credo.core.standardised import entered, units_of, without_units

BATCHES = (1, 64)


@final
@dataclass(frozen=True)
class SlimReport:
    """A network before and after slimming.

    ``before``, ``after``: parameters, multiply-adds per example and bytes. ``seconds``: batch size
    -> (before, after), medians of a call on one CPU thread. ``speedup``: batch size -> median over
    rounds of the ratio. ``difference``: the largest of outputs. ``whole``: operations that keep all
    units they read.
    """

    before: Cost
    after: Cost
    seconds: dict[int, tuple[float, float]]
    speedup: dict[int, float]
    difference: float
    whole: tuple[str, ...]

    def __str__(self) -> str:
        def line(name: str, old: int, new: int) -> str:
            return f"{name:<12}{old:>14,} -> {new:>12,}  ({old / max(new, 1):.1f}x)"

        lines = [
            line("parameters", self.before.parameters, self.after.parameters),
            line("multiply-adds", self.before.macs, self.after.macs),
            line("bytes", self.before.bytes, self.after.bytes),
        ]
        for size, (old, new) in self.seconds.items():
            lines.append(
                f"batch {size:<6}{old * 1e3:>11.3f} ms -> {new * 1e3:>9.3f} ms  "
                f"({self.speedup[size]:.1f}x)"
            )
        lines.append(f"largest difference of outputs {self.difference:.1e}")
        lines += [f"kept whole: {', '.join(self.whole)}"] if self.whole else []
        return "\n".join(lines)


def _eager(net: nn.Module, example: Any) -> Callable[[Any], Any]:
    return net


@torch.no_grad()
def report(
    net: BNN | Pruned | nn.Module,
    slimmed: nn.Module,
    example: Any,
    rounds: int = 20,
    runtime: Callable[[nn.Module, Any], Callable[[Any], Any]] = _eager,
) -> SlimReport:
    """Compare a network with its slimmed form on one CPU thread, taking turns; ``example`` is
    repeated to batches of 1 and 64.

    ``runtime`` turns a network and an example into what is timed, by default the network itself;
    ``credo.compress.onnx.session`` times both under onnxruntime, where calling an operation costs
    less and small networks gain more.
    """
    plain = network_of(net)
    if any(p.device.type != "cpu" for p in [*plain.parameters(), *slimmed.parameters()]):
        raise CredoError(
            "report measures on the CPU, and a network is on another device; move both there "
            "first, e.g. net.cpu()."
        )
    try:
        bare = without_units(plain)
        whole = tuple(analyse(bare, entered(units_of(plain), example, bare)).kept_whole)
    except NetworkError as error:
        whole = (str(error),)
    pair = {"before": runtime(plain, example), "after": runtime(slimmed, example)}
    seconds, speedup = {}, {}
    for size in BATCHES:
        times = latency(pair, repeated_batch(example, size), rounds)
        seconds[size] = (float(times["before"].median()), float(times["after"].median()))
        speedup[size] = float((times["before"] / times["after"]).median())
    found = difference(plain(example), slimmed(example))
    return SlimReport(
        count(plain, example), count(slimmed, example), seconds, speedup, found.worst, whole
    )
