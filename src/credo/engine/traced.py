"""A function of tensors as the list of operations it was when it ran first: none of the Python between them is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo.core.errors import SettingError
from credo.core.seeds import LOCK

Function = Callable[..., Any]


@final
class Traced:
    """``function(*tensors)``, derivatives included, recorded once per ``key`` and shape of its arguments and replayed from then on.

    What Python decided while it was recorded stays decided: a network that tosses coins outside torch would toss them once. Arguments that the
    function changes in place are changed by the replay too, but not by the recording, which also leaves the random state as it was.
    """

    def __init__(self) -> None:
        self.graphs: dict[Any, tuple[torch.fx.GraphModule, pytree.TreeSpec]] = {}

    def __call__(self, key: Any, function: Function, *arguments: Any) -> Any:
        """Replay, after recording where there is nothing to replay."""
        flat, spec = pytree.tree_flatten(arguments)
        known = (key, spec, *(t.shape for t in flat), *(t.dtype for t in flat))
        if known not in self.graphs:
            self.graphs[known] = _record(function, flat, spec)
        graph, shape = self.graphs[known]
        return pytree.tree_unflatten(graph(*flat), shape)


def _record(function: Function, flat: list[Tensor], spec: pytree.TreeSpec) -> tuple[torch.fx.GraphModule, pytree.TreeSpec]:
    from torch.fx.experimental.proxy_tensor import make_fx

    found: list[pytree.TreeSpec] = []

    def run(*tensors: Tensor) -> list[Tensor]:
        leaves, shape = pytree.tree_flatten(function(*pytree.tree_unflatten(tensors, spec)))
        found.append(shape)
        return leaves

    with LOCK, torch.random.fork_rng(devices=[]):
        try:
            graph = make_fx(run)(*(t.detach().clone() for t in flat))
            graph = torch.compile(graph, fullgraph=True, dynamic=False)
        except Exception as error:
            raise SettingError(
                f"compile=True: the passes of this network cannot be traced ({str(error).splitlines()[0]}); use compile=False."
            ) from error
    return graph, found[-1]
