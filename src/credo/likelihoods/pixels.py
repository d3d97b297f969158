"""Grey levels, each a categorical of its own, from logits."""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, constraints

from credo.core.errors import DataError, NetworkError, SettingError
from credo.likelihoods.base import Likelihood, likelihoods, refuse_constant
from credo.likelihoods.mixtures import make_generator
from credo.likelihoods.target_checks import real_targets


@final
class GreyLevels(Distribution):
    """p(y = l) = softmax(logits)_l over whole numbers l = 0..L-1: logits ``(..., L, D)``, batch
    shape ``(..., D)``.

    Unlike ``torch.distributions.Categorical`` its values are numbers: they have a mean, a variance
    and a cdf.
    """

    arg_constraints = {"logits": constraints.independent(constraints.real, 2)}  # pyright: ignore
    support = constraints.nonnegative_integer  # pyright: ignore  torch declares a property here

    def __init__(self, logits: Tensor, validate_args: bool | None = None) -> None:
        self.logits = torch.log_softmax(logits, -2)
        super().__init__(logits.shape[:-2] + logits.shape[-1:], validate_args=validate_args)

    @property
    def num_levels(self) -> int:
        """L."""
        return self.logits.shape[-2]

    def expand(self, batch_shape: Any, _instance: Any = None) -> GreyLevels:
        *lead, dim = batch_shape
        return GreyLevels(self.logits.expand(*lead, self.num_levels, dim), validate_args=False)

    def _levels(self) -> Tensor:
        return torch.arange(self.num_levels, dtype=self.logits.dtype, device=self.logits.device)

    def _at(self, table: Tensor, level: Tensor) -> Tensor:
        """The entries of a table ``(..., L, D)`` at whole numbers that broadcast with the batch
        shape; no copy of the table.
        """
        *lead, dim = shape = torch.broadcast_shapes(level.shape, self.batch_shape)
        return (
            table.expand(*lead, self.num_levels, dim)
            .gather(-2, level.long().expand(shape).unsqueeze(-2))
            .squeeze(-2)
        )

    @property
    def mean(self) -> Tensor:
        return torch.einsum("...ld,l->...d", self.logits.exp(), self._levels())

    @property
    def variance(self) -> Tensor:
        """sum_l p_l (l - mean)^2; the difference of second moment and squared mean would lose all
        digits at 255.
        """
        gap = self._levels().unsqueeze(-1) - self.mean.unsqueeze(-2)
        return (self.logits.exp() * gap.square()).sum(-2)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log probability of whole numbers from 0 to L - 1."""
        return self._at(self.logits, value)

    def cumulative(self) -> Tensor:
        """P(Y <= l) for every level, ``(..., L, D)``."""
        return self.logits.exp().cumsum(-2)

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y <= y), a step function of any real y: 0 below 0, and 1 from L - 1."""
        top = self.num_levels - 1
        cdf = self._at(self.cumulative(), value.floor().clamp(0, top))
        return torch.where(value < 0, 0.0, torch.where(value >= top, 1.0, cdf))

    def entropy(self) -> Tensor:
        """-sum_l p_l log p_l; with log p_l kept, because the gradient of -p log p in p alone is
        infinite at 0.
        """
        return -(self.logits.exp() * self.logits).sum(-2)

    def draw(self, generator: torch.Generator | None, sample_shape: Any = ()) -> Tensor:
        """Levels as floats, ``(*sample_shape, ..., D)``: the largest logit after Gumbel noise."""
        noise = self.logits.new_empty(*sample_shape, *self.logits.shape).exponential_(
            generator=generator
        )
        return (self.logits.detach() - noise.log()).argmax(-2).to(self.logits.dtype)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.draw(None, sample_shape)


