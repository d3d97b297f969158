"""Binary labels from logits, one or several per datum."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Distribution, Independent
from torch.nn.functional import softplus

from credo.core.errors import DataError, SettingError
from credo.likelihoods.base import likelihoods, refuse_constant
from credo.likelihoods.categorical import LabelLikelihood
from credo.likelihoods.mixtures import make_generator, over_data
from credo.likelihoods.target_checks import binary_targets, real_targets, unit_targets

#: With more labels than this their 2^D joint outcomes are drawn instead of enumerated.
EXACT_LABELS = 8


@likelihoods.register("bernoulli")
class Bernoulli(LabelLikelihood):
    """p(y_d = 1 given f) = sigmoid(f_d), labels independent given f: targets ``(N,)`` for one
    output, ``(N, D)`` for several.

    Grey values between 0 and 1 are refused: ``ContinuousBernoulli`` is the likelihood for those.
    With ``grey=True`` they are taken, and a constant column too (the border of images), as much
    published work on images does: sum_d y_d f_d - log(1 + exp f_d) is then minus a cross-entropy
    and not a log density, for exp of it does not integrate to one over [0, 1]
    (``ContinuousBernoulli`` is the normalised form). Use it to compare with such work; its values
    compare with no other likelihood's.
    """

    name: ClassVar[str] = "bernoulli"

    def __init__(self, grey: bool = False) -> None:
        if not isinstance(grey, bool):
            raise SettingError(f"Bernoulli: grey={grey!r} is not valid; expected True or False.")
        super().__init__(grey=grey)
        self.grey = grey

    def forward(self, outputs: Tensor) -> Distribution:
        """``Bernoulli`` with batch shape ``(..., N)``; event shape ``()`` for one output, else
        ``(D,)``.
        """
        if outputs.shape[-1] == 1:
            return TorchBernoulli(logits=outputs.squeeze(-1), validate_args=False)
        return Independent(self.marginals(outputs), 1, validate_args=False)

    def check_targets(self, y: Any) -> Tensor:
        """Zeros and ones (with ``grey``: numbers from 0 to 1) as floats, ``(N,)`` or ``(N, D)``."""
        if self.grey:
            y = unit_targets(y, self.name)
            return y.squeeze(-1) if y.shape[1] == 1 else y
        y = real_targets(y, self.name)
        between = (y > 0) & (y < 1)
        if bool(between.any()):
            row, column = between.nonzero()[0].tolist()
            raise DataError(
                f"{self.name}: the target in row {row}, column {column} is "
                f"{y[row, column].item()}; expected 0 or 1. For grey values "
                "use ContinuousBernoulli(), a density, or Bernoulli(grey=True), a cross-entropy."
            )
        return binary_targets(y, self.name)

    def check_training_targets(self, y: Any) -> Tensor:
        """``check_targets`` with both values in every column; with ``grey`` it is enough that not
        all rows are equal.
        """
        y = self.check_targets(y)
        if self.grey and bool((y != y[:1]).any()):
            return y
        return refuse_constant(y, self.name, "values that vary" if self.grey else "both 0 and 1")

    def num_outputs(self, y: Tensor) -> int:
        """One logit per label."""
        return y.shape[1] if y.dim() > 1 else 1

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """sum_d y_d f_d - log(1 + exp f_d), ``(..., N)``."""
        y = y.unsqueeze(-1) if outputs.shape[-1] == 1 else y
        return (y.to(outputs.dtype) * outputs - softplus(outputs)).sum(-1)

    def soft_log_prob(self, outputs: Tensor, soft: Tensor) -> Tensor:
        """sum_d p_d f_d - log(1 + exp f_d), ``(..., N)``, for probabilities p ``(N, D)``."""
        return (soft.to(outputs.dtype) * outputs - softplus(outputs)).sum(-1)

    def information(self, outputs: Tensor) -> Tensor:
        """p (1 - p) on the diagonal."""
        return torch.diag_embed(torch.sigmoid(outputs) * torch.sigmoid(-outputs))

    def probs(self, outputs: Tensor) -> Tensor:
        """sigmoid(f), ``(..., N, D)``."""
        return outputs.sigmoid()

    def marginals(self, outputs: Tensor) -> Distribution:
        """``Bernoulli`` with batch shape ``(..., N, D)``."""
        return TorchBernoulli(logits=outputs, validate_args=False)

    def marginal_entropy(self, outputs: Tensor) -> Tensor:
        """-p log p - (1 - p) log(1 - p) of each label's mean probability, ``(..., N, D)``."""
        entr = torch.special.entr
        return entr(outputs.sigmoid().mean(0)) + entr((-outputs).sigmoid().mean(0))

    def mixture_entropy(self, outputs: Tensor) -> Tensor:
        """Entropy of all D labels together, ``(N,)``: exact over the 2^D outcomes up to D = 8,
        drawn with a fixed seed beyond.
        """
        dim = outputs.shape[-1]
        if dim == 1 or dim > EXACT_LABELS:
            return super().mixture_entropy(outputs)
        outcomes = torch.tensor(
            list(itertools.product((0.0, 1.0), repeat=dim)),
            dtype=outputs.dtype,
            device=outputs.device,
        )

        def part(outputs: Tensor) -> Tensor:
            y = outcomes.reshape(-1, *(1,) * (outputs.dim() - 1), dim)
            return torch.special.entr(self.log_prob(outputs, y).exp().mean(1)).sum(0)

        return over_data(part, outputs, len(outcomes), -1)

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor:
        """Zeros and ones, ``(..., N)`` for one output, else ``(..., N, D)``."""
        y = torch.bernoulli(
            outputs.detach().sigmoid(), generator=make_generator(outputs, generator)
        )
        return y.squeeze(-1) if outputs.shape[-1] == 1 else y

    def label(self, probs: Tensor) -> Tensor:
        """1 where p > 1/2, as int64: ``(N,)`` for one label, else ``(N, D)``."""
        label = (probs > 0.5).long()
        return label.squeeze(-1) if probs.shape[-1] == 1 else label

    def label_table(self, probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Every label as a two-class problem: ``(N D, 2)`` and ``(N D,)``."""
        p = probs.flatten()
        return torch.stack([1.0 - p, p], -1), y.flatten().long()
