"""Units of a network: which channels of which tensors belong together, which are known beforehand,
and which ones the output needs.

Every tensor between layers has a :class:`Layout`: one axis of channels and, for each position on
it, the number of the unit that it shows. Layers that mix channels (:class:`Dense`) read units and
write new ones; all others pass units on, and where two tensors are added their units become one. A
unit stays whole or goes whole, in all tensors that show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from credo.core.errors import CredoError, DataError, NetworkError


class Unknown(Exception):
    """An operation whose effect on channels is not known: what it reads is kept whole."""


class Shape(NamedTuple):
    """Stands for a tensor of the traced run, whose numbers are not kept."""

    sizes: tuple[int, ...]
    dtype: torch.dtype


@final
@dataclass(frozen=True)
class UnitLayout:
    """Units along one axis of a tensor, ``(P,)`` each: their numbers, whether the value is the same
    for all inputs and places, and that value.
    """

    axis: int
    units: Tensor
    known: Tensor
    value: Tensor

    def spread(self, axis: int, before: int = 1, after: int = 1) -> UnitLayout:
        """After merging the axis with others that hold ``before`` and ``after`` entries."""
        wider = (
            t.repeat_interleave(after).repeat(before) for t in (self.units, self.known, self.value)
        )
        return UnitLayout(axis, *wider)

    def on(self, axis: int) -> UnitLayout:
        """The same positions on another axis."""
        return replace(self, axis=axis)


@final
@dataclass(frozen=True)
class Dense:
    """A layer in which every channel written may read every channel there is: y = W x + b, a
    convolution included.

    ``in_dim`` and ``out_dim`` are axes of its weight. ``edges``: whether places beyond the border
    read zeros, so that a constant input other than zero does not give a constant.
    """

    target: str
    module: nn.Module
    reads: UnitLayout
    writes: UnitLayout
    in_dim: int
    out_dim: int
    edges: bool

    @cached_property
    def strong(self) -> Tensor:
        """``(P_out, P_in)``: whether a position reads another by any weight that is not zero."""
        return linked(self.module, self.in_dim, self.out_dim)

    @property
    def foldable(self) -> Tensor:
        """``(P_in,)``: whether a bias can stand for what this position sends."""
        known = self.reads.known
        return known & (self.reads.value == 0) if self.edges else known

    def uses(self, alive: Tensor) -> Tensor:
        """``(P_in,)``: which positions must be there as inputs if these units are alive."""
        return self.strong[alive[self.writes.units]].any(0) & ~self.foldable


@final
@dataclass(frozen=True)
class Channelwise:
    """A layer with parameters of its own for every channel: ``tensors`` are cut along their first
    axis, ``counts`` hold their number.
    """

    target: str
    module: nn.Module
    layout: UnitLayout
    tensors: tuple[str, ...]
    counts: tuple[str, ...]


def linked(module: nn.Module, in_dim: int, out_dim: int) -> Tensor:
    """Which outputs a weight ties to which inputs, ``(P_out, P_in)``."""
    weight = module.get_parameter("weight").detach()
    return (
        (weight != 0)
        .movedim((out_dim, in_dim), (0, 1))
        .reshape(weight.shape[out_dim], weight.shape[in_dim], -1)
        .any(2)
        .cpu()
    )


class _Tracer(fx.Tracer):
    def __init__(self, leaves: set[nn.Module]) -> None:
        super().__init__()
        self.leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m in self.leaves or super().is_leaf_module(m, module_qualified_name)


def trace(net: nn.Module) -> fx.Graph:
    """The operations of one pass, in order; modules that cannot be opened are one operation.

    A ``NetworkError`` if the network itself cannot be.
    """
    leaves: set[nn.Module] = set()
    try:
        return _Tracer(leaves).trace(net)
    # whatever a forward method may raise when it gets no numbers: some part of the network, then
    except Exception:
        for module in reversed(list(net.modules())[1:]):
            try:
                _Tracer(leaves).trace(module)
            except Exception:
                leaves.add(module)
    try:
        return _Tracer(leaves).trace(net)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise NetworkError(
            f"{type(net).__name__} cannot be taken apart into operations: {reason}"
        ) from error


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        out = super().run_node(n)
        scalar = n.op == "get_attr" and isinstance(out, Tensor) and out.numel() == 1
        self.seen[n] = (
            Shape(tuple(out.shape), out.dtype) if isinstance(out, Tensor) and not scalar else out
        )
        return out


def _cannot_run(net: nn.Module, example: Any, error: Exception) -> CredoError:
    """Whose fault it is that a pass failed: the example's if the network cannot run on it by
    itself.
    """
    try:
        net(example)
    except Exception as own:
        return DataError(
            f"The network cannot run on the example: {str(own).splitlines()[0]}. Give inputs of "
            "the shape it takes."
        )
    return NetworkError(
        f"{type(net).__name__} cannot be run operation by operation: {str(error).splitlines()[0]}"
    )


@final
class Units:
    """What rules write down while they walk through the operations of a network, and what follows
    for the units.
    """

    def __init__(self, net: nn.Module, example: Any) -> None:
        self.net, self.graph = net, trace(net)
        self.device = next((p.device for p in net.parameters()), torch.device("cpu"))
        recorder = _Recorder(fx.GraphModule(net, self.graph))
        with torch.no_grad():
            try:
                recorder.run(example)
            except Exception as error:  # whatever a forward method may raise
                raise _cannot_run(net, example, error) from error
        self.seen = recorder.seen
        self.layouts: dict[fx.Node, UnitLayout] = {}
        self.dense: list[Dense] = []
        self.channelwise: list[Channelwise] = []
        self.cuts: dict[
            fx.Node, int
        ] = {}  # attributes with one number per channel, and on which axis
        self.rewrites: dict[fx.Node, Callable[[fx.Node, Tensor], None]] = {}
        self.whole: list[str] = []  # operations that keep what they read
        self._parent: list[int] = []
        self._pinned: set[int] = set()
        calls = Counter(n.target for n in self.graph.nodes if n.op in ("call_module", "get_attr"))
        owners = Counter(
            id(p) for m in net.modules() for p in m._parameters.values() if p is not None
        )
        self.shared = {target for target, count in calls.items() if count > 1}
        self.tied = {id(p) for p in net.parameters() if owners[id(p)] > 1}

    def attribute(self, target: str) -> Any:
        """The module or tensor of the network with this path."""
        return reduce(getattr, target.split("."), self.net)

    # --- tensors ----------------------------------------------------------------------------------

    def sizes(self, node: Any) -> tuple[int, ...]:
        """Shape of a tensor; an operation on anything else is unknown."""
        seen = self.seen.get(node) if isinstance(node, fx.Node) else None
        if not isinstance(seen, Shape):
            raise Unknown
        return seen.sizes

    def tensors(self, node: fx.Node) -> list[fx.Node]:
        """The tensors an operation reads, single numbers apart."""
        return [n for n in node.all_input_nodes if isinstance(self.seen[n], Shape)]

    def at(self, node: fx.Node, axis: int) -> UnitLayout:
        """The layout of a tensor whose channels are asked for on this axis; where it has none, one
        that is kept whole.
        """
        sizes = self.sizes(node)
        if node in self.layouts:
            if self.layouts[node].axis != axis:
                raise Unknown
            return self.layouts[node]
        if not 0 <= axis < len(sizes):
            raise Unknown
        layout = self.fresh(axis, sizes[axis])
        if (
            node.op == "get_attr"
            and torch.Size(sizes).numel() == sizes[axis]
            and node.target not in self.shared
        ):
            values = self.attribute(str(node.target))
            if id(values) not in self.tied:
                layout = replace(
                    layout, known=~layout.known, value=values.detach().double().flatten().cpu()
                )
                self.layouts[node], self.cuts[node] = layout, axis
                return layout
        self.pin(layout)
        return layout

    def constants(self, node: fx.Node, axis: int) -> tuple[Tensor, Tensor]:
        """Run an operation on what is known of its inputs, zeros elsewhere: its value per channel,
        and whether it is one value at all.
        """
        args: Any = map_arg(node.args, self._image)
        kwargs: Any = map_arg(node.kwargs, self._image)
        with torch.no_grad():
            if node.op == "call_module":
                out = self.net.get_submodule(str(node.target))(*args, **kwargs)
            elif node.op == "call_method":
                out = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                out = node.target(*args, **kwargs)  # type: ignore[operator]
        rows = out.movedim(axis, 0).flatten(1).double()
        high, low = rows.amax(1), rows.amin(1)
        same = (
            high - low <= 1e-6 * torch.maximum(high.abs(), low.abs())
        ) & high.isfinite()  # rounding of float32 apart
        return high.cpu(), same.cpu()

    def _image(self, node: fx.Node) -> Any:
        seen = self.seen[node]
        if not isinstance(seen, Shape):
            return seen
        layout = self.layouts.get(node)
        axis = 0 if layout is None else layout.axis
        sizes = [
            1 if place == 0 and axis else size for place, size in enumerate(seen.sizes)
        ]  # examples do not differ
        if layout is None:
            return torch.zeros(1, *sizes[1:], dtype=seen.dtype, device=self.device)
        values = layout.value.to(self.device, seen.dtype)
        return (
            values.reshape([-1 if place == axis else 1 for place in range(len(sizes))])
            .expand(sizes)
            .clone()
        )

    # --- units ------------------------------------------------------------------------------------

    def fresh(self, axis: int, count: int) -> UnitLayout:
        """New units of which nothing is known."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return UnitLayout(
            axis,
            torch.arange(start, start + count),
            torch.zeros(count, dtype=torch.bool),
            torch.zeros(count, dtype=torch.float64),
        )

    def pin(self, layout: UnitLayout) -> None:
        """Keep these units, whatever happens."""
        self._pinned.update(layout.units.tolist())

    def join(self, layouts: Sequence[UnitLayout]) -> None:
        """Make one unit of those that share a position."""
        for other in layouts[1:]:
            for one, two in zip(layouts[0].units.tolist(), other.units.tolist(), strict=True):
                one, two = self._root(one), self._root(two)
                self._parent[max(one, two)] = min(one, two)

    def _root(self, unit: int) -> int:
        while self._parent[unit] != unit:
            self._parent[unit] = self._parent[self._parent[unit]]
            unit = self._parent[unit]
        return unit

    def needed(self) -> Tensor:
        """For every number of a unit, whether the output depends on it: found from the output
        backwards, to a fixed point.

        A unit is needed if it is pinned, or if a needed unit reads it by a weight that is not zero
        and no constant can stand for it.
        """
        roots = torch.tensor(
            [self._root(unit) for unit in range(len(self._parent))], dtype=torch.long
        )
        alive = torch.zeros(len(roots), dtype=torch.bool)
        alive[roots[list(self._pinned)]] = True
        while True:
            before = alive.clone()
            for layer in reversed(self.dense):
                alive[roots[layer.reads.units[layer.uses(alive[roots])]]] = True
            if torch.equal(before, alive):
                return alive[roots]

    def shown(self, needed: Tensor) -> Tensor:
        """The needed units, and one more for every tensor that would have none: an empty layer
        cannot run.
        """
        roots = torch.tensor(
            [self._root(unit) for unit in range(len(self._parent))], dtype=torch.long
        )
        kept = needed.clone()
        for layout in self.layouts.values():
            if not kept[layout.units].any():
                kept |= roots == roots[layout.units[0]]
        return kept
