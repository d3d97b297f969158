"""One step of all members, on their data as they are or also on adversarial neighbours of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor

from credo.core.tree import take
from credo.engine.step import Step
from credo.engine.training_loop import MakeOptimizer
from credo.estimators import estimators, make_plan
from credo.methods.ensembles.parts.adversarial import neighbours
from credo.methods.ensembles.parts.member_gradients import MemberGradients
from credo.methods.ensembles.parts.members import Members
from credo.methods.ensembles.parts.members_prior import minus_log_prior


@final
class MembersStep(Step):
    """Gradients of every member's own loss, then one step of an optimizer that moves every number
    by itself.

    With ``adversarial_steps``, a tree like an input: half of the data term is taken at x + steps *
    sign(slope of the member's nll at x). Members at once, in turn, or recorded, as ``gradients``
    says: measured in ``cpu_ensembles.md`` and, as one CUDA graph, in ``h200_ensembles.md``.
    """

    def __init__(
        self,
        gradients: MemberGradients,
        optimizer: torch.optim.Optimizer,
        num_data: int,
        adversarial_steps: Any = None,
    ) -> None:
        self.gradients, self.members = gradients, gradients.members
        self.optimizer, self.num_data = optimizer, num_data
        self.adversarial_steps = adversarial_steps
        self.device, self.penalties = self.members.model.device, self.members.prior.penalties()
        self.parameters = list(self.members.parameters())
        self._checked = False

    def __call__(self, x: Any, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """One step on one batch per member, ``(K, B, ...)``."""
        self.prepare(x)
        return self.run(x, y, weight / self.num_data)

    def run(self, x: Any, y: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """Gradients, then the optimizer; the nll of the batch as it is, averaged over members.

        -log p(w) is reported by the members.
        """
        for parameter in self.parameters:  # what zero_grad does, at a tenth of its price
            parameter.grad = None
        share = 1.0 / self.members.examples(y)
        if self.adversarial_steps is None:
            nll, _ = self.gradients.add(x, y, share)
        else:
            nll, slope = self.gradients.add(x, y, share / 2, at_inputs=True)
            self.gradients.add(neighbours(x, slope, self.adversarial_steps), y, share / 2)
        if self.penalties:
            (minus_log_prior(self.penalties, self.members.values()) * scale).sum().backward()
        self.optimizer.step()
        return nll.mean(), torch.zeros_like(nll[0])

    def prepare(self, x: Any) -> None:
        """Once: refuse parameters that never reach the output, and checkpoints that hide them."""
        if self._checked:
            return
        members, model = self.members, self.members.model
        point = model.point_posterior({n: v.detach()[0] for n, v in members.values().items()})
        buffers = {n: b[0] for n, b in members.buffers_().items()}
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

    def release(self) -> None:
        """Drop the last pass."""
        self.members.release()
        for parameter in self.parameters:
            parameter.grad = None

    def changed_tensors(self) -> Iterator[Tensor]:
        """Members and their buffers."""
        yield from self.parameters
        yield from self.members.buffers_().values()


def members_optimizer(kind: str, momentum: float) -> MakeOptimizer[Members]:
    """Fused Adam, or SGD with momentum; normal priors are their weight decay, the gradient of -log
    p(w) / N.
    """

    def make(members: Members, lr: float | Tensor, num_data: int) -> torch.optim.Optimizer:
        decays, groups = members.prior.weight_decays(), {}
        for name, value in members.values().items():
            groups.setdefault(decays.get(name, 0.0) / num_data, []).append(value)
        groups.setdefault(0.0, []).extend(members.likelihood_params().values())
        table = [
            {"params": params, "weight_decay": decay} for decay, params in groups.items() if params
        ]
        if kind == "sgd":
            return torch.optim.SGD(table, lr=lr, momentum=momentum, fused=True)  # type: ignore
        return torch.optim.Adam(table, lr=lr, fused=True, capturable=isinstance(lr, Tensor))

    return make
