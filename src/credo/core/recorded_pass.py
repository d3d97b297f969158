"""Record a function's tensor operations once, then replay them without the Python between them.

Derivatives count as operations, so that a recorded pass needs no autograd.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.seeds import LOCK

Function = Callable[..., list[Tensor]]
ATEN = torch.ops.aten
FILLERS = (
    ATEN.ones_like,
    ATEN.zeros_like,
    ATEN.full_like,
    ATEN.new_zeros,
    ATEN.new_ones,
    ATEN.new_full,
    ATEN.full,
    ATEN.zeros,
    ATEN.ones,
)


@final
class RecordedPass:
    """``function(*fixed, *varying)``, recorded once per ``key`` and shapes, and replayed from then
    on.

    What Python decided while it was recorded stays decided: a network that tosses coins outside
    torch would toss them once. Arguments that the function changes in place are changed by the
    replay too, but not by the recording, which also leaves the random state as it was. ``fixed``
    are always the same tensors, whatever their values.
    """

    def __init__(self, fixed: Sequence[Tensor]) -> None:
        self.fixed = list(fixed)
        self.recorded: dict[Any, Function] = {}

    def __call__(self, key: Any, function: Function, varying: Sequence[Tensor]) -> list[Tensor]:
        """Replay, after recording where there is nothing to replay."""
        known = (key, *(tensor.shape for tensor in varying))
        if known not in self.recorded:
            self.recorded[known] = record(function, [*self.fixed, *varying]).forward
        with torch.no_grad():
            return self.recorded[known](*self.fixed, *varying)


def operations(function: Callable[..., Any], arguments: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The operations of one call as they come; it changes neither its arguments nor the random
    state. A ``SettingError`` where values decide what is computed.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    with LOCK, torch.random.fork_rng(devices=[]):
        try:
            return make_fx(function)(*(t.detach().clone() for t in arguments))
        except Exception as error:
            raise untraceable(error) from error


def record(function: Function, arguments: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The operations of one call, in the form that replays fastest."""
    graph = operations(function, arguments)
    with LOCK, torch.random.fork_rng(devices=[]):
        try:
            return _lean(graph, arguments)
        except Exception as error:
            raise untraceable(error) from error


def untraceable(error: Exception) -> SettingError:
    """What to tell the user where a network cannot be recorded or compiled."""
    return SettingError(
        "compile=True: the compiler cannot trace this network "
        f"({str(error).splitlines()[0]}); use compile=False."
    )


def draws(graph: torch.fx.GraphModule) -> bool:
    """Whether any of its operations draws random numbers."""
    return any(_has(node, "draws") for node in graph.graph.nodes)


def _has(node: torch.fx.Node, trait: str) -> bool:
    """Whether it is an operation that ``"draws"`` random numbers, ``"writes"`` into what it is
    given, or is ``"pure"``: neither.
    """
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    drawn, written = (
        torch.Tag.nondeterministic_seeded in node.target.tags,
        node.target._schema.is_mutable,
    )
    return {"draws": drawn, "writes": written, "pure": not drawn and not written}[trait]


def _lean(graph: torch.fx.GraphModule, arguments: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The same numbers by fewer and cheaper calls: layers of a few hundred units feel each of
    them.
    """
    _drop_idle(graph.graph)
    _Constants(graph).fold(arguments)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return _direct(graph, arguments)


def _drop_idle(graph: torch.fx.Graph) -> None:
    """Operations that give what they are given, which vmap and autograd leave for every tensor that
    passes, and transposes of transposes.
    """
    for node in list(graph.nodes):
        idle = node.target is ATEN.detach.default
        if node.target is ATEN.permute.default:
            idle = list(node.args[1]) == sorted(node.args[1])  # type: ignore[arg-type]
        source = node.args[0] if idle else None
        if node.target is ATEN.t.default and node.args[0].target is ATEN.t.default:  # type: ignore
            source = node.args[0].args[0]  # type: ignore[union-attr]
        if source is not None:
            node.replace_all_uses_with(source)  # type: ignore[arg-type]
            graph.erase_node(node)


@final
class _Constants(torch.fx.Interpreter):
    """What follows from shapes alone becomes a constant, unless something writes into it or it is
    returned.
    """

    def fold(self, arguments: Sequence[Tensor]) -> None:
        """Run once on copies, then put values in place of their nodes."""
        self.known: dict[torch.fx.Node, Tensor] = {}
        self.written = False
        with torch.random.fork_rng(devices=[]):
            self.run(*(t.detach().clone() for t in arguments))
        if self.written:
            return
        for index, (node, value) in enumerate(self.known.items()):
            if all(user in self.known or user.op == "output" for user in node.users):
                continue
            name, graph = f"constant_{index}", node.graph
            self.module.register_buffer(name, value)  # type: ignore[operator]
            with graph.inserting_before(node):
                constant = graph.get_attr(name)
            node.replace_all_uses_with(constant, lambda user: user.op != "output")

    def run_node(self, n: torch.fx.Node) -> Any:
        """As always; fillers, and what is made of known values only, are noted."""
        result, given = super().run_node(n), n.all_input_nodes
        self.written |= _has(n, "writes") and any(each in self.known for each in given)
        fills = getattr(n.target, "overloadpacket", None) in FILLERS
        follows = bool(given) and all(each in self.known for each in given)
        if _has(n, "pure") and isinstance(result, Tensor) and (fills or follows):
            self.known[n] = result
        return result


def _direct(graph: torch.fx.GraphModule, arguments: Sequence[Tensor]) -> torch.fx.GraphModule:
    """Operations by torch's own bindings, which parse their arguments faster, where these give the
    very same.
    """
    lean, bindings = copy.deepcopy(graph), torch._C._VariableFunctions  # type: ignore[attr-defined]
    for node in lean.graph.nodes:
        if _has(node, "pure") and not node.kwargs:
            node.target = getattr(bindings, node.target.overloadpacket.__name__, node.target)
    lean.recompile()

    def run(each: torch.fx.GraphModule) -> list[Tensor]:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return each(*(t.detach().clone() for t in arguments))

    wanted = run(graph)
    try:
        found = run(lean)
    except (TypeError, RuntimeError):  # a binding without this overload
        return graph
    same = all(
        torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)
        for a, b in zip(wanted, found, strict=True)
    )
    return lean if same else graph
