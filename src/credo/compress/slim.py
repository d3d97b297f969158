"""Slimming: the same function by a smaller network, where pruning left whole units without use.

A unit goes when every layer that reads it does so by zero weights, or sees a constant, which its
bias takes over. What stays is a plain dense module: zeros inside it are kept as zeros.
"""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, fx, nn

from credo.bnn import BNN
from credo.compress import pruned
from credo.compress.cost import Cost, count, latency, rows
from credo.compress.pruned import Pruned
from credo.compress.rules import analyse
from credo.compress.units import Channelwise, Dense, Units
from credo.core.errors import CredoError, NetworkError
from credo.core.shell import unwrap
from credo.core.tree import leaves

TOLERANCE = 1e-4  # of the largest output: float32 sums in another order differ by less
COPY = 16  # multiply-adds that take as long as copying one number
LAUNCH = 1 << 15  # multiply-adds that take as long as one more operation
BATCHES = (1, 64)


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
    net = _network(source)
    try:
        units = analyse(net, example)
    except NetworkError as error:
        warnings.warn(f"The network is returned as it is: {error}", stacklevel=2)
        return copy.deepcopy(net)
    smaller = _rebuilt(net, units, inputs)
    worst, largest, dtype = _difference(net, smaller, example)
    if not worst <= max(TOLERANCE, 8 * torch.finfo(dtype).eps) * largest + 1e-6:
        raise NetworkError(
            f"The slimmed network's outputs differ by {worst:.2e} where the largest is "
            f"{largest:.2e}; expected at most {TOLERANCE:.0e} of it. "
            "Does the network give the same outputs twice, each example by itself? If so, use the "
            "pruned network as it is."
        )
    return smaller


@torch.no_grad()
def tidy(source: BNN | Pruned, example: Any) -> Pruned:
    """The same network and the same function with more zeros: units that nobody reads lose their
    weights and bias, constant ones are folded forward.

    What :func:`slim` would cut out is zero afterwards, which a file stores for next to nothing.
    """
    given = pruned.pruned_of(source)
    units = analyse(given.net, example)
    needed, values = units.needed(), {}
    for layer in units.dense:
        weight, bias = _settled(layer, ~needed[layer.reads.units], needed)
        back = weight.movedim((0, 1), (layer.out_dim, layer.in_dim))
        values[f"{layer.target}.weight"] = back
        if layer.module._parameters["bias"] is not None:
            values[f"{layer.target}.bias"] = bias
        elif bool(bias.any()):
            raise NetworkError(
                f"{layer.target} has no bias to take over what constant units give it; use the "
                "network as it is, or slim it."
            )
    found = replace(
        given.with_values(values),
        masks={n: m & (values[n] != 0) if n in values else m for n, m in given.masks.items()},
    )
    worst, largest, dtype = _difference(given.net, found.net, example)
    if not worst <= max(TOLERANCE, 8 * torch.finfo(dtype).eps) * largest + 1e-6:
        raise NetworkError(
            f"Outputs differ by {worst:.2e} where the largest is {largest:.2e}; use the pruned "
            "network as it is."
        )
    return found


def _network(source: BNN | Pruned | nn.Module) -> nn.Module:
    if isinstance(source, Pruned):
        return source.net
    if isinstance(source, nn.Module):
        net = unwrap(source)
        return copy.deepcopy(net).eval() if any(m.training for m in net.modules()) else net
    return pruned.pruned_of(source).net


def _difference(
    net: nn.Module, smaller: nn.Module, example: Any
) -> tuple[float, float, torch.dtype]:
    """Largest absolute difference of outputs (infinite where they do not compare), largest output,
    and their type.
    """
    pairs = list(zip(leaves(net(example)), leaves(smaller(example)), strict=True))
    pairs = [(a, b) for a, b in pairs if isinstance(a, Tensor) and a.is_floating_point()]
    gaps = [float((a - b).abs().max()) if a.shape == b.shape else torch.inf for a, b in pairs]
    worst = torch.inf if any(gap != gap for gap in gaps) else max(gaps, default=0.0)
    return (
        worst,
        max((float(a.abs().max()) for a, _ in pairs), default=0.0),
        pairs[0][0].dtype if pairs else torch.float32,
    )


# --- the smaller network --------------------------------------------------------------------------


