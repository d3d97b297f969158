"""What likelihoods of unordered labels share."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from credo.core.errors import CredoError, SettingError
from credo.likelihoods.base import Likelihood


class LabelLikelihood(Likelihood):
    """Labels: no order, so no quantiles; the reported variance is that of the probabilities across
    draws. Abstract.
    """

    discrete: ClassVar[bool] = True
    metric_family: ClassVar[str] = "labels"

    @abstractmethod
    def probs(self, outputs: Tensor) -> Tensor:
        """Probabilities ``(..., N, C)``."""

    @abstractmethod
    def label(self, probs: Tensor) -> Tensor:
        """The most probable label ``(N,)`` for probabilities ``(N, C)``."""

    @abstractmethod
    def label_table(self, probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities ``(M, C)`` summing to one and labels ``(M,)``."""

    def softened(self, mean: Tensor, var: Tensor) -> Tensor:
        """mean / sqrt(1 + pi var / 8): the logistic function of it is close to the mean of the
        logistic function (MacKay 1992).
        """
        return mean / torch.sqrt(1.0 + (math.pi / 8.0) * var)

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """p and p (1 - p) of each label's indicator, ``(..., N, C)``."""
        p = self.probs(outputs)
        return p, p * (1.0 - p)

    def reported_variance(self, outputs: Tensor) -> Tensor:
        """(1/S) sum_s (p_s - p)^2 per label, ``(N, C)``."""
        return self.mixture_moments(outputs)[2]

    def student_outputs(self, teacher: Likelihood, num_outputs: int) -> int:
        """As many as the teacher has; of another likelihood its labels would mean something else,
        which is a ``SettingError``.
        """
        if teacher.name != self.name:
            raise SettingError(
                f"A student with the {self.name} likelihood cannot state the labels of a teacher "
                f"with the {teacher.name} likelihood; "
                f"use likelihood={teacher.name!r} or leave it out."
            )
        return num_outputs

    def soft_targets(
        self, outputs: Tensor, teacher: Likelihood, generator: torch.Generator | int = 0
    ) -> Tensor:
        """The teacher's mean probabilities ``(N, C)``: all there is to know, and nothing is
        drawn.
        """
        return teacher.probs(outputs).mean(0)

    @abstractmethod
    def soft_log_prob(self, outputs: Tensor, soft: Tensor) -> Tensor:
        """E log p(y given f) over labels of these probabilities ``(N, C)``: ``(..., N)``."""

    def marginal_cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Undefined: labels have no order."""
        raise CredoError(
            f"A cdf of the {self.name} likelihood is undefined because labels have no order; use "
            "probs or log_prob."
        )

    def mixture_quantile(self, outputs: Tensor, q: float) -> Tensor:
        """Undefined: labels have no order."""
        raise CredoError(
            f"Quantiles and intervals of the {self.name} likelihood are undefined because labels "
            "have no order; "
            "use probs, mean or std."
        )
