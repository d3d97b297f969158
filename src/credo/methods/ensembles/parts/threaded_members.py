"""Members of a flock that learn apart from each other, on a thread each: what a CPU does best.

A stack of members streams through memory at every step. One member alone, for several steps on end,
stays in its core's cache, and cores work at different members instead of sharing one product.
Nothing is computed differently: a member's steps are its own in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo.core.errors import SettingError
from credo.core.recorded_pass import Function, draws, record
from credo.data.source import Source
from credo.engine.batches import own_batches, own_orders
from credo.engine.step import GraphStep, Step
from credo.engine.training_loop import MakeStep
from credo.methods.ensembles.parts.members import Flock
from credo.methods.ensembles.parts.members_step import FlockStep

STRIDE = 16  # steps of one member before the next has its turn
# parameters times examples in a batch from which products take longer than the Python around them
HEAVY = 2_000_000


class Group(NamedTuple):
    """A member's part of a group of the optimizer: which leaves, these parameters, both moments,
    and what the kernel is told.
    """

    places: list[int]
    params: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]
    settings: dict[str, Any]


class Member(NamedTuple):
    """Views of one member's parameters, buffers and state of Adam; ``steps`` counts those it has
    taken.
    """

    leaves: list[Tensor]
    buffers: list[Tensor]
    groups: list[Group]
    steps: Tensor


@final
class Apart(Step):
    """Adam's steps of every member by itself, ``STRIDE`` at a time, recorded once and replayed on
    as many threads as torch has.

    Data that stream, networks so small that Python takes longer than their products, and networks
    that draw numbers while they train, which threads would draw in any order, go through ``whole``
    instead.
    """

    def __init__(self, whole: FlockStep) -> None:
        self.whole, self.flock, self.optimizer = whole, whole.flock, whole.optimizer
        self.inputs: list[Tensor] = []  # the data, leaf by leaf, targets last
        self.members: list[Member] = []
        self.passes: dict[int, Function] = {}  # by examples in a batch
        self.pool: ThreadPoolExecutor | None = None
        self.flock.feed = self.feed

    @staticmethod
    def suits(step: FlockStep) -> bool:
        """Members, moved by Adam, whose pull is that of their data and their decay alone."""
        return (
            step.flock.count > 1
            and isinstance(step.optimizer, torch.optim.Adam)
            and step.reach is None
            and not step.taxes
        )

    def feed(
        self, source: Source, orders: Sequence[torch.Generator], batch_size: int | None
    ) -> Iterator[tuple[Any, Tensor]]:
        """Where the batches of the next ``STRIDE`` steps lie, ``(K, STRIDE B)``, in place of the
        data: each thread fetches its own.
        """
        arrays, self.batch = source.arrays(), batch_size or source.num_data
        self.members = [self._member(k) for k in range(self.flock.count)]
        if arrays is None or not self._ready(*arrays):
            if self.flock.traced is None:
                self.flock.record()
            yield from own_batches(source, orders, batch_size)
            return
        threads = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(
                threads, initializer=torch.set_num_threads, initargs=(1,)
            ) as self.pool:
                for rows in own_orders(orders, len(arrays[1]), arrays[1].device).split(
                    STRIDE * self.batch, 1
                ):
                    yield rows, rows
        finally:
            self.pool = None
            torch.set_num_threads(
                threads
            )  # threads to come inherit the number that was set last, wherever

    def __call__(self, x: Any, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """All steps of a stride, or one of all members at once; the nll summed over batches and
        averaged over members.
        """
        if self.pool is None:
            return self.whole(x, y, weight)
        jobs = [
            self.pool.submit(self._go, member, rows)
            for member, rows in zip(self.members, x, strict=True)
        ]
        nll = torch.stack([fit_job.result() for fit_job in jobs]).mean()
        for state in self.optimizer.state.values():
            state["step"].copy_(self.members[0].steps)
        return nll, torch.zeros_like(nll)

    @torch.no_grad()
    def _go(self, member: Member, rows: Tensor) -> Tensor:
        total = torch.zeros(())
        for part in rows.split(self.batch):
            batch = [leaf.index_select(0, part) for leaf in self.inputs]
            nll, *found = self.passes[len(part)](*member.leaves, *member.buffers, *batch)
            self._move(member, found)
            total = total + nll
        return total

    def _move(self, member: Member, found: list[Tensor]) -> None:
        for buffer, value in zip(member.buffers, found[len(member.leaves) :], strict=True):
            if value.data_ptr() != buffer.data_ptr():
                buffer.copy_(value)
        member.steps.add_(1)
        for group in member.groups:
            grads, steps = (
                [found[place] for place in group.places],
                [member.steps] * len(group.places),
            )
            torch._fused_adam_(  # type: ignore[attr-defined]
                group.params, grads, group.first, group.second, [], steps, **group.settings
            )

    def _member(self, k: int) -> Member:
        """Views, made anew every epoch: a resumed optimizer has other tensors than it was made
        with, and its learning rate moves.
        """
        leaves = [*self.flock.stacked, *self.flock.noise]
        place = {id(leaf): index for index, leaf in enumerate(leaves)}
        own, groups, steps = [leaf.detach()[k] for leaf in leaves], [], torch.zeros(())
        for group in self.optimizer.param_groups:
            states = [self.optimizer.state[p] for p in group["params"]]
            for state, p in zip(states, group["params"], strict=True):
                if not state:
                    state |= {
                        "step": torch.zeros(()),
                        "exp_avg": torch.zeros_like(p),
                        "exp_avg_sq": torch.zeros_like(p),
                    }
                steps = state["step"].clone()
            places = [place[id(p)] for p in group["params"]]
            (beta1, beta2), names = (
                group["betas"],
                ("lr", "weight_decay", "eps", "amsgrad", "maximize"),
            )
            settings = {"beta1": beta1, "beta2": beta2} | {name: group[name] for name in names}
            first, second = (
                [state[key][k] for state in states] for key in ("exp_avg", "exp_avg_sq")
            )
            groups.append(Group(places, [own[index] for index in places], first, second, settings))
        return Member(own, [buffer[k] for buffer in self.flock.buffers_().values()], groups, steps)

    def _ready(self, x: Any, y: Tensor) -> bool:
        """Record passes of both sizes that batches have; whether they can be replayed apart."""
        member, total = self.members[0], len(y)
        if sum(leaf.numel() for leaf in member.leaves) * self.batch < HEAVY:
            return False
        leaves, shape = pytree.tree_flatten(x)
        self.inputs = [*leaves, y]
        self.whole.prepare(pytree.tree_map(lambda leaf: leaf[: self.batch].unsqueeze(0), x))
        for size in {min(self.batch, total), total % self.batch or self.batch} - self.passes.keys():

            def slopes(*tensors: Tensor, share: float = 1.0 / size) -> list[Tensor]:
                return self.flock.slopes(tensors, shape, share, alone=True)

            graph = record(
                slopes, [*member.leaves, *member.buffers, *(leaf[:size] for leaf in self.inputs)]
            )
            if draws(graph):
                return False
            self.passes[size] = graph.forward
        return True


def stepping(reach: Any = None) -> MakeStep[Flock]:
    """How a flock steps; with ``compile`` its passes are recorded, on a GPU the whole step is one
    CUDA graph.
    """

    def make(
        flock: Flock, optimizer: torch.optim.Optimizer, num_data: int, compile: bool | str
    ) -> Step:
        step, graph = (
            FlockStep(flock, optimizer, num_data, reach),
            flock.model.device.type == "cuda",
        )
        if compile == "graph" and not graph:
            raise SettingError(
                "compile='graph' captures the step as a CUDA graph; on a CPU use True or False."
            )
        if not compile:
            return step
        if graph:
            return GraphStep(step)
        if Apart.suits(step):
            return Apart(step)
        flock.record()
        return step

    return make
