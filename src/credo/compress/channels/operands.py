"""What a rule reads of an operation (name, module, first input, arguments), and the layout of its
result.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, fx

from credo.compress.channels.units import UnitLayout, Units, UnknownOperation


def operation_name(node: fx.Node) -> str:
    """The name of the function, method or module path that an operation calls."""
    return (
        node.target
        if isinstance(node.target, str)
        else getattr(node.target, "__name__", str(node.target))
    )


def module_of(units: Units, node: fx.Node) -> Any:
    """The module that an operation calls."""
    return units.net.get_submodule(str(node.target))


def input_of(node: fx.Node) -> fx.Node:
    """The operation whose result is the first argument."""
    first = node.args[0] if node.args else node.kwargs.get("input")
    if not isinstance(first, fx.Node):
        raise UnknownOperation
    return first


def input_layout(units: Units, node: fx.Node) -> UnitLayout:
    """The layout of the first argument; without one the operation is unknown."""
    if input_of(node) not in units.layouts:
        raise UnknownOperation
    return units.layouts[input_of(node)]


def argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    """An argument that must be a plain number or a tuple of them."""
    found = node.args[place] if len(node.args) > place else node.kwargs.get(name, default)
    if isinstance(found, fx.Node) or (
        isinstance(found, (tuple, list)) and any(isinstance(f, fx.Node) for f in found)
    ):
        raise UnknownOperation
    return found


def channel_axis(units: Units, node: fx.Node) -> int:
    """The axis of channels of a spatial operation: the one before the axes it moves over, whose
    number is in its name (``conv2d``: 2).
    """
    name = (
        type(module_of(units, node)).__name__ if node.op == "call_module" else operation_name(node)
    )
    digit, dims = re.search(r"(\d)d$", name), len(units.sizes(input_of(node)))
    return dims - 1 - int(digit[1]) if digit else 1


def result_layout(
    units: Units, node: fx.Node, axis: int, numbers: Tensor, constant: Tensor
) -> UnitLayout:
    """Units ``numbers`` on an axis of the result; of the channels in the mask ``constant`` those
    are constant whose value, computed here, is the same at all places.
    """
    value, same = units.constant_value(node, axis)
    constant = constant & same
    return UnitLayout(axis, numbers, constant, torch.where(constant, value, 0.0))
