"""Rules of operations that move channels to other places or axes: flatten, permute, concatenate,
index.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

from credo.compress.channels.operands import (
    argument,
    input_layout,
    input_of,
    module_of,
    operation_name,
)
from credo.compress.channels.units import UnitLayout, Units, UnknownOperation


def merge(units: Units, node: fx.Node, start: int, end: int) -> UnitLayout:
    """Axes from ``start`` to ``end`` become one."""
    layout, sizes = input_layout(units, node), units.sizes(input_of(node))
    start, end = start % len(sizes), end % len(sizes)
    if not start <= layout.axis <= end:
        return layout.moved_to(layout.axis - (end - start if end < layout.axis else 0))
    if start == 0 and end > 0:
        raise UnknownOperation  # examples and channels become one axis
    return layout.repeated(
        start, math.prod(sizes[start : layout.axis]), math.prod(sizes[layout.axis + 1 : end + 1])
    )


def flatten(units: Units, node: fx.Node) -> UnitLayout:
    """``nn.Flatten`` or ``flatten``."""
    if node.op == "call_module":
        return merge(units, node, module_of(units, node).start_dim, module_of(units, node).end_dim)
    return merge(units, node, argument(node, 1, "start_dim", 0), argument(node, 2, "end_dim", -1))


def view(units: Units, node: fx.Node) -> UnitLayout:
    """Known where it does what ``flatten(1)`` does, which then takes its place: the sizes in its
    arguments may be wrong for the smaller network.
    """
    sizes, out = units.sizes(input_of(node)), units.sizes(node)
    if len(sizes) < 2 or out != (sizes[0], math.prod(sizes[1:])):
        raise UnknownOperation
    layout = merge(units, node, 1, -1)

    def rewrite(node: fx.Node, keep: Tensor) -> None:
        node.op, node.target, node.args, node.kwargs = (
            "call_function",
            torch.flatten,
            (node.args[0], 1),
            {},
        )

    units.rewrites[node] = rewrite
    return layout


def permute(units: Units, node: fx.Node) -> UnitLayout:
    """All axes in another order."""
    layout, dims = input_layout(units, node), len(units.sizes(input_of(node)))
    given = argument(node, 1, "dims")
    order = list(given) if isinstance(given, (tuple, list)) else list(node.args[1:])
    return layout.moved_to([d % dims for d in order].index(layout.axis))  # type: ignore[operator]


def transpose(units: Units, node: fx.Node) -> UnitLayout:
    """Two axes change places."""
    layout, dims = input_layout(units, node), len(units.sizes(input_of(node)))
    one, two = argument(node, 1, "dim0") % dims, argument(node, 2, "dim1") % dims
    return layout.moved_to({one: two, two: one}.get(layout.axis, layout.axis))


def squeeze(units: Units, node: fx.Node) -> UnitLayout:
    """An axis of size 1 goes, other than that of channels."""
    layout, sizes = input_layout(units, node), units.sizes(input_of(node))
    dim = argument(node, 1, "dim")
    if not isinstance(dim, int) or dim % len(sizes) == layout.axis:
        raise UnknownOperation
    return layout.moved_to(layout.axis - (sizes[dim] == 1 and dim % len(sizes) < layout.axis))


def unsqueeze(units: Units, node: fx.Node) -> UnitLayout:
    """A new axis of size 1."""
    layout, dims = input_layout(units, node), len(units.sizes(input_of(node)))
    return layout.moved_to(layout.axis + (argument(node, 1, "dim") % (dims + 1) <= layout.axis))


def cat(units: Units, node: fx.Node) -> UnitLayout:
    """Tensors behind each other along their channels."""
    parts: Any = node.args[0] if node.args else node.kwargs.get("tensors")
    axis = argument(node, 1, "dim", 0) % len(units.sizes(node))
    if not isinstance(parts, (tuple, list)) or any(
        n in units.layouts and units.layouts[n].axis != axis for n in parts
    ):
        raise UnknownOperation
    layouts = [units.layout_on_axis(n, axis) for n in parts]
    return UnitLayout(
        axis,
        *(
            torch.cat([getattr(layout, key) for layout in layouts])
            for key in ("units", "constant", "value")
        ),
    )


def getitem(units: Units, node: fx.Node) -> UnitLayout:
    """A cut through places, such as every second one, or new axes of size 1; all channels, or it is
    unknown.
    """
    index, layout, dims = node.args[1], input_layout(units, node), len(units.sizes(input_of(node)))
    items: list[Any] = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in items:
        where, real = items.index(Ellipsis), sum(i is not None for i in items) - 1
        items[where : where + 1] = [slice(None)] * (dims - real)
    if not all(i is None or isinstance(i, slice) for i in items):
        raise UnknownOperation
    items += [slice(None)] * (dims - sum(i is not None for i in items))
    places = [place for place, item in enumerate(items) if item is not None]
    if items[places[layout.axis]] != slice(None):
        raise UnknownOperation
    return layout.moved_to(places[layout.axis])


def read_sizes(units: Units, node: fx.Node) -> None:
    """Sizes may be read, all but the number of channels."""
    name, dims, axis = (
        operation_name(node),
        len(units.sizes(input_of(node))),
        input_layout(units, node).axis,
    )
    if name == "dim" or (name == "getattr" and node.args[1] in ("dtype", "device", "ndim")):
        return
    if name == "getattr" and node.args[1] != "shape":
        raise UnknownOperation
    asked = (
        [argument(node, 1, "dim")]
        if name == "size" and argument(node, 1, "dim") is not None
        else None
    )
    if asked is None:
        asked = [
            u.args[1] if operation_name(u) == "getitem" else None
            for u in node.users
            if operation_name(u) != "getitem" or u.users
        ]
    if not all(isinstance(a, int) and a % dims != axis for a in asked):
        raise UnknownOperation
