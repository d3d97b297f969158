"""Members that learn on a thread each: the fastest way on a CPU.

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

from credo.core.recorded_pass import Function, draws, record
from credo.core.tree import flatten, map_leaves
from credo.data.source import Source
from credo.engine.batches import own_batches, own_orders
from credo.engine.step import Step
from credo.methods.ensembles.parts.members_step import MembersStep

STRIDE = 16  # steps of one member before the next has its turn
# parameters times examples in a batch from which products take longer than the Python around them
HEAVY = 2_000_000


class AdamGroup(NamedTuple):
    """One member's part of a parameter group of Adam: the places of its parameters among all that
    is learned, the parameters, both moments, and what the kernel is told.
    """

    places: list[int]
    params: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]
    settings: dict[str, Any]


class MemberViews(NamedTuple):
    """Views of one member's parameters, buffers and state of Adam; ``steps`` counts those it has
    taken.
    """

    learned: list[Tensor]
    buffers: list[Tensor]
    groups: list[AdamGroup]
    steps: Tensor


@final
class ThreadedMembers(Step):
    """Adam's steps of every member by itself, ``STRIDE`` at a time, recorded once and replayed on
    as many threads as torch has.

    Data that stream, networks so small that Python takes longer than their products, and networks
    that draw numbers while they train, which threads would draw in any order, go through the step
    ``at_once`` instead. Measured in ``cpu_ensembles.md``.
    """

    def __init__(self, at_once: MembersStep) -> None:
        self.at_once, self.members, self.optimizer = at_once, at_once.members, at_once.optimizer
        self.inputs: list[Tensor] = []  # the data, leaf by leaf, targets last
        self.views: list[MemberViews] = []
        self.passes: dict[int, Function] = {}  # by examples in a batch
        self.pool: ThreadPoolExecutor | None = None
        self.members.feed = self.feed

    @staticmethod
    def suits(step: MembersStep) -> bool:
        """Several members, moved by Adam, with gradients of their data and weight decay alone."""
        return (
            step.members.count > 1
            and isinstance(step.optimizer, torch.optim.Adam)
            and step.adversarial_steps is None
            and not step.penalties
        )

    def feed(
        self, source: Source, orders: Sequence[torch.Generator], batch_size: int | None
    ) -> Iterator[tuple[Any, Tensor]]:
        """Where the batches of the next ``STRIDE`` steps lie, ``(K, STRIDE B)``, in place of the
        data: each thread fetches its own.
        """
        arrays, self.batch = source.arrays(), batch_size or source.num_data
        self.views = [self._views(k) for k in range(self.members.count)]
        if arrays is None or not self._ready(*arrays):
            if self.at_once.gradients.recorded is None:
                self.at_once.gradients.record()
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
            return self.at_once(x, y, weight)
        running = [
            self.pool.submit(self._stride, views, rows)
            for views, rows in zip(self.views, x, strict=True)
        ]
        nll = torch.stack([member.result() for member in running]).mean()
        for state in self.optimizer.state.values():
            state["step"].copy_(self.views[0].steps)
        return nll, torch.zeros_like(nll)

    @torch.no_grad()
    def _stride(self, views: MemberViews, rows: Tensor) -> Tensor:
        """One member's steps on these rows of the data; the sum of its nll."""
        total = torch.zeros(())
        for part in rows.split(self.batch):
            batch = [leaf.index_select(0, part) for leaf in self.inputs]
            nll, *found = self.passes[len(part)](*views.learned, *views.buffers, *batch)
            self._move(views, found)
            total = total + nll
        return total

    def _move(self, views: MemberViews, found: list[Tensor]) -> None:
        """Adam's step along these gradients, which the buffers after the pass follow."""
        for buffer, value in zip(views.buffers, found[len(views.learned) :], strict=True):
            if value.data_ptr() != buffer.data_ptr():
                buffer.copy_(value)
        views.steps.add_(1)
        for group in views.groups:
            grads, steps = (
                [found[place] for place in group.places],
                [views.steps] * len(group.places),
            )
            torch._fused_adam_(  # type: ignore[attr-defined]
                group.params, grads, group.first, group.second, [], steps, **group.settings
            )

    def _views(self, k: int) -> MemberViews:
        """Views of member k, made anew every epoch: a resumed optimizer has other tensors than it
        was made with, and its learning rate moves.
        """
        learned = self.members.learned()
        place = {id(leaf): index for index, leaf in enumerate(learned)}
        own, groups, steps = [leaf.detach()[k] for leaf in learned], [], torch.zeros(())
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
            params = [own[index] for index in places]
            groups.append(AdamGroup(places, params, first, second, settings))
        buffers = [buffer[k] for buffer in self.members.buffers_().values()]
        return MemberViews(own, buffers, groups, steps)

    def _ready(self, x: Any, y: Tensor) -> bool:
        """Record passes of both sizes that batches have; whether threads can replay them."""
        views, total = self.views[0], len(y)
        if sum(leaf.numel() for leaf in views.learned) * self.batch < HEAVY:
            return False
        leaves, structure = flatten(x)
        self.inputs = [*leaves, y]
        self.at_once.prepare(map_leaves(lambda leaf: leaf[: self.batch].unsqueeze(0), x))
        for size in {min(self.batch, total), total % self.batch or self.batch} - self.passes.keys():

            def compute(*tensors: Tensor, share: float = 1.0 / size) -> list[Tensor]:
                return self.at_once.gradients.compute(tensors, structure, share, single=True)

            batch = [leaf[:size] for leaf in self.inputs]
            graph = record(compute, [*views.learned, *views.buffers, *batch])
            if draws(graph):
                return False
            self.passes[size] = graph.forward
        return True
