"""Rules of operations on each channel by itself: normalisation, activations, sums, pooling, padding
and reductions over places.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from credo.compress.channels.operands import (
    argument,
    channel_axis,
    input_layout,
    input_of,
    module_of,
    result_layout,
)
from credo.compress.channels.units import Channelwise, UnitLayout, Units, UnknownOperation


def channelwise(
    units: Units,
    node: fx.Node,
    axis: int,
    unread: Tensor,
    tensors: tuple[str, ...],
    counts: tuple[str, ...],
) -> UnitLayout:
    """A layer with parameters per channel; ``unread``: mask of channels whose result does not
    depend on the input.
    """
    layout = units.layout_on_axis(input_of(node), axis)
    out = result_layout(units, node, axis, layout.units, layout.constant | unread)
    units.channelwise.append(
        Channelwise(str(node.target), module_of(units, node), out, tensors, counts)
    )
    return out


def batch_norm(units: Units, node: fx.Node) -> UnitLayout:
    """Normalisation by stored statistics; a scale of zero leaves the shift alone."""
    module = module_of(units, node)
    if module.running_mean is None or module.training:
        raise UnknownOperation  # statistics of the batch
    unread = (
        torch.zeros(module.num_features, dtype=torch.bool)
        if module.weight is None
        else (module.weight.detach() == 0).cpu()
    )
    return channelwise(
        units, node, 1, unread, ("weight", "bias", "running_mean", "running_var"), ("num_features",)
    )


def prelu(units: Units, node: fx.Node) -> UnitLayout:
    """A slope for all channels, or one for each."""
    module = module_of(units, node)
    if module.num_parameters == 1:
        return elementwise(units, node)
    return channelwise(
        units,
        node,
        1,
        torch.zeros(module.num_parameters, dtype=torch.bool),
        ("weight",),
        ("num_parameters",),
    )


def elementwise(units: Units, node: fx.Node, product: bool = False) -> UnitLayout:
    """Number by number, of one tensor or several, whose units become one; a product with a constant
    zero is zero.
    """
    out, tensors = units.sizes(node), units.tensors(node)
    # axes of channels counted from the end, as broadcasting does
    back = {units.layouts[n].axis - len(units.sizes(n)) for n in tensors if n in units.layouts}
    if len(back) != 1 or any(
        -min(back) > len(units.sizes(n)) or units.sizes(n)[min(back)] != out[min(back)]
        for n in tensors
    ):
        raise UnknownOperation
    layouts = [units.layout_on_axis(n, len(units.sizes(n)) + min(back)) for n in tensors]
    units.merge_units(layouts)
    constant = torch.stack([layout.constant for layout in layouts]).all(0)
    if product:
        constant |= torch.stack([layout.constant & (layout.value == 0) for layout in layouts]).any(
            0
        )
    return result_layout(units, node, len(out) + min(back), layouts[0].units, constant)


def dropout(units: Units, node: fx.Node) -> UnitLayout:
    """The identity, if it is told that this is no training."""
    if argument(node, 2, "training", True) is not False:
        raise UnknownOperation
    return elementwise(units, node)


def spatial(units: Units, node: fx.Node) -> UnitLayout:
    """Pooling, padding of places and interpolation, each channel by itself."""
    units.sizes(node)  # one tensor, not a pair with indices
    layout = units.layout_on_axis(input_of(node), channel_axis(units, node))
    return result_layout(units, node, layout.axis, layout.units, layout.constant)


def pad(units: Units, node: fx.Node) -> UnitLayout:
    """Padding of channels adds constant units; how many of them are kept is the padding of the
    smaller network.
    """
    layout, amounts = input_layout(units, node), tuple(argument(node, 1, "pad"))
    place = 2 * (len(units.sizes(input_of(node))) - 1 - layout.axis)
    left, right = amounts[place : place + 2] if place < len(amounts) else (0, 0)
    if min(left, right) < 0 or (
        (left or right) and argument(node, 2, "mode", "constant") != "constant"
    ):
        raise UnknownOperation
    before, after = units.new_units(layout.axis, left), units.new_units(layout.axis, right)
    numbers = torch.cat([before.units, layout.units, after.units])
    constant = torch.cat([~before.constant, layout.constant, ~after.constant])
    if left or right:

        def rewrite(node: fx.Node, keep: Tensor) -> None:
            fewer = (int(keep[before.units].sum()), int(keep[after.units].sum()))
            node.args = (
                node.args[0],
                (*amounts[:place], *fewer, *amounts[place + 2 :]),
                *node.args[2:],
            )
            node.kwargs = {k: v for k, v in node.kwargs.items() if k != "pad"}

        units.rewrites[node] = rewrite
    return result_layout(units, node, layout.axis, numbers, constant)


def reduce(units: Units, node: fx.Node) -> UnitLayout:
    """A mean, sum or extreme over places."""
    given, layout, sizes = (
        argument(node, 1, "dim"),
        input_layout(units, node),
        units.sizes(input_of(node)),
    )
    if given is None:
        raise UnknownOperation
    dims = {d % len(sizes) for d in ([given] if isinstance(given, int) else given)}
    if layout.axis in dims or 0 in dims:
        raise UnknownOperation
    lost = 0 if len(units.sizes(node)) == len(sizes) else sum(d < layout.axis for d in dims)
    return result_layout(units, node, layout.axis - lost, layout.units, layout.constant)
