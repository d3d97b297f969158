"""Independent discrete weights: each takes one of K levels (two for binary networks), with learned
probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from credo.core.errors import CredoError
from credo.core.seeds import Noise
from credo.core.sites import FlatLayout, Site
from credo.posteriors.family import Draw, Family, FamilyPrior, Params, Start, families


@families.register("discrete")
class Discrete(Family):
    """q(w) = prod_i Categorical(w_i; levels, softmax(logits_i)).

    A continuous prior counts only at the levels, renormalised there (see :class:`OnLevels`). Draws
    carry no gradient: train with the estimators score, straight_through or gumbel.
    """

    name: ClassVar[str] = "discrete"
    startable: ClassVar[bool] = True
    independent: ClassVar[bool] = True
    reparameterised: ClassVar[bool] = False
    levels: Tensor

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        levels: Sequence[float] = (-1.0, 1.0),
        dtype: str = "float32",
    ) -> None:
        super().__init__(shapes)
        numbers = all(isinstance(level, (int, float)) and math.isfinite(level) for level in levels)
        if not numbers or len(set(levels)) < 2 or len(set(levels)) < len(levels):
            raise CredoError(f"levels={tuple(levels)}; expected two or more different numbers.")
        kind = getattr(torch, dtype)
        self.layout = FlatLayout(self.shapes)
        self.register_buffer("levels", torch.tensor(list(levels), dtype=kind))
        self.logits = nn.Parameter(torch.zeros(self.layout.numel, len(levels), dtype=kind))

    @classmethod
    def over(cls, sites: Sequence[Site], values: Params, start: Start) -> list[Family]:
        """One family over all of them."""
        own = {site.name: values[site.name] for site in sites}
        return [cls.start(own, start.levels)]

    @classmethod
    def start(cls, values: Mapping[str, Tensor], levels: Sequence[float]) -> Discrete:
        """Every weight leans to the levels near its value, scaled so that a parameter's spread
        matches the levels'.
        """
        first = next(iter(values.values()))
        family = cls(
            {n: v.shape for n, v in values.items()}, levels, str(first.dtype).removeprefix("torch.")
        ).to(first.device)
        spread = family.levels.std()
        scaled = {
            n: v.detach() * spread / v.detach().square().mean().sqrt().clamp_min(1e-12)
            for n, v in values.items()
        }
        with torch.no_grad():
            distance = family.layout.join(scaled).unsqueeze(-1) - family.levels
            family.logits.copy_(-0.5 * (distance / spread) ** 2)
        return family

    def probs(self) -> Params:
        """Probability of every level ``(*shape, K)``, by name."""
        return self._split(self.logits.softmax(-1))

    def _split(self, rows: Tensor) -> Params:
        sizes, tail = self.layout.sizes, rows.shape[1:]
        return {
            n: part.reshape(*s, *tail)
            for part, (n, s) in zip(rows.split(sizes), self.shapes.items(), strict=True)
        }

    def begin(self, noise: Noise, fold: Any = None) -> DiscreteDraw:
        """Nothing is drawn yet."""
        return DiscreteDraw(self, noise)

    def mean(self) -> Params:
        """E[w] = sum_k p_k level_k: between the levels, a network of none of the discrete ones."""
        return self.layout.split(self.logits.softmax(-1) @ self.levels)

    def log_prob(self, latents: Params) -> Tensor:
        """Log probability of the levels nearest to the given weights."""
        parts = self.log_prob_each(latents)
        flat = [
            part.flatten(part.dim() - len(self.shapes[n])) if self.shapes[n] else part.unsqueeze(-1)
            for n, part in parts.items()
        ]
        return torch.cat(flat, -1).sum(-1)

    def log_prob_each(self, latents: Params) -> Params:
        """Log probability of each weight's level."""
        log_probs = self.log_probs()
        out = {}
        for name, value in latents.items():
            index = (value.unsqueeze(-1) - self.levels).abs().argmin(-1, keepdim=True)
            table = log_probs[name].expand(*index.shape[:-1], len(self.levels))
            out[name] = table.gather(-1, index).squeeze(-1)
        return out

    def restrict(self, distribution: Distribution, name: str) -> Distribution:
        """A prior on the levels alone."""
        return OnLevels(distribution, self.levels)

    def log_probs(self) -> Params:
        """Log probability of every level ``(*shape, K)``, by name."""
        return self._split(self.logits.log_softmax(-1))

    def kl(self, prior: FamilyPrior | Mapping[str, Distribution]) -> Tensor | None:
        """sum_i sum_k q_ik (log q_ik - log p_ik), exactly, also under a prior of the same family
        with the same levels.
        """
        if isinstance(prior, Discrete):
            same = self.levels.tolist() == prior.levels.tolist()
            return self._kl(prior.log_probs()) if same else None
        return super().kl(prior)

    def kl_elementwise(self, prior: Mapping[str, Distribution]) -> Tensor:
        """log p_ik is the log density of level k."""
        log_p = {
            n: torch.stack([prior[n].log_prob(level.expand(s)) for level in self.levels], -1)
            for n, s in self.shapes.items()
        }
        return self._kl(log_p)

    def _kl(self, log_p: Params) -> Tensor:
        return torch.stack(
            [(log_q.exp() * (log_q - log_p[n])).sum() for n, log_q in self.log_probs().items()]
        ).sum()

    def config(self) -> dict[str, Any]:
        """Shapes, levels and dtype."""
        return super().config() | {
            "levels": self.levels.tolist(),
            "dtype": str(self.logits.dtype).removeprefix("torch."),
        }


