"""Slimming: the same function by a smaller network, where pruning left whole units without use.

A unit is removed when every layer that reads it does so by zero weights, or when it is constant and
a bias can take it over. What remains is a plain dense module; zeros inside it are stored as zeros.
"""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, fx, nn

from credo.bnn import BNN
from credo.compress import pruned
from credo.compress.channels import analyse
from credo.compress.channels.operands import operation_name
from credo.compress.channels.units import Channelwise, Dense, Units
from credo.compress.pruned import Pruned
from credo.compress.same_outputs import difference
from credo.core.errors import NetworkError
from credo.core.shell import unwrap
from credo.core.standardised import entered, in_own_units, units_of, without_units

TOLERANCE = 1e-4  # of the largest output: float32 sums in another order differ by less
COPY = 16  # multiply-adds that take as long as copying one number
LAUNCH = 1 << 15  # multiply-adds that take as long as one more operation


@final
class Take(nn.Module):
    """The entries ``index`` ``(K,)`` of a tensor along ``axis``, counted from the end."""

    def __init__(self, index: Tensor, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis
        self.index: Tensor
        self.register_buffer("index", index)

    def forward(self, x: Tensor) -> Tensor:
        """``(..., P, ...)`` to ``(..., K, ...)``."""
        return x.index_select(self.axis, self.index)

    def extra_repr(self) -> str:
        return f"{len(self.index)}, axis={self.axis}"


@torch.no_grad()
def slim(source: BNN | Pruned | nn.Module, example: Any, inputs: bool = True) -> nn.Module:
    """A smaller plain module, in evaluation mode, with the outputs of the pruned network; inputs
    and outputs keep their shapes.

    ``source``: a BNN (pruned by default), what pruning gave, or any module with exact zeros.
    ``example``: one batch of inputs, to find shapes by and to verify on. ``inputs``: where a layer
    reads only part of a tensor that must stay whole, such as the network's input, put a
    :class:`Take` in front of it if that pays. A sequence of layers stays an ``nn.Sequential``;
    anything else becomes a ``torch.fx.GraphModule``. Operations that are not known keep what they
    read (``report`` names them); a network that cannot be traced is copied, with a warning. A
    ``NetworkError`` if outputs differ by more than 1e-4 of the largest.
    """
    net = network_of(source)
    own = units_of(net)
    if own is not None:
        bare = without_units(net)
        return in_own_units(slim(bare, entered(own, example, bare), inputs), own)
    try:
        units = analyse(net, example)
    except NetworkError as error:
        warnings.warn(f"The network is returned as it is: {error}", stacklevel=2)
        return copy.deepcopy(net)
    smaller = _rebuilt(net, units, inputs)
    found = difference(net(example), smaller(example))
    if not found.within(TOLERANCE):
        raise NetworkError(
            f"The slimmed network's outputs differ by {found.worst:.2e} where the largest is "
            f"{found.largest:.2e}; expected at most {TOLERANCE:.0e} of it. "
            "Does the network give the same outputs twice, each example by itself? If so, use the "
            "pruned network as it is."
        )
    return smaller


@torch.no_grad()
def tidy(source: BNN | Pruned, example: Any) -> Pruned:
    """The same network and the same function with more zeros: units that no layer reads lose their
    weights and bias, constant ones are folded into the next bias.

    What :func:`slim` would remove is zero afterwards, which a file stores for next to nothing.
    """
    given = pruned.pruned_of(source)
    units = analyse(without_units(given.net), entered(units_of(given.net), example, given.net))
    needed, values = units.needed(), {}
    for layer in units.dense:
        weight, bias = _folded(layer, ~needed[layer.reads.units], needed)
        values[f"{layer.target}.weight"] = weight.movedim((0, 1), (layer.out_dim, layer.in_dim))
        if layer.module._parameters["bias"] is not None:
            values[f"{layer.target}.bias"] = bias
        elif bool(bias.any()):
            raise NetworkError(
                f"{layer.target} has no bias to take over what constant units give it; use the "
                "network as it is, or slim it."
            )
    masks = {n: m & (values[n] != 0) if n in values else m for n, m in given.masks.items()}
    tidied = replace(given.with_values(values), masks=masks)
    found = difference(given.net(example), tidied.net(example))
    if not found.within(TOLERANCE):
        raise NetworkError(
            f"Outputs differ by {found.worst:.2e} where the largest is {found.largest:.2e}; use "
            "the pruned network as it is."
        )
    return tidied


def network_of(source: BNN | Pruned | nn.Module) -> nn.Module:
    """The plain network in evaluation mode behind any source of slimming."""
    if isinstance(source, Pruned):
        return source.net
    if isinstance(source, nn.Module):
        net = unwrap(source)
        return copy.deepcopy(net).eval() if any(m.training for m in net.modules()) else net
    return pruned.pruned_of(source).net


# --- the smaller network --------------------------------------------------------------------------


def _rebuilt(net: nn.Module, units: Units, inputs: bool) -> nn.Module:
    """The network's operations on smaller modules and tensors."""
    graph, needed = units.graph, units.needed()
    keep = units.units_to_keep(needed)
    parts: dict[str, Any] = {d.target: _dense(d, needed, keep, inputs) for d in units.dense}
    parts |= {c.target: _channelwise(c, keep) for c in units.channelwise}
    for node, axis in units.channel_tensors.items():
        places = keep[units.layouts[node].units].nonzero().squeeze(1)
        old = units.attribute(str(node.target))
        parts[str(node.target)] = _like(old, old.detach().index_select(axis, places.to(old.device)))
    # operations without users are there for what they do, and stay
    used = {node for node in graph.nodes if node.users and node.op != "placeholder"}
    for node, rewrite in units.rewrites.items():
        rewrite(node, keep)
    parts |= _without_constant_branches(units, keep)
    for node in reversed(list(graph.nodes)):
        if not node.users and node in used:
            graph.erase_node(node)
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr") and str(node.target) not in parts:
            parts[str(node.target)] = copy.deepcopy(units.attribute(str(node.target)))
    return _assembled(net, graph, parts)


def _assembled(net: nn.Module, graph: fx.Graph, parts: dict[str, Any]) -> nn.Module:
    """One module of the parts: a sequence where the network is one, else a ``GraphModule``."""
    steps = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    in_sequence = all(n.op == "call_module" and n.args == (n.prev,) for n in steps)
    if type(net) is nn.Sequential and in_sequence:
        return nn.Sequential(
            OrderedDict((str(n.target).replace(".", "_"), parts[str(n.target)]) for n in steps)
        ).eval()
    targets = {str(n.target) for n in steps if n.op in ("call_module", "get_attr")}
    own = {k: v for k, v in parts.items() if k in targets}
    # a copy does not remember how it was traced, which would travel with a pickle
    plain = fx.Graph()
    plain.output(plain.graph_copy(graph, {}))
    return fx.GraphModule(own, plain, f"Slim{type(net).__name__}").eval()


def _dense(layer: Dense, needed: Tensor, keep: Tensor, inputs: bool) -> nn.Module:
    """The layer between the units that are kept.

    Constants that it no longer reads are in its bias; units that only fill an otherwise empty
    tensor carry zeros.
    """
    old = layer.module.get_parameter("weight")
    outputs, columns = keep[layer.writes.units], keep[layer.reads.units]
    unread = columns & ~layer.uses(needed)
    read = columns & ~unread
    saved = int(unread.sum()) * int(outputs.sum()) * old[0, 0].numel()
    take = inputs and bool(read.any()) and saved > max(LAUNCH, COPY * int(read.sum()))
    gone = ~needed[layer.reads.units] | (unread if take else False)
    matrix, bias = _folded(layer, gone, needed)
    entering = read if take else columns
    weight = (
        matrix[outputs.to(matrix.device)][:, entering.to(matrix.device)]
        .movedim((0, 1), (layer.out_dim, layer.in_dim))
        .contiguous()
    )
    twin = _without(layer.module, ("weight", "bias"))
    twin._parameters["weight"] = _like(old, weight)
    if layer.module._parameters["bias"] is not None or bool(bias[outputs].any()):
        twin._parameters["bias"] = _like(old, bias[outputs].to(weight))
    linear = isinstance(twin, nn.Linear)
    names = ("in_features", "out_features") if linear else ("in_channels", "out_channels")
    for name, size in zip(names, (int(entering.sum()), int(outputs.sum())), strict=True):
        setattr(twin, name, size)
    if not take:
        return twin
    place = entering[columns].nonzero().squeeze(1).to(old.device)
    return nn.Sequential(Take(place, -1 if linear else 1 - old.dim()), twin)


def _folded(layer: Dense, gone: Tensor, needed: Tensor) -> tuple[Tensor, Tensor]:
    """Weight ``(out, in, ...)`` and bias ``(out,)`` with zeros in columns that are gone and in rows
    that are not needed; the bias takes over the constants of the columns that are gone.
    """
    matrix = (
        layer.module.get_parameter("weight")
        .detach()
        .movedim((layer.out_dim, layer.in_dim), (0, 1))
        .clone()
    )
    shift = (
        matrix.double().cpu().reshape(*matrix.shape[:2], -1).sum(2)[:, gone]
        @ layer.reads.value[gone]
    )
    given = layer.module._parameters["bias"]
    bias = shift if given is None else given.detach().double().cpu() + shift
    unneeded = ~needed[layer.writes.units]
    matrix[:, gone.to(matrix.device)] = 0.0
    matrix[unneeded.to(matrix.device)] = 0.0
    bias[unneeded] = 0.0
    return matrix, bias


def _channelwise(layer: Channelwise, keep: Tensor) -> nn.Module:
    """The layer with the entries of the channels that are kept."""
    channels = keep[layer.layout.units]
    twin = _without(layer.module, layer.tensors)
    for store in (twin._parameters, twin._buffers):
        for name in layer.tensors:
            tensor = store.get(name)
            if tensor is not None:
                store[name] = _like(tensor, tensor.detach()[channels.to(tensor.device)])
    for name in layer.counts:
        setattr(twin, name, int(channels.sum()))
    return twin


def _without_constant_branches(units: Units, keep: Tensor) -> dict[str, Tensor]:
    """Replace a summand that is constant by its numbers, so that nothing of what computed it is
    run; returns these numbers by name. Where all are zero the sum goes, too.
    """
    graph, layouts = units.graph, units.layouts
    numbers: dict[str, Tensor] = {}
    for node in list(graph.nodes):
        if node.op not in ("call_function", "call_method") or node.kwargs or len(node.args) != 2:
            continue
        pair = [a for a in node.args if isinstance(a, fx.Node) and a in layouts]
        is_sum = operation_name(node).rstrip("_") in ("add", "iadd")
        if not is_sum or len(pair) != 2 or node not in layouts:
            continue
        constants = [bool(layouts[a].constant[keep[layouts[a].units]].all()) for a in pair]
        if sum(constants) != 1 or units.sizes(pair[constants.index(False)]) != units.sizes(node):
            continue
        constant, other = pair[constants.index(True)], pair[constants.index(False)]
        if constant.op == "get_attr":
            continue
        layout, (sizes, dtype) = layouts[constant], units.results[constant]
        value = layout.value[keep[layout.units]].to(units.device, dtype)
        if not value.any():
            node.replace_all_uses_with(other)
            continue
        key = f"constant_{len(numbers)}"
        numbers[key] = value.reshape([-1] + [1] * (len(sizes) - 1 - layout.axis))
        with graph.inserting_before(node):
            stored = graph.create_node("get_attr", key)
            total = graph.call_function(torch.add, (other, stored))
        node.replace_all_uses_with(total)
    return numbers


def _without(module: nn.Module, names: Iterable[str]) -> Any:
    """A copy whose tensors of these names are still the original's, to be replaced."""
    stores = module._parameters | module._buffers
    return copy.deepcopy(
        module, {id(stores[n]): stores[n] for n in names if stores.get(n) is not None}
    )


def _like(old: Tensor, new: Tensor) -> Tensor:
    """A copy of ``new``, as a parameter if ``old`` is one."""
    return (
        nn.Parameter(new.clone(), old.requires_grad)
        if isinstance(old, nn.Parameter)
        else new.clone()
    )
