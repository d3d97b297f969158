"""Units of a network: which channels of which tensors belong together, which are constant, and
which ones the output needs.

Every tensor between layers has a :class:`UnitLayout`: one axis of channels and, for each position
on it, the number of the unit it belongs to. Layers that mix channels (:class:`Dense`) read units
and write new ones; all others pass units on, and where two tensors are added their units become
one. A unit is kept or removed as a whole, in all tensors where it occurs.
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


class UnknownOperation(Exception):
    """Raised for an operation whose effect on channels is not known; units it reads are kept."""


class Shape(NamedTuple):
    """Shape and type of a tensor in the recorded pass; its numbers are not stored."""

    sizes: tuple[int, ...]
    dtype: torch.dtype


@final
@dataclass(frozen=True)
class UnitLayout:
    """Units along one axis of a tensor with P positions.

    ``units`` ``(P,)``: their numbers. ``constant`` ``(P,)``: whether the value is the same for all
    inputs and places; ``value`` ``(P,)``: that value, zero elsewhere.
    """

    axis: int
    units: Tensor
    constant: Tensor
    value: Tensor

    def repeated(self, axis: int, before: int = 1, after: int = 1) -> UnitLayout:
        """After merging the axis with others that hold ``before`` and ``after`` entries."""
        wider = (
            t.repeat_interleave(after).repeat(before)
            for t in (self.units, self.constant, self.value)
        )
        return UnitLayout(axis, *wider)

    def moved_to(self, axis: int) -> UnitLayout:
        """The same positions on another axis."""
        return replace(self, axis=axis)


@final
@dataclass(frozen=True)
class Dense:
    """A layer in which every channel written may read every channel there is: y = W x + b, a
    convolution included.

    ``in_dim`` and ``out_dim`` are axes of its weight. ``zero_padded``: whether places
    beyond the border read zeros, so that a constant input other than zero does not give a constant.
    """

    target: str
    module: nn.Module
    reads: UnitLayout
    writes: UnitLayout
    in_dim: int
    out_dim: int
    zero_padded: bool

    @cached_property
    def connected(self) -> Tensor:
        """``(P_out, P_in)``: whether any nonzero weight links an output to an input position."""
        return connections(self.module, self.in_dim, self.out_dim)

    @property
    def foldable(self) -> Tensor:
        """``(P_in,)``: whether the bias can take over what this position contributes."""
        constant = self.reads.constant
        return constant & (self.reads.value == 0) if self.zero_padded else constant

    def uses(self, alive: Tensor) -> Tensor:
        """``(P_in,)``: which input positions are needed if the units in the mask ``alive`` are."""
        return self.connected[alive[self.writes.units]].any(0) & ~self.foldable


@final
@dataclass(frozen=True)
class Channelwise:
    """A layer with parameters of its own for every channel.

    ``tensors``: names of its parameters and buffers with one entry per channel on the first axis.
    ``counts``: names of its attributes that hold the number of channels.
    """

    target: str
    module: nn.Module
    layout: UnitLayout
    tensors: tuple[str, ...]
    counts: tuple[str, ...]


def connections(module: nn.Module, in_dim: int, out_dim: int) -> Tensor:
    """Which outputs read which inputs by a nonzero weight, ``(P_out, P_in)``."""
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
        self.results: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        out = super().run_node(n)
        scalar = n.op == "get_attr" and isinstance(out, Tensor) and out.numel() == 1
        self.results[n] = (
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
    """The units of a network: rules note layouts operation by operation, then :meth:`needed` says
    which units the output depends on.
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
        self.results = recorder.results
        self.layouts: dict[fx.Node, UnitLayout] = {}
        self.dense: list[Dense] = []
        self.channelwise: list[Channelwise] = []
        # tensors of the network itself with one number per channel, and the axis of channels
        self.channel_tensors: dict[fx.Node, int] = {}
        self.rewrites: dict[fx.Node, Callable[[fx.Node, Tensor], None]] = {}
        self.kept_whole: list[str] = []  # operations of which all units they read are kept
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
        seen = self.results.get(node) if isinstance(node, fx.Node) else None
        if not isinstance(seen, Shape):
            raise UnknownOperation
        return seen.sizes

    def tensors(self, node: fx.Node) -> list[fx.Node]:
        """The tensors an operation reads, without single numbers."""
        return [n for n in node.all_input_nodes if isinstance(self.results[n], Shape)]

    def layout_on_axis(self, node: fx.Node, axis: int) -> UnitLayout:
        """The layout of a tensor whose channels must be on ``axis``; a tensor without one gets new
        units, all of which are kept.
        """
        sizes = self.sizes(node)
        if node in self.layouts:
            if self.layouts[node].axis != axis:
                raise UnknownOperation
            return self.layouts[node]
        if not 0 <= axis < len(sizes):
            raise UnknownOperation
        layout = self.new_units(axis, sizes[axis])
        if (
            node.op == "get_attr"
            and torch.Size(sizes).numel() == sizes[axis]
            and node.target not in self.shared
        ):
            values = self.attribute(str(node.target))
            if id(values) not in self.tied:
                layout = replace(
                    layout,
                    constant=~layout.constant,
                    value=values.detach().double().flatten().cpu(),
                )
                self.layouts[node], self.channel_tensors[node] = layout, axis
                return layout
        self.pin(layout)
        return layout

    def constant_value(self, node: fx.Node, axis: int) -> tuple[Tensor, Tensor]:
        """Run an operation on the constants among its inputs, zeros elsewhere: the value per
        channel, and whether a channel has one value only.
        """
        args: Any = map_arg(node.args, self._known_input)
        kwargs: Any = map_arg(node.kwargs, self._known_input)
        with torch.no_grad():
            if node.op == "call_module":
                out = self.net.get_submodule(str(node.target))(*args, **kwargs)
            elif node.op == "call_method":
                out = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                out = node.target(*args, **kwargs)  # type: ignore[operator]
        by_channel = out.movedim(axis, 0).flatten(1).double()
        high, low = by_channel.amax(1), by_channel.amin(1)
        same = (
            high - low <= 1e-6 * torch.maximum(high.abs(), low.abs())
        ) & high.isfinite()  # rounding of float32 apart
        return high.cpu(), same.cpu()

    def _known_input(self, node: fx.Node) -> Any:
        seen = self.results[node]
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

    def new_units(self, axis: int, count: int) -> UnitLayout:
        """``count`` new units, none of them constant."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return UnitLayout(
            axis,
            torch.arange(start, start + count),
            torch.zeros(count, dtype=torch.bool),
            torch.zeros(count, dtype=torch.float64),
        )

    def pin(self, layout: UnitLayout) -> None:
        """Mark these units as needed in any case."""
        self._pinned.update(layout.units.tolist())

    def merge_units(self, layouts: Sequence[UnitLayout]) -> None:
        """Make one unit of all units that stand at the same position."""
        for other in layouts[1:]:
            for one, two in zip(layouts[0].units.tolist(), other.units.tolist(), strict=True):
                one, two = self._root(one), self._root(two)
                self._parent[max(one, two)] = min(one, two)

    def _root(self, unit: int) -> int:
        while self._parent[unit] != unit:
            self._parent[unit] = self._parent[self._parent[unit]]
            unit = self._parent[unit]
        return unit

    def _roots(self) -> Tensor:
        """The number that stands for each unit after merging."""
        return torch.tensor(
            [self._root(unit) for unit in range(len(self._parent))], dtype=torch.long
        )

    def needed(self) -> Tensor:
        """Mask over units: whether the output depends on them, found from the output backwards to a
        fixed point.

        A unit is needed if it is pinned, or if a needed unit reads it by a weight that is not zero
        and no constant can stand for it.
        """
        roots = self._roots()
        alive = torch.zeros(len(roots), dtype=torch.bool)
        alive[roots[list(self._pinned)]] = True
        while True:
            before = alive.clone()
            for layer in reversed(self.dense):
                alive[roots[layer.reads.units[layer.uses(alive[roots])]]] = True
            if torch.equal(before, alive):
                return alive[roots]

    def units_to_keep(self, needed: Tensor) -> Tensor:
        """Mask of the needed units, and one more for every tensor that would have none: an empty
        layer cannot run.
        """
        roots, keep = self._roots(), needed.clone()
        for layout in self.layouts.values():
            if not keep[layout.units].any():
                keep |= roots == roots[layout.units[0]]
        return keep
