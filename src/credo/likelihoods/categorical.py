"""Class labels from logits."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution
from torch.distributions import Categorical as TorchCategorical

from credo.core.errors import DataError, SettingError
from credo.likelihoods.base import likelihoods, refuse, target_tensor
from credo.likelihoods.fisher_information import softmax_root
from credo.likelihoods.label_likelihood import LabelLikelihood
from credo.likelihoods.mixtures import make_generator


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


likelihoods.register(Categorical.name)(Categorical)
