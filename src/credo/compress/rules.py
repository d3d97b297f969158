"""What each operation does to channels: a table from operations to rules, and the walk that applies
it.

A rule gets the :class:`Units` so far and an operation, and returns the layout of its result (None
where that has no channels). What is not in the table, or is used in a way its rule does not cover,
keeps everything that it reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from credo.compress.units import Channelwise, Dense, UnitLayout, Units, Unknown, linked

Rule = Callable[[Units, fx.Node], UnitLayout | None]


def analyse(net: nn.Module, example: Any) -> Units:
    """The units of a network in evaluation mode, seen at this example; a ``NetworkError`` where it
    cannot be taken apart.
    """
    units = Units(net, example)
    for node in units.graph.nodes:
        try:
            layout = _rule(units, node)(units, node)
        except Unknown:
            layout = None
            _keep(units, node)
        if layout is not None:
            units.layouts[node] = layout
    return units


def _keep(units: Units, node: fx.Node) -> None:
    found = [units.layouts[n] for n in node.all_input_nodes if n in units.layouts]
    for layout in found:
        units.pin(layout)
    if found and node.op != "output":
        kind = (
            type(units.net.get_submodule(str(node.target))).__name__
            if node.op == "call_module"
            else _name(node)
        )
        units.whole.append(f"{node.name} ({kind})")
    if _writes_in_place(units, node):  # from here on the tensor is another one
        units.layouts.pop(node.all_input_nodes[0], None)


def _name(node: fx.Node) -> str:
    return (
        node.target
        if isinstance(node.target, str)
        else getattr(node.target, "__name__", str(node.target))
    )


def _rule(units: Units, node: fx.Node) -> Rule:
    if node.op in ("placeholder", "get_attr"):
        return _nothing
    if node.op == "call_module":
        module = units.net.get_submodule(str(node.target))
        own = [*module.parameters(), *module.buffers()]
        shared = any(id(p) in units.tied for p in own) or (
            bool(own) and node.target in units.shared
        )
        hooked = bool(module._forward_hooks or module._forward_pre_hooks)
        rule = _unknown if shared or hooked else MODULES.get(type(module), _unknown)
    else:
        home = getattr(node.target, "__module__", "").split(".")[0]
        ours = node.op == "call_method" or home in ("torch", "_operator", "builtins")
        rule = (
            OPERATIONS.get(_name(node).removeprefix("special_").rstrip("_"), _unknown)
            if ours
            else _unknown
        )
    if rule not in (_linear, _conv, _unknown) and not any(
        n in units.layouts for n in node.all_input_nodes
    ):
        return _nothing
    if _writes_in_place(units, node) and len(node.all_input_nodes[0].users) > 1:
        return _unknown
    return rule


def _writes_in_place(units: Units, node: fx.Node) -> bool:
    if not node.all_input_nodes:
        return False
    if node.op == "call_module":
        return bool(getattr(units.net.get_submodule(str(node.target)), "inplace", False))
    name = _name(node)
    flag = node.kwargs.get("inplace", False) or any(a is True for a in node.args[1:])
    return (
        bool(flag) or name.endswith("_") or name in ("iadd", "isub", "imul", "itruediv", "setitem")
    )


def _unknown(units: Units, node: fx.Node) -> None:
    raise Unknown


def _nothing(units: Units, node: fx.Node) -> None:
    return None


def _module(units: Units, node: fx.Node) -> Any:
    return units.net.get_submodule(str(node.target))


def _input(node: fx.Node) -> fx.Node:
    first = node.args[0] if node.args else node.kwargs.get("input")
    if not isinstance(first, fx.Node):
        raise Unknown
    return first


def _given(units: Units, node: fx.Node) -> UnitLayout:
    """The layout of what an operation reads first."""
    if _input(node) not in units.layouts:
        raise Unknown
    return units.layouts[_input(node)]


def _argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    """An argument that must be a plain number or a tuple of them."""
    found = node.args[place] if len(node.args) > place else node.kwargs.get(name, default)
    if isinstance(found, fx.Node) or (
        isinstance(found, (tuple, list)) and any(isinstance(f, fx.Node) for f in found)
    ):
        raise Unknown
    return found


def _settled(units: Units, node: fx.Node, axis: int, numbers: Tensor, known: Tensor) -> UnitLayout:
    value, same = units.constants(node, axis)
    known = known & same
    return UnitLayout(axis, numbers, known, torch.where(known, value, 0.0))


# --- layers that mix channels ---------------------------------------------------------------------


def _dense(
    units: Units, node: fx.Node, axis: int, in_dim: int, out_dim: int, edges: bool
) -> UnitLayout:
    module, reads = _module(units, node), units.at(_input(node), axis)
    known = ~linked(module, in_dim, out_dim)[:, ~reads.known].any(1)
    writes = _settled(units, node, axis, units.fresh(axis, len(known)).units, known)
    units.dense.append(Dense(str(node.target), module, reads, writes, in_dim, out_dim, edges))
    return writes


def _linear(units: Units, node: fx.Node) -> UnitLayout:
    return _dense(units, node, len(units.sizes(_input(node))) - 1, in_dim=1, out_dim=0, edges=False)


def _conv(units: Units, node: fx.Node) -> UnitLayout:
    module, axis = _module(units, node), _channel_axis(units, node)
    if module.groups == 1 and len(node.all_input_nodes) == 1:
        if module.transposed:
            return _dense(units, node, axis, in_dim=0, out_dim=1, edges=True)
        padded = module.padding == "same" or (
            not isinstance(module.padding, str) and any(module.padding)
        )
        return _dense(
            units, node, axis, in_dim=1, out_dim=0, edges=padded and module.padding_mode == "zeros"
        )
    if module.groups == module.in_channels == module.out_channels and not module.transposed:
        blind = ~(module.weight.detach() != 0).flatten(1).any(1).cpu()
        return _channelwise(
            units, node, axis, blind, ("weight", "bias"), ("in_channels", "out_channels", "groups")
        )
    raise Unknown


# --- operations on each channel by itself ---------------------------------------------------------


def _channelwise(
    units: Units,
    node: fx.Node,
    axis: int,
    blind: Tensor,
    tensors: tuple[str, ...],
    counts: tuple[str, ...],
) -> UnitLayout:
    """``blind``: channels whose result does not depend on what is read."""
    layout = units.at(_input(node), axis)
    out = _settled(units, node, axis, layout.units, layout.known | blind)
    units.channelwise.append(
        Channelwise(str(node.target), _module(units, node), out, tensors, counts)
    )
    return out


def _norm(units: Units, node: fx.Node) -> UnitLayout:
    module = _module(units, node)
    if module.running_mean is None or module.training:
        raise Unknown  # statistics of the batch
    blind = (
        torch.zeros(module.num_features, dtype=torch.bool)
        if module.weight is None
        else (module.weight.detach() == 0).cpu()
    )
    return _channelwise(
        units, node, 1, blind, ("weight", "bias", "running_mean", "running_var"), ("num_features",)
    )


def _prelu(units: Units, node: fx.Node) -> UnitLayout:
    module = _module(units, node)
    if module.num_parameters == 1:
        return _elementwise(units, node)
    return _channelwise(
        units,
        node,
        1,
        torch.zeros(module.num_parameters, dtype=torch.bool),
        ("weight",),
        ("num_parameters",),
    )


def _elementwise(units: Units, node: fx.Node, product: bool = False) -> UnitLayout:
    """Number by number, of one tensor or several; a product with a known zero is zero."""
    out, operands = units.sizes(node), units.tensors(node)
    back = {units.layouts[n].axis - len(units.sizes(n)) for n in operands if n in units.layouts}
    if len(back) != 1 or any(
        -min(back) > len(units.sizes(n)) or units.sizes(n)[min(back)] != out[min(back)]
        for n in operands
    ):
        raise Unknown
    layouts = [units.at(n, len(units.sizes(n)) + min(back)) for n in operands]
    units.join(layouts)
    known = torch.stack([layout.known for layout in layouts]).all(0)
    if product:
        known |= torch.stack([layout.known & (layout.value == 0) for layout in layouts]).any(0)
    return _settled(units, node, len(out) + min(back), layouts[0].units, known)


def _dropout(units: Units, node: fx.Node) -> UnitLayout:
    if _argument(node, 2, "training", True) is not False:
        raise Unknown
    return _elementwise(units, node)


def _channel_axis(units: Units, node: fx.Node) -> int:
    """Where a spatial operation looks for channels: before the axes it moves over, as many as its
    name says.
    """
    name = type(_module(units, node)).__name__ if node.op == "call_module" else _name(node)
    digit, dims = re.search(r"(\d)d$", name), len(units.sizes(_input(node)))
    return dims - 1 - int(digit[1]) if digit else 1


def _spatial(units: Units, node: fx.Node) -> UnitLayout:
    units.sizes(node)  # one tensor, not a pair with indices
    layout = units.at(_input(node), _channel_axis(units, node))
    return _settled(units, node, layout.axis, layout.units, layout.known)


def _pad(units: Units, node: fx.Node) -> UnitLayout:
    """Padding of channels adds units that are known; how many of them stay decides the new
    padding.
    """
    layout, amounts = _given(units, node), tuple(_argument(node, 1, "pad"))
    place = 2 * (len(units.sizes(_input(node))) - 1 - layout.axis)
    left, right = amounts[place : place + 2] if place < len(amounts) else (0, 0)
    if min(left, right) < 0 or (
        (left or right) and _argument(node, 2, "mode", "constant") != "constant"
    ):
        raise Unknown
    before, after = units.fresh(layout.axis, left), units.fresh(layout.axis, right)
    numbers = torch.cat([before.units, layout.units, after.units])
    known = torch.cat([~before.known, layout.known, ~after.known])
    if left or right:

        def rewrite(node: fx.Node, kept: Tensor) -> None:
            fewer = (int(kept[before.units].sum()), int(kept[after.units].sum()))
            node.args = (
                node.args[0],
                (*amounts[:place], *fewer, *amounts[place + 2 :]),
                *node.args[2:],
            )
            node.kwargs = {k: v for k, v in node.kwargs.items() if k != "pad"}

        units.rewrites[node] = rewrite
    return _settled(units, node, layout.axis, numbers, known)


def _reduce(units: Units, node: fx.Node) -> UnitLayout:
    """A mean, sum or extreme over places."""
    given, layout, sizes = _argument(node, 1, "dim"), _given(units, node), units.sizes(_input(node))
    if given is None:
        raise Unknown
    dims = {d % len(sizes) for d in ([given] if isinstance(given, int) else given)}
    if layout.axis in dims or 0 in dims:
        raise Unknown
    lost = 0 if len(units.sizes(node)) == len(sizes) else sum(d < layout.axis for d in dims)
    return _settled(units, node, layout.axis - lost, layout.units, layout.known)


# --- operations that move channels ----------------------------------------------------------------


def _merge(units: Units, node: fx.Node, start: int, end: int) -> UnitLayout:
    layout, sizes = _given(units, node), units.sizes(_input(node))
    start, end = start % len(sizes), end % len(sizes)
    if not start <= layout.axis <= end:
        return layout.on(layout.axis - (end - start if end < layout.axis else 0))
    if start == 0 and end > 0:
        raise Unknown  # examples and channels become one axis
    return layout.spread(
        start, math.prod(sizes[start : layout.axis]), math.prod(sizes[layout.axis + 1 : end + 1])
    )


def _flatten(units: Units, node: fx.Node) -> UnitLayout:
    if node.op == "call_module":
        return _merge(units, node, _module(units, node).start_dim, _module(units, node).end_dim)
    return _merge(
        units, node, _argument(node, 1, "start_dim", 0), _argument(node, 2, "end_dim", -1)
    )


def _view(units: Units, node: fx.Node) -> UnitLayout:
    """Known where it does what ``flatten(1)`` does, which then takes its place: the sizes written
    in it may no longer hold.
    """
    sizes, out = units.sizes(_input(node)), units.sizes(node)
    if len(sizes) < 2 or out != (sizes[0], math.prod(sizes[1:])):
        raise Unknown
    layout = _merge(units, node, 1, -1)

    def rewrite(node: fx.Node, kept: Tensor) -> None:
        node.op, node.target, node.args, node.kwargs = (
            "call_function",
            torch.flatten,
            (node.args[0], 1),
            {},
        )

    units.rewrites[node] = rewrite
    return layout


def _permute(units: Units, node: fx.Node) -> UnitLayout:
    layout, dims = _given(units, node), len(units.sizes(_input(node)))
    given = _argument(node, 1, "dims")
    order = list(given) if isinstance(given, (tuple, list)) else list(node.args[1:])
    return layout.on([d % dims for d in order].index(layout.axis))  # type: ignore[operator]


def _transpose(units: Units, node: fx.Node) -> UnitLayout:
    layout, dims = _given(units, node), len(units.sizes(_input(node)))
    one, two = _argument(node, 1, "dim0") % dims, _argument(node, 2, "dim1") % dims
    return layout.on({one: two, two: one}.get(layout.axis, layout.axis))


def _squeeze(units: Units, node: fx.Node) -> UnitLayout:
    layout, sizes = _given(units, node), units.sizes(_input(node))
    dim = _argument(node, 1, "dim")
    if not isinstance(dim, int) or dim % len(sizes) == layout.axis:
        raise Unknown
    return layout.on(layout.axis - (sizes[dim] == 1 and dim % len(sizes) < layout.axis))


def _unsqueeze(units: Units, node: fx.Node) -> UnitLayout:
    layout, dims = _given(units, node), len(units.sizes(_input(node)))
    return layout.on(layout.axis + (_argument(node, 1, "dim") % (dims + 1) <= layout.axis))


def _cat(units: Units, node: fx.Node) -> UnitLayout:
    parts: Any = node.args[0] if node.args else node.kwargs.get("tensors")
    axis = _argument(node, 1, "dim", 0) % len(units.sizes(node))
    if not isinstance(parts, (tuple, list)) or any(
        n in units.layouts and units.layouts[n].axis != axis for n in parts
    ):
        raise Unknown
    layouts = [units.at(n, axis) for n in parts]
    return UnitLayout(
        axis,
        *(
            torch.cat([getattr(layout, key) for layout in layouts])
            for key in ("units", "known", "value")
        ),
    )


def _getitem(units: Units, node: fx.Node) -> UnitLayout:
    """A cut through places, such as every second one, or new axes of size 1; all channels, or it is
    unknown.
    """
    index, layout, dims = node.args[1], _given(units, node), len(units.sizes(_input(node)))
    items: list[Any] = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in items:
        where, real = items.index(Ellipsis), sum(i is not None for i in items) - 1
        items[where : where + 1] = [slice(None)] * (dims - real)
    if not all(i is None or isinstance(i, slice) for i in items):
        raise Unknown
    items += [slice(None)] * (dims - sum(i is not None for i in items))
    places = [place for place, item in enumerate(items) if item is not None]
    if items[places[layout.axis]] != slice(None):
        raise Unknown
    return layout.on(places[layout.axis])


def _sizes(units: Units, node: fx.Node) -> None:
    """Sizes may be asked for, all but the number of channels."""
    name, dims, axis = _name(node), len(units.sizes(_input(node))), _given(units, node).axis
    if name == "dim" or (name == "getattr" and node.args[1] in ("dtype", "device", "ndim")):
        return
    if name == "getattr" and node.args[1] != "shape":
        raise Unknown
    asked = (
        [_argument(node, 1, "dim")]
        if name == "size" and _argument(node, 1, "dim") is not None
        else None
    )
    if asked is None:
        asked = [
            u.args[1] if _name(u) == "getitem" else None
            for u in node.users
            if _name(u) != "getitem" or u.users
        ]
    if not all(isinstance(a, int) and a % dims != axis for a in asked):
        raise Unknown


_ELEMENTWISE = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.Tanh,
    nn.Softplus,
    nn.Softsign,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.LogSigmoid,
    nn.Tanhshrink,
    nn.Threshold,
    nn.Hardshrink,
    nn.Softshrink,
)
_SPATIAL = [
    getattr(nn, f"{kind}{d}d")
    for d in (1, 2, 3)
    for kind in (
        "MaxPool",
        "AvgPool",
        "AdaptiveAvgPool",
        "AdaptiveMaxPool",
        "ConstantPad",
        "ZeroPad",
        "ReflectionPad",
        "ReplicationPad",
    )
]

_NUMBER_BY_NUMBER = (
    "relu",
    "relu6",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "gelu",
    "silu",
    "mish",
    "sigmoid",
    "tanh",
    "softplus",
    "softsign",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "logsigmoid",
    "tanhshrink",
    "threshold",
    "abs",
    "neg",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "square",
    "sin",
    "cos",
    "erf",
    "clamp",
    "clamp_min",
    "clamp_max",
    "clip",
    "add",
    "sub",
    "truediv",
    "div",
    "iadd",
    "isub",
    "itruediv",
    "pow",
    "maximum",
    "minimum",
    "contiguous",
    "clone",
    "detach",
)

MODULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    **dict.fromkeys(
        (
            nn.Conv1d,
            nn.Conv2d,
            nn.Conv3d,
            nn.ConvTranspose1d,
            nn.ConvTranspose2d,
            nn.ConvTranspose3d,
        ),
        _conv,
    ),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _norm),
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys([*_SPATIAL, nn.Upsample], _spatial),
    nn.PReLU: _prelu,
    nn.Flatten: _flatten,
}

OPERATIONS: dict[str, Rule] = {
    **dict.fromkeys(_NUMBER_BY_NUMBER, _elementwise),
    **dict.fromkeys(("mul", "imul", "multiply"), partial(_elementwise, product=True)),
    **{
        f"{kind}{d}d": _spatial
        for d in (1, 2, 3)
        for kind in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")
    },
    **dict.fromkeys(("mean", "sum", "amax", "amin"), _reduce),
    **dict.fromkeys(("view", "reshape"), _view),
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    **dict.fromkeys(("transpose", "swapaxes"), _transpose),
    **dict.fromkeys(("size", "getattr", "dim"), _sizes),
    "interpolate": _spatial,
    "dropout": _dropout,
    "pad": _pad,
    "flatten": _flatten,
    "permute": _permute,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "getitem": _getitem,
}
