"""A function of tensors as the list of operations it was when it ran first: none of the Python between them is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.seeds import LOCK

Function = Callable[..., list[Tensor]]


@final
class Traced:
    """``function(*fixed, *varying)``, derivatives included, recorded once per ``key`` and shapes, and replayed from then on.

    What Python decided while it was recorded stays decided: a network that tosses coins outside torch would toss them once. Arguments that the
    function changes in place are changed by the replay too, but not by the recording, which also leaves the random state as it was.
    ``fixed`` are always the same tensors, whatever their values.
    """

    def __init__(self, fixed: Sequence[Tensor]) -> None:
        self.fixed = list(fixed)
        self.graphs: dict[Any, Function] = {}

    def __call__(self, key: Any, function: Function, varying: Sequence[Tensor]) -> list[Tensor]:
        """Replay, after recording where there is nothing to replay."""
        known = (key, *(tensor.shape for tensor in varying))
        if known not in self.graphs:
            self.graphs[known] = _record(function, [*self.fixed, *varying])
        with torch.no_grad():
            return self.graphs[known](*self.fixed, *varying)


def _record(function: Function, arguments: list[Tensor]) -> Function:
    from torch.fx.experimental.proxy_tensor import make_fx

    with LOCK, torch.random.fork_rng(devices=[]):
        try:
            graph = make_fx(function)(*(t.detach().clone() for t in arguments))
        except Exception as error:
            raise SettingError(
                f"compile=True: the passes of this network cannot be traced ({str(error).splitlines()[0]}); use compile=False."
            ) from error
    return _lean(graph).forward


def _lean(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Without operations that give what they are given: vmap and autograd leave one for every tensor that passes them."""
    for node in list(graph.graph.nodes):
        idle = node.target is torch.ops.aten.detach.default
        idle |= node.target is torch.ops.aten.permute.default and list(node.args[1]) == sorted(node.args[1])
        if idle:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.recompile()
    return graph
