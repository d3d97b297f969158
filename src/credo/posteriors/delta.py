"""A point: maximum likelihood, MAP, and the deterministic part of every model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credo.core.errors import CredoError
from credo.core.linear_map import LinearMap
from credo.core.seeds import Noise
from credo.posteriors.covariance_rules import check_units, fixed_joint
from credo.posteriors.draw import Draw, Params
from credo.posteriors.family import Family, FamilyPrior, families
from credo.priors import Factorised


@families.register("delta")
class Delta(Family):
    """q(w) = delta(w - value). Its KL to a prior is -log p(value) up to an infinite constant that
    is left out.
    """

    name: ClassVar[str] = "delta"
    independent: ClassVar[bool] = True
    kl_is_bound: ClassVar[bool] = False
    joint_prior: ClassVar[bool] = False
    is_point: ClassVar[bool] = True
    atoms = 1

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], dtype: str | Mapping[str, str] = "float32"
    ) -> None:
        super().__init__(shapes)
        self.dtypes = dict.fromkeys(self.names, dtype) if isinstance(dtype, str) else dict(dtype)
        self.values = nn.ParameterList(
            [
                nn.Parameter(torch.zeros(s, dtype=getattr(torch, self.dtypes[n])))
                for n, s in self.shapes.items()
            ]
        )

    @classmethod
    def start(cls, values: Mapping[str, Tensor]) -> Delta:
        """A point at ``values``."""
        family = cls(
            {n: v.shape for n, v in values.items()},
            {n: str(v.dtype).removeprefix("torch.") for n, v in values.items()},
        )
        family.place(values)
        return family

    def place(self, values: Mapping[str, Tensor]) -> None:
        """Put the point at copies of ``values``, on their device."""
        for index, value in enumerate(values.values()):
            self.values[index] = nn.Parameter(value.detach().clone())

    @property
    def fixed(self) -> frozenset[str]:
        """All of it."""
        return frozenset(self.names)

    def begin(self, noise: Noise, fold: Any = None) -> DeltaDraw:
        """Nothing is random."""
        return DeltaDraw(self, noise.lead)

    def mean(self) -> Params:
        """The point."""
        return dict(zip(self.names, self.values, strict=True))

    def kl(self, prior: FamilyPrior | Mapping[str, Distribution]) -> Tensor:
        """-log p(value)."""
        known = Factorised(prior, self.shapes) if isinstance(prior, Mapping) else prior
        return -known.log_prob(self.mean())

    def log_prob(self, latents: Params) -> Tensor:
        """A point has no density: always an error."""
        raise CredoError(
            "A point estimate has no density; log_prob needs a posterior with spread, e.g. "
            "method='vi'."
        )

    def moments(
        self, op: LinearMap, mean: Tensor, var: Tensor, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """V[y] = op(var_x, w^2): the weights are known."""
        values = self.mean()
        out = op(mean, values[w], None if b is None else values[b])
        return out, torch.zeros_like(out) if op.is_embedding else op(var, values[w] ** 2)

    def joint_moments(
        self, op: LinearMap, mean: Tensor, cov: Tensor | None, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """W cov W^T: the weights are known."""
        values = self.mean()
        if cov is not None:
            return fixed_joint(op, mean, cov, values[w], None if b is None else values[b])
        out = op(mean, values[w], None if b is None else values[b])
        check_units(out)
        return out, out.new_zeros(len(out), out[0].numel(), out[0].numel())

    def config(self) -> dict[str, Any]:
        """Shapes and dtypes."""
        return super().config() | {"dtype": self.dtypes}


class DeltaDraw(Draw):
    """One pass of a :class:`Delta`."""

    def __init__(self, family: Delta, lead: tuple[int, ...]) -> None:
        self.family, self.lead = family, lead

    def weights(self, names: Iterable[str]) -> Params:
        """The point, repeated over leading axes without a copy."""
        mean = self.family.mean()
        return {
            n: mean[n].expand(*self.lead, *mean[n].shape) if self.lead else mean[n] for n in names
        }