class DiscreteDraw(Draw):
    """One pass of a :class:`Discrete`."""

    def __init__(self, family: Discrete, noise: Noise) -> None:
        self.family, self.noise = family, noise

    def _gumbel(self) -> Tensor:
        """logits + Gumbel noise, whose largest entry is a draw."""
        family = self.family
        u = self.noise.uniform(family.names[0], family.logits.shape, family.logits)
        tiny = torch.finfo(u.dtype).tiny
        return family.logits - (-(u + tiny).log()).clamp_min(tiny).log()

    def _pick(self, names: Iterable[str], flat: Tensor) -> Params:
        whole = self.family.layout.split(flat)
        return {name: whole[name] for name in names}

    def weights(self, names: Iterable[str]) -> Params:
        """A level each, by the Gumbel-max trick; without gradient."""
        return self._pick(names, self.family.levels[self._gumbel().argmax(-1)])

    def straight_through(self, names: Iterable[str]) -> Params:
        """The draw, with the gradient of its mean."""
        family = self.family
        hard = family.levels[self._gumbel().detach().argmax(-1)]
        mean = family.logits.softmax(-1) @ family.levels
        return self._pick(names, hard + mean - mean.detach())

    def relaxed(self, names: Iterable[str], temperature: float) -> Params:
        """The draw, with the gradient of softmax((logits + Gumbel) / temperature)."""
        family = self.family
        noisy = self._gumbel()
        soft = (noisy / temperature).softmax(-1)
        places = torch.arange(
            len(family.levels), device=soft.device
        )  # one_hot would wait for the device to check its range
        hard = (noisy.argmax(-1, keepdim=True) == places).to(soft)
        return self._pick(names, (hard + soft - soft.detach()) @ family.levels)


class OnLevels(Distribution):
    """A distribution restricted to finitely many values: p(level_k) = d(level_k) / sum_j
    d(level_j).
    """

    arg_constraints: dict[str, constraints.Constraint] = {}

    def __init__(self, base: Distribution, levels: Tensor) -> None:
        self.base, self.levels = base, levels
        super().__init__(base.batch_shape, validate_args=False)

    def _table(self) -> Tensor:
        """Normalised log probabilities ``(K, *batch_shape)``."""
        shaped = self.levels.reshape(-1, *[1] * len(self.base.batch_shape))
        return self.base.log_prob(shaped.expand(-1, *self.base.batch_shape)).log_softmax(0)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log probability of the level nearest to ``value``."""
        table = self._table()
        index = (value.unsqueeze(-1) - self.levels).abs().argmin(-1)
        return (
            torch.stack([row.expand(value.shape) for row in table], 0)
            .gather(0, index.unsqueeze(0))
            .squeeze(0)
        )

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Levels, from the global generator."""
        table = self._table().movedim(0, -1)
        return self.levels[
            torch.distributions.Categorical(logits=table, validate_args=False).sample(sample_shape)
        ]
