"""Labels without an order: what their likelihoods share, and class labels from logits."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution
from torch.distributions import Categorical as TorchCategorical

from credo.core.errors import CredoError, DataError, SettingError
from credo.likelihoods.base import Likelihood, likelihoods, refuse, target_tensor
from credo.likelihoods.mixtures import make_generator


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


@likelihoods.register("categorical")
class Categorical(LabelLikelihood):
    """p(y = c given f) = softmax(f)_c for labels 0..C-1.

    Without ``num_classes`` the number of classes is the largest training label plus one, which is
    wrong when the last class is missing from the training data: give it then. Fails on one-hot
    targets and on a single class.
    """

    name: ClassVar[str] = "categorical"
    latents_per_target: ClassVar[int | None] = None
    one_of_classes: ClassVar[bool] = True
    varying: ClassVar[str] = "at least two classes"

    def __init__(self, num_classes: int | None = None) -> None:
        if num_classes is not None and (
            isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2
        ):
            raise SettingError(
                f"Categorical: num_classes={num_classes!r} is not valid; expected a whole number "
                "from 2 or None."
            )
        super().__init__(num_classes=num_classes)
        self.num_classes = num_classes

    def forward(self, outputs: Tensor) -> Distribution:
        """``torch.distributions.Categorical`` with batch shape ``(..., N)``."""
        return TorchCategorical(logits=outputs, validate_args=False)

    def check_targets(self, y: Any) -> Tensor:
        """Class indices ``(N,)`` as int64, from 0 and below ``num_classes`` where that is given;
        ``(N, 1)`` is accepted.
        """
        y = target_tensor(y, self.name)
        y = y.squeeze(-1) if y.dim() == 2 and y.shape[1] == 1 else y
        if y.dim() != 1:
            raise DataError(
                f"{self.name}: the targets have shape {tuple(y.shape)}; expected class indices "
                "of shape (N,), not one-hot rows."
            )
        top = "" if self.num_classes is None else f" below {self.num_classes}"
        bad = (~y.isfinite()) | (y < 0) | (y != y.floor()) if y.is_floating_point() else y < 0
        refuse(
            bad | (y >= self.num_classes) if self.num_classes is not None else bad,
            y,
            self.name,
            f"a class index 0, 1, ...{top}",
        )
        return y.long()

    def num_outputs(self, y: Tensor) -> int:
        """C: ``num_classes`` or the largest label plus one."""
        return self.num_classes if self.num_classes is not None else max(int(y.max()) + 1, 2)

    def accepts(self, num_outputs: int, y: Tensor) -> bool:
        """Every label needs an output; outputs without a label are fine."""
        return (
            int(y.max()) < num_outputs
            if self.num_classes is None
            else num_outputs == self.num_classes
        )

    def target_dim(self, num_outputs: int) -> int:
        """One label per datum."""
        return 1

    def information(self, outputs: Tensor) -> Tensor:
        """diag(p) - p p^T."""
        probs = outputs.softmax(-1)
        return torch.diag_embed(probs) - probs.unsqueeze(-1) * probs.unsqueeze(-2)

    def information_root(self, outputs: Tensor) -> Tensor:
        """``(..., N, C, C - 1)``: adding a constant to all logits changes nothing, so the
        information has rank C - 1.
        """
        return softmax_root(outputs.softmax(-1))

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """f_y - logsumexp(f), ``(..., N)``."""
        log_p = torch.log_softmax(outputs, -1)
        if y.shape == outputs.shape[:-1]:  # the common case, without the cost of broadcasting
            return log_p.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
        shape = torch.broadcast_shapes(y.shape, outputs.shape[:-1])
        return log_p.expand(*shape, -1).gather(-1, y.long().expand(shape).unsqueeze(-1)).squeeze(-1)

    def soft_log_prob(self, outputs: Tensor, soft: Tensor) -> Tensor:
        """sum_c p_c log softmax(f)_c, ``(..., N)``, for probabilities p ``(N, C)``."""
        return (soft.to(outputs.dtype) * torch.log_softmax(outputs, -1)).sum(-1)

    def probs(self, outputs: Tensor) -> Tensor:
        """softmax(f), ``(..., N, C)``."""
        return torch.softmax(outputs, -1)

    def marginals(self, outputs: Tensor) -> Distribution:
        """The indicator of each class: ``Bernoulli`` with batch shape ``(..., N, C)``."""
        return Bernoulli(probs=self.probs(outputs), validate_args=False)

    def marginal_entropy(self, outputs: Tensor) -> Tensor:
        """-sum_c p_c log p_c of the mean probabilities, ``(..., N, 1)``."""
        return torch.special.entr(self.probs(outputs).mean(0)).sum(-1, keepdim=True)

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor:
        """Labels ``(..., N)`` as int64: the largest logit after Gumbel noise."""
        noise = torch.empty_like(outputs).exponential_(generator=make_generator(outputs, generator))
        return (outputs - noise.log()).argmax(-1)

    def label(self, probs: Tensor) -> Tensor:
        """argmax_c p_c, ``(N,)``."""
        return probs.argmax(-1)

    def label_table(self, probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """As they are: ``(N, C)`` and ``(N,)``."""
        return probs, y


def softmax_root(probs: Tensor) -> Tensor:
    """R ``(..., C, C - 1)`` with R R^T = diag(p) - p p^T.

    diag(sqrt p) - p sqrt(p)^T is a root that maps sqrt(p) to zero; a reflection that turns sqrt(p)
    into the first axis puts that into its first column, which is left out.
    """
    half = probs.sqrt()
    root = torch.diag_embed(half) - probs.unsqueeze(-1) * half.unsqueeze(-2)
    sign = torch.where(half[..., :1] < 0, -1.0, 1.0).to(half)
    mirror = torch.cat([half[..., :1] + sign, half[..., 1:]], -1)  # sqrt(p) has length one
    mirror = mirror / mirror.norm(dim=-1, keepdim=True)
    turned = root - 2.0 * (root @ mirror.unsqueeze(-1)) * mirror.unsqueeze(-2)
    return turned[..., 1:]