def _rebuilt(net: nn.Module, units: Units, inputs: bool) -> nn.Module:
    needed = units.needed()
    kept = units.shown(needed)
    parts: dict[str, Any] = {d.target: _dense(d, needed, kept, inputs) for d in units.dense}
    parts |= {c.target: _channelwise(c, kept) for c in units.channelwise}
    for node, axis in units.cuts.items():
        keep = kept[units.layouts[node].units].nonzero().squeeze(1)
        old = units.attribute(str(node.target))
        parts[str(node.target)] = _like(old, old.detach().index_select(axis, keep.to(old.device)))
    used = {
        node for node in units.graph.nodes if node.users and node.op != "placeholder"
    }  # others are there for what they do
    for node, rewrite in units.rewrites.items():
        rewrite(node, kept)
    parts |= _without_constant_branches(units, kept)
    for node in reversed(list(units.graph.nodes)):
        if not node.users and node in used:
            units.graph.erase_node(node)
    for node in units.graph.nodes:
        if node.op in ("call_module", "get_attr") and str(node.target) not in parts:
            parts[str(node.target)] = copy.deepcopy(units.attribute(str(node.target)))
    steps = [node for node in units.graph.nodes if node.op not in ("placeholder", "output")]
    if type(net) is nn.Sequential and all(
        n.op == "call_module" and n.args == (n.prev,) for n in steps
    ):
        return nn.Sequential(
            OrderedDict((str(n.target).replace(".", "_"), parts[str(n.target)]) for n in steps)
        ).eval()
    targets = {str(n.target) for n in steps if n.op in ("call_module", "get_attr")}
    graph = (
        fx.Graph()
    )  # one that does not remember how it was traced, which would travel with a pickle
    graph.output(graph.graph_copy(units.graph, {}))
    return fx.GraphModule(
        {k: v for k, v in parts.items() if k in targets}, graph, f"Slim{type(net).__name__}"
    ).eval()


def _dense(layer: Dense, needed: Tensor, kept: Tensor, inputs: bool) -> nn.Module:
    """The layer between the units that stay: constants it no longer reads are in its bias; units
    that only fill an empty tensor carry zeros.
    """
    old = layer.module.get_parameter("weight")
    rows_kept, columns = kept[layer.writes.units], kept[layer.reads.units]
    idle = columns & ~layer.uses(needed)
    taps = old[0, 0].numel()
    saved = int(idle.sum()) * int(rows_kept.sum()) * taps
    front = (
        inputs
        and bool((columns & ~idle).any())
        and saved > max(LAUNCH, COPY * int((columns & ~idle).sum()))
    )
    gone = ~needed[layer.reads.units] | (idle if front else False)
    matrix, bias = _settled(layer, gone, needed)
    stay = columns & ~idle if front else columns
    weight = (
        matrix[rows_kept.to(matrix.device)][:, stay.to(matrix.device)]
        .movedim((0, 1), (layer.out_dim, layer.in_dim))
        .contiguous()
    )
    twin = _without(layer.module, ("weight", "bias"))
    twin._parameters["weight"] = _like(old, weight)
    if layer.module._parameters["bias"] is not None or bool(bias[rows_kept].any()):
        twin._parameters["bias"] = _like(old, bias[rows_kept].to(weight))
    names = (
        ("in_features", "out_features")
        if isinstance(twin, nn.Linear)
        else ("in_channels", "out_channels")
    )
    for name, size in zip(names, (int(stay.sum()), int(rows_kept.sum())), strict=True):
        setattr(twin, name, size)
    if not front:
        return twin
    place = stay[columns].nonzero().squeeze(1).to(old.device)
    return nn.Sequential(Take(place, -1 if isinstance(twin, nn.Linear) else 1 - old.dim()), twin)