@likelihoods.register("pixels")
class Pixels(Likelihood):
    """p(y_d = l given f) = softmax(f_d)_l over grey levels l = 0..levels-1, pixels independent
    given f: targets ``(N, D)``.

    Outputs are ``(..., N, levels * D)``, level by level: all D logits of level 0 first. Any shape
    of the histogram fits, at the price of ``levels`` outputs per pixel and no notion that
    neighbouring levels are alike. Levels are numbers with an order, so mean, variance, cdf and
    quantiles are those of the level; uncertainty is in nats, as for all discrete outcomes.
    """

    name: ClassVar[str] = "pixels"
    discrete: ClassVar[bool] = True
    metric_family: ClassVar[str] = "values"

    def __init__(self, levels: int = 256) -> None:
        if isinstance(levels, bool) or not isinstance(levels, int) or levels < 2:
            raise SettingError(
                f"Pixels: levels={levels!r} is not valid; expected a whole number from 2, such as "
                "256."
            )
        super().__init__(levels=levels)
        self.levels = levels
        # one number for the class elsewhere, one per object here
        self.latents_per_target = levels  # pyright: ignore

    def forward(self, outputs: Tensor) -> Distribution:
        """Independent ``GreyLevels``: batch shape ``(..., N)``, event shape ``(D,)``."""
        return Independent(self.marginals(outputs), 1, validate_args=False)

    def check_targets(self, y: Any) -> Tensor:
        """Levels as int64, ``(N, D)``; whole numbers in floats are taken, and ``(N,)`` becomes
        ``(N, 1)``.
        """
        y = real_targets(y, self.name)
        bad = (y < 0) | (y >= self.levels) | (y != y.floor())
        if bool(bad.any()):
            row, column = bad.nonzero()[0].tolist()
            raise DataError(
                f"{self.name}: the target in row {row}, column {column} is "
                f"{y[row, column].item():g}; expected a whole number from 0 "
                f"to {self.levels - 1}: multiply grey values in [0, 1] by {self.levels - 1} and "
                "round them, or change levels."
            )
        return y.long()

    def check_training_targets(self, y: Any) -> Tensor:
        """``check_targets`` with at least two different rows; a constant column is fine (the border
        of images).
        """
        y = self.check_targets(y)
        return y if bool((y != y[:1]).any()) else refuse_constant(y, self.name, "rows that differ")

    def num_outputs(self, y: Tensor) -> int:
        """``levels`` logits per pixel."""
        return self.levels * (y.shape[1] if y.dim() > 1 else 1)

    def inputs(self, y: Tensor) -> Tensor:
        """level / (levels - 1), floats in [0, 1]."""
        return super().inputs(y) / (self.levels - 1)

    def split(self, outputs: Tensor) -> Tensor:
        """Logits ``(..., N, levels, D)`` of outputs ``(..., N, levels * D)``."""
        if outputs.shape[-1] % self.levels:
            raise NetworkError(
                f"The pixels likelihood got {outputs.shape[-1]} outputs per datum; expected a "
                f"multiple of its {self.levels} levels, "
                "one logit per level and pixel: change the network's last layer or levels."
            )
        return outputs.unflatten(-1, (self.levels, -1))

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """sum_d f_{y_d, d} - logsumexp_l f_{l, d}, ``(..., N)``."""
        return self.marginals(outputs).log_prob(y).sum(-1)

    def expected_log_prob(self, mean: Tensor, var: Tensor, y: Tensor) -> Tensor:
        """E log p(y given f) under independent f ~ N(mean, var), ``(..., N)``: the rule of the base
        class pixel by pixel.

        Every pixel depends on its own ``levels`` outputs alone, so all share one set of 512 points
        (a plane of Gauss-Hermite nodes for two levels); the cost is that of as many evaluations of
        ``log_prob``, and their memory where gradients are kept.
        """
        mean, var = (
            self.split(moment).transpose(-1, -2) for moment in (mean, var)
        )  # (..., N, D, levels): a datum per pixel
        return super().expected_log_prob(mean, var, y.unsqueeze(-1)).sum(-1)

    def marginals(self, outputs: Tensor) -> GreyLevels:
        """``GreyLevels`` with batch shape ``(..., N, D)``."""
        return GreyLevels(self.split(outputs), validate_args=False)

    def marginal_entropy(self, outputs: Tensor) -> Tensor:
        """-sum_l p_l log p_l of each pixel's mean probabilities, ``(..., N, D)``."""
        log_p = torch.logsumexp(self.marginals(outputs).logits, 0) - math.log(outputs.shape[0])
        return -(log_p.exp() * log_p).sum(-2)

    def mixture_quantile(self, outputs: Tensor, q: float) -> Tensor:
        """The smallest level with mixture cdf at least q, ``(N, D)``."""
        if not 0.0 < q < 1.0:
            raise SettingError(
                f"q={q!r} is not valid; expected a probability strictly between 0 and 1, such as "
                "0.5."
            )
        cdf = self.marginals(outputs).cumulative().mean(0)
        return (
            (cdf[..., :-1, :] < q).sum(-2).to(outputs.dtype)
        )  # the last level has cdf 1, whatever the sum rounds to

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor:
        """Levels as floats, ``(..., N, D)``."""
        return self.marginals(outputs).draw(make_generator(outputs, generator))
