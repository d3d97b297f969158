"""Diagonal plus low rank: w = mean + std * eps + z F, with K factors shared by all parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import LowRankMultivariateNormal

from credo.core.linear_map import LinearMap
from credo.core.seeds import Noise, generator
from credo.core.sites import FlatLayout, Site
from credo.posteriors.covariance_rules import outer, sandwich
from credo.posteriors.draw import Draw, Params
from credo.posteriors.family import Family, Gaussian, families
from credo.posteriors.mean_field import MeanField, MeanFieldDraw
from credo.posteriors.start import Start


@families.register("low_rank")
class LowRank(Gaussian):
    """Covariance diag(std^2) + F^T F with F of shape (K, P): K directions along which all weights
    move together.

    Used by structured VI and SWAG. The factor coordinates z are drawn once per pass, for every
    parameter.
    """

    name: ClassVar[str] = "low_rank"
    startable: ClassVar[bool] = True

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        rank: int = 4,
        scale: str = "log",
        dtype: str = "float32",
    ) -> None:
        super().__init__(shapes)
        self.rank, self.layout = rank, FlatLayout(self.shapes)
        self.diagonal = MeanField(shapes, scale, dtype)
        self.factor = nn.Parameter(
            torch.zeros(rank, self.layout.numel, dtype=getattr(torch, dtype))
        )

    @classmethod
    def over(cls, sites: Sequence[Site], values: Params, start: Start) -> list[Family]:
        """One family over all of them."""
        own = {site.name: values[site.name] for site in sites}
        source = generator(start.seed, "factors")
        return [cls.start(own, source, start.init_std, start.rank, start.std_transform)]

    @classmethod
    @torch.no_grad()
    def of_moments(cls, values: Params, std: Params, factor: Params | None = None) -> Gaussian:
        """Independent Gaussians with these deviations, or with ``factor`` ``(R, *shape)`` their sum
        with R shared directions.
        """
        diagonal = MeanField.start(values, 1.0)
        # a weight that never moved has no logarithm
        least = torch.finfo(diagonal.raw_std.dtype).tiny ** 0.5
        diagonal.raw_std.copy_(diagonal.layout.join(std).clamp_min(least).log())
        if factor is None:
            return diagonal
        columns = diagonal.layout.join(factor)
        dtype = str(columns.dtype).removeprefix("torch.")
        family = cls(diagonal.shapes, len(columns), dtype=dtype).to(columns.device)
        family.diagonal = diagonal
        family.factor.copy_(columns)
        return family

    @classmethod
    def start(
        cls,
        values: Mapping[str, Tensor],
        generator: torch.Generator,
        init_std: float = 1e-2,
        rank: int = 4,
        scale: str = "log",
    ) -> LowRank:
        """Means at ``values``; diagonal and factors share the initial variance, the factors in
        random directions.
        """
        diagonal = MeanField.start(values, init_std / math.sqrt(2.0), scale)
        config = diagonal.config()
        family = cls(config["shapes"], rank, scale, config["dtype"]).to(diagonal.flat_mean.device)
        family.diagonal = diagonal
        with torch.no_grad():
            noise = torch.randn(family.factor.shape, generator=generator, dtype=torch.float64)
            family.factor.copy_(noise * init_std / math.sqrt(2.0 * rank))
        return family

    def begin(self, noise: Noise, fold: Any = None) -> LowRankDraw:
        """Draw z of shape (K,), shared over the pass."""
        return LowRankDraw(self, noise)

    def mean(self) -> Params:
        """The means."""
        return self.diagonal.mean()

    def distribution(self) -> LowRankMultivariateNormal:
        """The joint Gaussian over the flat vector, by torch's Woodbury form."""
        var = self.diagonal.std_transform.std(self.diagonal.raw_std) ** 2
        return LowRankMultivariateNormal(
            self.diagonal.flat_mean, self.factor.mT, var, validate_args=False
        )

    def marginals(self) -> tuple[Params, Params]:
        """Means, and std^2 + sum_k F_k^2."""
        var = self.diagonal.std_transform.std(
            self.diagonal.raw_std
        ) ** 2 + self.factor.square().sum(0)
        return self.mean(), self.layout.split(var)

    def entropy(self) -> Tensor:
        """By torch's capacitance matrix of size K."""
        return self.distribution().entropy()

    def times_root(self, jacobian: Tensor) -> Tensor:
        """J times the deviations, and beside it J F^T."""
        return torch.cat([self.diagonal.times_root(jacobian), jacobian @ self.factor.mT], -1)

    def log_prob(self, latents: Params) -> Tensor:
        """Joint Gaussian log density."""
        return self.distribution().log_prob(self.layout.join(latents))

    def moments(
        self, op: LinearMap, mean: Tensor, var: Tensor, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """The diagonal's moments plus, per factor, op(mean_x, F_w)^2 + op(var_x, F_w^2)."""
        out_mean, out_var = self.diagonal.moments(op, mean, var, w, b)
        for factor in (self.layout.split(row) for row in self.factor):
            out_var = out_var + op(mean, factor[w], factor.get(b) if b else None) ** 2
            if not op.is_embedding:
                out_var = out_var + op(var, factor[w] ** 2)
        return out_mean, out_var

    def joint_moments(
        self, op: LinearMap, mean: Tensor, cov: Tensor | None, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """The diagonal's covariance plus, per factor F, y y^T + F cov F^T with y = op(mean_x, F_w)
        + F_b.
        """
        out_mean, out_cov = self.diagonal.joint_moments(op, mean, cov, w, b)
        for factor in (self.layout.split(row) for row in self.factor):
            out_cov = out_cov + outer(op(mean, factor[w], factor[b] if b is not None else None))
            if cov is not None:
                out_cov = out_cov + sandwich(
                    lambda rows, f=factor[w]: op(rows, f), cov, mean.shape[1:]
                )
        return out_mean, out_cov

    def config(self) -> dict[str, Any]:
        """Shapes, rank, scale and dtype."""
        return self.diagonal.config() | {"name": self.name, "rank": self.rank}


class LowRankDraw(Draw):
    """One pass of a :class:`LowRank`: a shift along the factors, then the diagonal's own draw."""

    def __init__(self, family: LowRank, noise: Noise) -> None:
        z = noise.normal(f"{family.names[0]}/z", (family.rank,), family.factor)
        self.shift = family.layout.split(z @ family.factor)
        self.diagonal = MeanFieldDraw(family.diagonal, noise, None)

    def prepare(self) -> None:
        """The diagonal's moments."""
        self.diagonal.prepare()

    def weights(self, names: Iterable[str]) -> Params:
        """Diagonal draw plus shift."""
        return {
            name: value + self.shift[name] for name, value in self.diagonal.weights(names).items()
        }

    def local(
        self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise
    ) -> Tensor:
        """The diagonal's noise on the output, the shared shift as a weight."""
        return self.diagonal.local(op, x, w, b, noise) + self._shifted(op, x, w, b)

    def flipout(
        self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise
    ) -> Tensor:
        """The diagonal flipped by rows and columns; the shift, symmetric as a whole, kept for all
        examples.

        A sign per example would have to be the same at every layer, because z is; without it the
        draw is exact per input.
        """
        return self.diagonal.flipout(op, x, w, b, noise) + self._shifted(op, x, w, b)

    def _shifted(self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None) -> Tensor:
        return op(x, self.shift[w], self.shift[b] if isinstance(b, str) else None)