def _settled(layer: Dense, gone: Tensor, needed: Tensor) -> tuple[Tensor, Tensor]:
    """The weight ``(out, in, ...)`` without the columns that are gone and the rows nobody needs,
    and the bias with what these columns gave.
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
    idle = ~needed[layer.writes.units]
    matrix[:, gone.to(matrix.device)] = 0.0
    matrix[idle.to(matrix.device)] = 0.0
    bias[idle] = 0.0
    return matrix, bias


def _channelwise(layer: Channelwise, kept: Tensor) -> nn.Module:
    keep = kept[layer.layout.units]
    twin = _without(layer.module, layer.tensors)
    for store in (twin._parameters, twin._buffers):
        for name in layer.tensors:
            tensor = store.get(name)
            if tensor is not None:
                store[name] = _like(tensor, tensor.detach()[keep.to(tensor.device)])
    for name in layer.counts:
        setattr(twin, name, int(keep.sum()))
    return twin


def _without_constant_branches(units: Units, kept: Tensor) -> dict[str, Tensor]:
    """Where one of two summands is known whatever the input, its numbers take the place of all that
    computed it; zeros take none.
    """
    numbers: dict[str, Tensor] = {}
    for node in list(units.graph.nodes):
        if node.op not in ("call_function", "call_method") or node.kwargs or len(node.args) != 2:
            continue
        target = node.target
        name = target if isinstance(target, str) else target.__name__  # type: ignore[union-attr]
        name = name.rstrip("_")
        pair = [a for a in node.args if isinstance(a, fx.Node) and a in units.layouts]
        if name not in ("add", "iadd") or len(pair) != 2 or node not in units.layouts:
            continue
        settled = [bool(units.layouts[a].known[kept[units.layouts[a].units]].all()) for a in pair]
        if sum(settled) != 1 or units.sizes(pair[settled.index(False)]) != units.sizes(node):
            continue
        constant, other = pair[settled.index(True)], pair[settled.index(False)]
        if constant.op == "get_attr":
            continue
        layout, (sizes, dtype) = units.layouts[constant], units.seen[constant]
        value = layout.value[kept[layout.units]].to(units.device, dtype)
        if not value.any():
            node.replace_all_uses_with(other)
            continue
        key = f"constant_{len(numbers)}"
        numbers[key] = value.reshape([-1] + [1] * (len(sizes) - 1 - layout.axis))
        with units.graph.inserting_before(node):
            stored = units.graph.create_node("get_attr", key)
            total = units.graph.call_function(torch.add, (other, stored))
        node.replace_all_uses_with(total)
    return numbers


def _without(module: nn.Module, names: Iterable[str]) -> Any:
    """A copy whose tensors of these names are still the original's, to be replaced."""
    stores = module._parameters | module._buffers
    return copy.deepcopy(
        module, {id(stores[n]): stores[n] for n in names if stores.get(n) is not None}
    )


def _like(old: Tensor, new: Tensor) -> Tensor:
    return (
        nn.Parameter(new.clone(), old.requires_grad)
        if isinstance(old, nn.Parameter)
        else new.clone()
    )


# --- what it is worth -----------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class SlimReport:
    """Before and after: parameters, multiply-adds per example, bytes, seconds per call on one CPU
    thread, and what could not be touched.

    ``seconds``: batch size -> (before, after), medians. ``speedup``: batch size -> median over
    rounds of the ratio. ``difference``: the largest of outputs. ``whole``: operations that kept the
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


def _as_is(net: nn.Module, example: Any) -> Callable[[Any], Any]:
    return net


@torch.no_grad()
def report(
    net: BNN | Pruned | nn.Module,
    slimmed: nn.Module,
    example: Any,
    rounds: int = 20,
    runtime: Callable[[nn.Module, Any], Callable[[Any], Any]] = _as_is,
) -> SlimReport:
    """Compare a network with its slimmed form on one CPU thread, taking turns; ``example`` is
    repeated to batches of 1 and 64.

    ``runtime`` turns a network and an example into what is timed, by default the network itself;
    ``credo.compress.onnx.session`` times both under onnxruntime, where calling an operation costs
    less and small networks gain more.
    """
    plain = _network(net)
    if any(p.device.type != "cpu" for p in [*plain.parameters(), *slimmed.parameters()]):
        raise CredoError(
            "report measures on the CPU, and a network is on another device; move both there "
            "first, e.g. net.cpu()."
        )
    try:
        whole = tuple(analyse(plain, example).whole)
    except NetworkError as error:
        whole = (str(error),)
    pair, seconds, speedup = (
        {"before": runtime(plain, example), "after": runtime(slimmed, example)},
        {},
        {},
    )
    for size in BATCHES:
        times = latency(pair, rows(example, size), rounds)
        seconds[size] = (float(times["before"].median()), float(times["after"].median()))
        speedup[size] = float((times["before"] / times["after"]).median())
    worst, *_ = _difference(plain, slimmed, example)
    return SlimReport(
        count(plain, example), count(slimmed, example), seconds, speedup, worst, whole
    )
