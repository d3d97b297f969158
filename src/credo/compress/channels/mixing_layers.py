"""Rules of the layers that mix channels: dense layers and convolutions."""

from __future__ import annotations

from torch import fx

from credo.compress.channels.operands import channel_axis, input_of, module_of, result_layout
from credo.compress.channels.per_channel import channelwise
from credo.compress.channels.units import Dense, UnitLayout, Units, UnknownOperation, connections


def dense(
    units: Units, node: fx.Node, axis: int, in_dim: int, out_dim: int, zero_padded: bool
) -> UnitLayout:
    """A layer y = W x + b writes new units; an output is constant if it reads constants alone."""
    module, reads = module_of(units, node), units.layout_on_axis(input_of(node), axis)
    constant = ~connections(module, in_dim, out_dim)[:, ~reads.constant].any(1)
    writes = result_layout(units, node, axis, units.new_units(axis, len(constant)).units, constant)
    units.dense.append(Dense(str(node.target), module, reads, writes, in_dim, out_dim, zero_padded))
    return writes


def linear(units: Units, node: fx.Node) -> UnitLayout:
    """``nn.Linear``: channels on the last axis."""
    return dense(
        units, node, len(units.sizes(input_of(node))) - 1, in_dim=1, out_dim=0, zero_padded=False
    )


def conv(units: Units, node: fx.Node) -> UnitLayout:
    """A convolution, transposed or not; in one group it mixes channels, in one group per channel it
    treats each by itself. Other groups are unknown.
    """
    module, axis = module_of(units, node), channel_axis(units, node)
    if module.groups == 1 and len(node.all_input_nodes) == 1:
        if module.transposed:
            return dense(units, node, axis, in_dim=0, out_dim=1, zero_padded=True)
        padded = module.padding == "same" or (
            not isinstance(module.padding, str) and any(module.padding)
        )
        return dense(
            units,
            node,
            axis,
            in_dim=1,
            out_dim=0,
            zero_padded=padded and module.padding_mode == "zeros",
        )
    if module.groups == module.in_channels == module.out_channels and not module.transposed:
        unread = ~(module.weight.detach() != 0).flatten(1).any(1).cpu()
        return channelwise(
            units, node, axis, unread, ("weight", "bias"), ("in_channels", "out_channels", "groups")
        )
    raise UnknownOperation
