"""Put draws and slots into a shell for one forward pass, and keep them there through ``backward``.

A slot stands where a random weight would be and lets the posterior family meet the linear map that
uses it. It is a NaN tensor of the parameter's shape. Known linear maps are handed to the estimator;
reading shape or dtype is free; anything else raises :class:`Replan`, so that a weight is never
silently its mean. A use that escapes Python shows as NaN in the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from credo.core.errors import NetworkError
from credo.core.linear_map import MEETINGS, LinearMap, bind
from credo.core.seeds import Ambient, Noise
from credo.core.shell import Shell
from credo.core.sites import Site
from credo.posteriors import Draw, Posterior
from credo.posteriors.normal_inverse_gamma import NOISE

if TYPE_CHECKING:
    from credo.estimators.base import Estimator

LIKELIHOOD = NOISE.partition("/")[0] + "/"

Meet = Callable[[LinearMap, Tensor, str, Any], Tensor]


def with_masks(sites: Mapping[str, Site], posterior: Posterior) -> dict[str, Site]:
    """The sites, and those of the masks that the posterior covers."""
    out = dict(sites)
    for family in posterior.factors:
        like = next(family.parameters(), None)
        for name, shape in family.masks.items():
            assert like is not None
            out[name] = Site(
                name,
                name.rpartition(".")[0],
                torch.Size(shape),
                like.dtype,
                like.device,
                fan_in=1,
                linear=True,
            )
    return out


class Replan(Exception):
    """These sites met an operation without a rule: draw them as weights."""

    def __init__(self, names: set[str], why: str) -> None:
        super().__init__(f"{', '.join(sorted(names))}: {why}")
        self.names = names


def reads(name: str) -> Any:
    """What torch calls when an attribute of a tensor is read."""
    return getattr(Tensor, name).__get__


#: Reading these of a tensor says nothing of its numbers.
METADATA: frozenset[Any] = frozenset(
    [
        reads(n)
        for n in (
            "shape",
            "dtype",
            "device",
            "ndim",
            "layout",
            "requires_grad",
            "is_cuda",
            "is_nested",
            "is_sparse",
        )
    ]
    + [
        Tensor.size,
        Tensor.dim,
        Tensor.numel,
        Tensor.is_floating_point,
        Tensor.is_complex,
        Tensor.get_device,
        Tensor.element_size,
    ]
)


class Slot(Tensor):
    """The stand-in of one random parameter; made by :func:`make_slot`."""

    site: str
    meet: Meet | None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Route a known linear map to the estimator, allow reads, refuse the rest."""
        kwargs = kwargs or {}
        if func in MEETINGS:
            op, x, w, b = bind(func, args, kwargs)
            if isinstance(w, Slot) and not isinstance(x, Slot) and w.meet is not None:
                return w.meet(op, x, w.site, b.site if isinstance(b, Slot) else b)
        if func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        raise Replan(
            _names(args) | _names(tuple(kwargs.values())),
            f"no rule for {getattr(func, '__name__', func)}",
        )


def make_slot(site: str, shape: torch.Size, like: Tensor, meet: Meet | None) -> Slot:
    """A NaN of the given shape that costs no memory; without ``meet`` every use of it raises."""
    slot = (
        torch.full((), float("nan"), dtype=like.dtype, device=like.device)
        .expand(shape)
        .as_subclass(Slot)
    )
    slot.site = site
    slot.meet = meet
    return slot


def _names(value: Any) -> set[str]:
    if isinstance(value, Slot):
        return {value.site}
    if isinstance(value, (tuple, list)):
        return {name for item in value for name in _names(item)}
    return set()


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
    for draw, family in zip(draws, posterior.factors, strict=True):
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
