"""Put draws and slots into a shell for one forward pass, and keep them there through
``backward``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from credo.core.errors import NetworkError
from credo.core.linear_map import LinearMap
from credo.core.seeds import Ambient, Noise
from credo.core.shell import Shell
from credo.estimators.slot import Replan, make_slot
from credo.posteriors import Draw, Posterior
from credo.posteriors.normal_inverse_gamma import NOISE

if TYPE_CHECKING:
    from credo.estimators.base import Estimator

LIKELIHOOD = NOISE.partition("/")[0] + "/"


@dataclass(frozen=True)
class Plan:
    """Which sites are met by linear maps (all others are drawn as weights) and where their examples
    lie.
    """

    example_axis: Mapping[str, int] = field(default_factory=dict)
    bias: frozenset[str] = frozenset()

    @property
    def slots(self) -> frozenset[str]:
        """Weights and biases whose places hold slots."""
        return frozenset(self.example_axis) | self.bias


Watch = Callable[[str, LinearMap, Tensor, Tensor], None]


def place(
    shell: Shell,
    posterior: Posterior,
    estimator: Estimator,
    plan: Plan,
    noise: Noise | None = None,
    folds: Sequence[Any] | None = None,
    watch: Watch | None = None,
) -> list[Draw]:
    """Fill the shell for one pass and return the draws (with their folded KL where asked for).

    Everything shared over the pass is drawn here, before the network runs. The shell is private, so
    nothing is put back: gradient checkpointing finds the same tensors when it recomputes during
    ``backward``.
    """
    noise = noise or Ambient()
    draws = posterior.begin(noise, folds)
    estimator.begin(draws)
    slots = plan.slots if estimator.intercepts else frozenset()
    for draw, family in zip(draws, posterior.members, strict=True):
        drawn = [name for name in family.names if name not in slots]
        if len(drawn) < len(family.names):
            draw.prepare()
        tensors: dict[str, Tensor] = estimator.fill(draw, family, drawn, noise) if drawn else {}
        if len(drawn) == len(family.names) and draw.drawn is None:
            draw.drawn = dict(tensors)
        meet = _meeting(draw, estimator, plan, noise, watch)
        like = next(family.parameters(), None)
        for name in family.names:
            if name in slots:
                assert like is not None
                tensors[name] = make_slot(name, family.shapes[name], like, meet)
        shell.place(
            {name: tensor for name, tensor in tensors.items() if not name.startswith(LIKELIHOOD)}
        )
    return draws


def _meeting(
    draw: Draw, estimator: Estimator, plan: Plan, noise: Noise, watch: Watch | None
) -> Callable[[LinearMap, Tensor, str, Any], Tensor]:
    met: set[str] = set()

    def meet(op: LinearMap, x: Tensor, w: str, b: Any) -> Tensor:
        names = (w, b) if isinstance(b, str) else (w,)
        if watch is None and _first_time():
            if met & set(names):
                raise Replan(met & set(names), "met twice in one pass")
            met.update(names)
        op = op.along_examples(plan.example_axis.get(w))
        out = estimator.meet(draw, op, x, w, b, noise)
        if out is NotImplemented:
            raise Replan({w}, f"no {estimator.name} form")
        if watch is not None:
            for name in names:
                watch(name, op, x, out)
        return out

    return meet


def _first_time() -> bool:
    """False while a compiler traces, and during ``backward``, where checkpointed layers meet their
    weights again.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() == -1


def unused(names: Sequence[str]) -> NetworkError:
    """The error for random parameters that never reach the output."""
    listed = ", ".join(names)
    return NetworkError(
        f"These random parameters never reach the network's output: {listed}. "
        "Leave them out with random=, or check for a network captured in a closure or called "
        "through another object."
    )
