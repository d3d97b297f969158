"""What a method that trains several networks says in its ``fit``: where members start, and how a
step of theirs runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.model import Model
from credo.engine.step import CapturedStep, Step, wants_graph
from credo.engine.training_loop import MakeStep
from credo.methods.ensembles.parts.member_gradients import MemberGradients
from credo.methods.ensembles.parts.members import Members, member_seeds
from credo.methods.ensembles.parts.members_step import MembersStep
from credo.methods.ensembles.parts.threaded_members import ThreadedMembers
from credo.methods.ensembles.parts.training_path import TrainingPath


@dataclass(frozen=True)
class MemberSettings:
    """Where members start and what moves them. A method mixes them in before ``DescentSettings``,
    so that ``init`` is this one.
    """

    init: Any = setting(
        "random",
        "Start: 'random' (each member its own), 'pretrained' (all at the network's values), or a "
        "state dict.",
        kind=(str, Mapping),
        choices=("pretrained", "random"),
    )
    optimizer: str = setting("adam", "Optimizer of the members.", choices=("adam", "sgd"))
    momentum: float = setting(0.9, "Momentum of SGD.", ge=0.0, le=0.999)
    vectorise: Any = setting(
        None,
        "Run all members in one vmapped pass; by default unless the network has convolutions, "
        "which are slower so.",
        kind=bool,
    )


def start_members(
    model: Model, fit_job: FitJob, count: int, init: Any, path: TrainingPath | None = None
) -> Members:
    """Members with their own seeds; the first has the fit's. ``path`` gathers them as they go."""
    seeds = member_seeds(fit_job.seed, count)
    return Members(model, [model.start_values(init, seed) for seed in seeds], seeds, path)


def step_maker(vectorise: bool | None = None, adversarial_steps: Any = None) -> MakeStep[Members]:
    """How members step. With ``compile`` their passes are recorded: on a GPU the whole step is one
    CUDA graph, on a CPU members are threaded where that suits.
    """

    def make(
        members: Members, optimizer: torch.optim.Optimizer, num_data: int, compile: bool | str
    ) -> Step:
        gradients = MemberGradients(members, vectorise)
        step = MembersStep(gradients, optimizer, num_data, adversarial_steps)
        if wants_graph(members.model.device, compile):
            return CapturedStep(step)
        if compile and ThreadedMembers.suits(step):
            return ThreadedMembers(step)
        if compile:
            gradients.record()
        return step

    return make
