"""One step of all members of a flock, on their data as they are or also on the worst neighbours of
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo.core.errors import SettingError
from credo.core.tree import leaves, take
from credo.data.source import Source
from credo.engine.step import Capturable
from credo.engine.training_loop import MakeOptimizer
from credo.estimators import estimators, make_plan
from credo.methods.ensembles.parts.members import Flock


class FlockStep(Capturable):
    """Gradients of every member's own loss, then one step of an optimizer that moves every number
    by itself.

    With ``reach``, a tree like an input: half of the data term is taken at x + reach * sign(slope
    of the member's nll at x).
    """

    def __init__(
        self, flock: Flock, optimizer: torch.optim.Optimizer, num_data: int, reach: Any = None
    ) -> None:
        self.flock, self.optimizer, self.num_data, self.reach = flock, optimizer, num_data, reach
        self.device, self.taxes, self._checked = flock.model.device, flock.taxes(), False
        self.parameters = list(flock.parameters())

    def __call__(self, x: Any, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """One step on one batch per member."""
        self.prepare(x)
        return self.run(x, y, weight / self.num_data)

    def run(self, x: Any, y: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """Pull, then move; the nll of the batch as it is, averaged over members.

        The prior's part is reported by the flock.
        """
        for parameter in self.parameters:  # what zero_grad does, at a tenth of its price
            parameter.grad = None
        share = 1.0 / self.flock.examples(y)
        if self.reach is None:
            nll, _ = self.flock.pull(x, y, share)
        else:
            nll, slope = self.flock.pull(x, y, share / 2, keep=True)
            self.flock.pull(_worse(x, slope, self.reach), y, share / 2)
        if self.taxes:
            (self.flock.tax(self.taxes) * scale).sum().backward()
        self.optimizer.step()
        return nll.mean(), torch.zeros_like(nll[0])

    def prepare(self, x: Any) -> None:
        """Once: refuse parameters that never reach the output, and checkpoints that hide them."""
        if self._checked:
            return
        flock, model = self.flock, self.flock.model
        point = model.point_posterior({n: v.detach()[0] for n, v in flock.values().items()})
        buffers = {n: b[0] for n, b in flock.buffers_().items()}
        make_plan(
            model.shell(),
            point,
            model.random,
            estimators["weights"],
            take(x, 0),
            buffers,
            self.device,
        )
        self._checked = True

    def forget(self) -> None:
        """Drop the last pass."""
        self.flock.forget()
        for parameter in self.parameters:
            parameter.grad = None

    def held(self) -> Iterator[Tensor]:
        """Members and their buffers."""
        yield from self.parameters
        yield from self.flock.buffers_().values()


def _worse(x: Any, slope: Any, reach: Any) -> Any:
    def move(value: Any, gradient: Any, far: Any) -> Any:
        return value + far * gradient.sign() if value.is_floating_point() else value

    return pytree.tree_map(move, x, slope, reach)


def reaches(source: Source, share: float) -> Any:
    """``share`` of the range that every input feature has in the data, as a tree like one input."""
    low = high = None
    for x, _ in source(None, 4096):
        small, large = (
            pytree.tree_map(lambda t: t.amin(0), x),
            pytree.tree_map(lambda t: t.amax(0), x),
        )
        low = small if low is None else pytree.tree_map(torch.minimum, low, small)
        high = large if high is None else pytree.tree_map(torch.maximum, high, large)
    if not any(leaf.is_floating_point() for _, leaf in leaves(low, "x")):
        raise SettingError(
            f"adversarial={share}: neighbours of inputs need real numbers, and these inputs are "
            "whole; use 0."
        )
    return pytree.tree_map(lambda a, b: (b - a) * share if a.is_floating_point() else a, low, high)


def moving(kind: str, momentum: float) -> MakeOptimizer[Flock]:
    """Fused Adam, or SGD with momentum; normal priors are their weight decay, the gradient of -log
    p(w) / N.
    """

    def make(flock: Flock, lr: float | Tensor, num_data: int) -> torch.optim.Optimizer:
        decays, groups = flock.decays(), {}
        for name, value in flock.values().items():
            groups.setdefault(decays.get(name, 0.0) / num_data, []).append(value)
        groups.setdefault(0.0, []).extend(flock.voices().values())
        table = [
            {"params": params, "weight_decay": decay} for decay, params in groups.items() if params
        ]
        if kind == "sgd":
            return torch.optim.SGD(table, lr=lr, momentum=momentum, fused=True)  # type: ignore
        return torch.optim.Adam(table, lr=lr, fused=True, capturable=isinstance(lr, Tensor))

    return make
