"""What each operation does to channels: a table from operations to rules, and the walk that applies
it.

A rule takes the :class:`Units` found so far and an operation, and returns the layout of its result,
or None where the result has no channels. It raises ``UnknownOperation`` where it does not cover how
the operation is used. Of such an operation, and of one that is not in the tables, all units it
reads are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import fx, nn

from credo.compress.channels import mixing_layers, moved_channels, per_channel
from credo.compress.channels.operands import module_of, operation_name
from credo.compress.channels.units import UnitLayout, Units, UnknownOperation

Rule = Callable[[Units, fx.Node], UnitLayout | None]


def analyse(net: nn.Module, example: Any) -> Units:
    """The units of a network in evaluation mode, from one pass over this example; a
    ``NetworkError`` where its operations cannot be listed.
    """
    units = Units(net, example)
    for node in units.graph.nodes:
        try:
            layout = _rule(units, node)(units, node)
        except UnknownOperation:
            layout = None
            _keep_inputs(units, node)
        if layout is not None:
            units.layouts[node] = layout
    return units


def _keep_inputs(units: Units, node: fx.Node) -> None:
    """Keep all units that an unknown operation reads."""
    found = [units.layouts[n] for n in node.all_input_nodes if n in units.layouts]
    for layout in found:
        units.pin(layout)
    if found and node.op != "output":
        is_module = node.op == "call_module"
        kind = type(module_of(units, node)).__name__ if is_module else operation_name(node)
        units.kept_whole.append(f"{node.name} ({kind})")
    if _writes_in_place(units, node):  # from here on the tensor is another one
        units.layouts.pop(node.all_input_nodes[0], None)


def _rule(units: Units, node: fx.Node) -> Rule:
    """The rule of an operation, where it can be applied."""
    if node.op in ("placeholder", "get_attr"):
        return _no_channels
    rule = _module_rule(units, node) if node.op == "call_module" else _function_rule(node)
    starts_units = rule in (mixing_layers.linear, mixing_layers.conv, _unknown)
    if not starts_units and not any(n in units.layouts for n in node.all_input_nodes):
        return _no_channels
    if _writes_in_place(units, node) and len(node.all_input_nodes[0].users) > 1:
        return _unknown
    return rule


def _module_rule(units: Units, node: fx.Node) -> Rule:
    """A module whose parameters serve several calls, or that has hooks, is unknown."""
    module = module_of(units, node)
    own = [*module.parameters(), *module.buffers()]
    shared = any(id(p) in units.tied for p in own) or (bool(own) and node.target in units.shared)
    hooked = bool(module._forward_hooks or module._forward_pre_hooks)
    return _unknown if shared or hooked else MODULES.get(type(module), _unknown)


def _function_rule(node: fx.Node) -> Rule:
    """A function with a known name counts only if it is torch's or Python's own."""
    home = getattr(node.target, "__module__", "").split(".")[0]
    if node.op != "call_method" and home not in ("torch", "_operator", "builtins"):
        return _unknown
    name = operation_name(node).removeprefix("special_").rstrip("_")
    return OPERATIONS.get(name, _unknown)


def _writes_in_place(units: Units, node: fx.Node) -> bool:
    if not node.all_input_nodes:
        return False
    if node.op == "call_module":
        return bool(getattr(module_of(units, node), "inplace", False))
    name = operation_name(node)
    flag = node.kwargs.get("inplace", False) or any(a is True for a in node.args[1:])
    return (
        bool(flag) or name.endswith("_") or name in ("iadd", "isub", "imul", "itruediv", "setitem")
    )


def _unknown(units: Units, node: fx.Node) -> None:
    raise UnknownOperation


def _no_channels(units: Units, node: fx.Node) -> None:
    return None


#: Modules that compute each number from the number at the same place.
ELEMENTWISE_MODULES = (
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


#: Modules that move over places and treat each channel by itself.
SPATIAL_MODULES = [
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


#: Functions and methods that compute each number from the numbers at the same place.
ELEMENTWISE_OPERATIONS = (
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
    nn.Linear: mixing_layers.linear,
    **dict.fromkeys(
        (
            nn.Conv1d,
            nn.Conv2d,
            nn.Conv3d,
            nn.ConvTranspose1d,
            nn.ConvTranspose2d,
            nn.ConvTranspose3d,
        ),
        mixing_layers.conv,
    ),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), per_channel.batch_norm),
    **dict.fromkeys(ELEMENTWISE_MODULES, per_channel.elementwise),
    **dict.fromkeys([*SPATIAL_MODULES, nn.Upsample], per_channel.spatial),
    nn.PReLU: per_channel.prelu,
    nn.Flatten: moved_channels.flatten,
}


OPERATIONS: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE_OPERATIONS, per_channel.elementwise),
    **dict.fromkeys(("mul", "imul", "multiply"), partial(per_channel.elementwise, product=True)),
    **{
        f"{kind}{d}d": per_channel.spatial
        for d in (1, 2, 3)
        for kind in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")
    },
    **dict.fromkeys(("mean", "sum", "amax", "amin"), per_channel.reduce),
    **dict.fromkeys(("view", "reshape"), moved_channels.view),
    **dict.fromkeys(("cat", "concat", "concatenate"), moved_channels.cat),
    **dict.fromkeys(("transpose", "swapaxes"), moved_channels.transpose),
    **dict.fromkeys(("size", "getattr", "dim"), moved_channels.read_sizes),
    "interpolate": per_channel.spatial,
    "dropout": per_channel.dropout,
    "pad": per_channel.pad,
    "flatten": moved_channels.flatten,
    "permute": moved_channels.permute,
    "squeeze": moved_channels.squeeze,
    "unsqueeze": moved_channels.unsqueeze,
    "getitem": moved_channels.getitem,
}
