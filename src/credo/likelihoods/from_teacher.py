"""What a network with one likelihood can learn of a teacher with any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from credo.core.errors import DataError, SettingError

if TYPE_CHECKING:
    from credo.likelihoods.base import Likelihood


def outputs_for_teacher(student: Likelihood, teacher: Likelihood, num_outputs: int) -> int:
    """Outputs F of the student's network for a teacher with ``num_outputs``; refused where y is of
    another kind.
    """
    if (teacher.metric_family, teacher.discrete) != (student.metric_family, student.discrete):
        raise SettingError(
            f"The {student.name} likelihood describes {_kind(student)}, but the teacher's, "
            f"{teacher.name}, {_kind(teacher)}; "
            f"use one of the same kind, such as {teacher.student().name!r}."
        )
    return student.num_outputs(torch.zeros(1, teacher.target_dim(num_outputs)))


def _kind(likelihood: Likelihood) -> str:
    return f"{'discrete' if likelihood.discrete else 'continuous'} {likelihood.metric_family}"


def drawn_targets(
    student: Likelihood, outputs: Tensor, teacher: Likelihood, generator: torch.Generator | int
) -> Tensor:
    """One y from each of the teacher's draws ``(S, N, F)``: ``(N, S)`` or ``(N, S, D)``."""
    drawn = teacher.sample(outputs, generator)
    try:
        y = student.check_targets(drawn.flatten(0, 1))
    except DataError as error:
        raise DataError(
            f"The teacher's {teacher.name} likelihood predicts y that the student's cannot "
            f"take ({error}); give the student "
            f"likelihood={teacher.student().name!r}."
        ) from error
    return y.unflatten(0, drawn.shape[:2]).transpose(0, 1)
