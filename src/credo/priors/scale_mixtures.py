"""Scale mixtures of normals: w given lambda ~ N(0, lambda^2), with a mixing density over lambda
integrated out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints, register_kl
from torch.distributions.utils import broadcast_all

from credo.core.errors import SettingError
from credo.priors.base import Stored, stored
from credo.priors.mixing import Mixing, mixings


class ScaleMixture(Distribution):
    """p(w) = integral of N(w; 0, lambda^2) p(lambda): one class for normal, Laplace, Student-t,
    log-uniform and horseshoe.

    ``mixing`` is a name in ``mixings``: delta, exponential, inverse_gamma (which needs ``df``),
    log_uniform (which has no scale) or half_cauchy. The last two have a pole at zero, so draws of a
    wide q have heavy-tailed gradients there.
    """

    support = constraints.real  # type: ignore[assignment]

    def __init__(
        self,
        mixing: str | Mixing,
        scale: Any = None,
        df: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        self.mixing = mixing if isinstance(mixing, Mixing) else mixings[mixing]
        known = self.mixing.arguments
        for name, value in (("scale", scale), ("df", df)):
            if value is not None and name not in known:
                raise SettingError(
                    f"ScaleMixture({self.mixing.name!r}, {name}={value!r}): this member takes "
                    f"{' and '.join(known) or 'no number'}."
                )
        if "df" in known and df is None:
            raise SettingError(
                f"ScaleMixture({self.mixing.name!r}) needs df=, a number above 0 (the degrees of "
                "freedom), e.g. df=3.0."
            )
        scale, df = (
            v if v is None or isinstance(v, Tensor) else torch.tensor(float(v)) for v in (scale, df)
        )
        if scale is None:
            scale = torch.tensor(1.0) if df is None else torch.ones_like(df)
        self.scale, self.df = broadcast_all(scale, torch.ones_like(scale) if df is None else df)
        super().__init__(self.scale.shape, validate_args=validate_args)

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:  # type: ignore[override]
        """Those of ``scale`` and ``df`` that this member has."""
        return dict.fromkeys(self.mixing.arguments, constraints.positive)

    @property
    def proper(self) -> bool:
        """Whether the density integrates to one."""
        return self.mixing.proper

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of w, elementwise."""
        if self._validate_args:
            self._validate_sample(value)
        return self.mixing.log_prob(value, self.scale, self.df)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """lambda, then w, from torch's global generator; an error where the density is improper."""
        with torch.no_grad():
            shape = self._extended_shape(torch.Size(sample_shape))
            std = self.mixing.draw(shape, self.scale, self.df)
            return std * torch.randn_like(std)

    @property
    def mean(self) -> Tensor:
        """Zero, by symmetry."""
        return torch.zeros_like(self.scale)

    @property
    def variance(self) -> Tensor:
        """E[lambda^2], which is infinite for heavy tails."""
        return self.mixing.variance(self.scale, self.df)

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.mixing.arguments}
        text = [
            f"{n}: {v.item():.4g}" if v.numel() == 1 else f"{n}: {tuple(v.shape)}"
            for n, v in shown.items()
        ]
        return f"ScaleMixture({', '.join([self.mixing.name, *text])})"


stored.register("ScaleMixture")(
    Stored(ScaleMixture, lambda mixture: {"mixing": mixture.mixing.name})
)


@register_kl(Normal, ScaleMixture)
def _kl_normal_scale_mixture(q: Normal, p: ScaleMixture) -> Tensor:
    return p.mixing.kl(q, p.scale, p.df)


def log_uniform() -> ScaleMixture:
    """p(w) = c / |w|, improper; c is such that KL[N(mu, sigma^2), p] -> 0 as sigma^2 / mu^2 ->
    infinity.
    """
    return ScaleMixture("log_uniform")


def horseshoe(scale: float = 1.0) -> ScaleMixture:
    """The horseshoe (Carvalho et al.

    2010): a pole at zero and Cauchy tails; ``scale`` is the global shrinkage.
    """
    return ScaleMixture("half_cauchy", scale)


def is_log_uniform(distribution: Distribution) -> bool:
    """Whether p(w) ~ 1 / abs(w), under which the KL of noise that multiplies is its own form."""
    return isinstance(distribution, ScaleMixture) and distribution.mixing.name == "log_uniform"


def has_pole(distribution: Distribution) -> bool:
    """Whether the density at zero is infinite."""
    poles = ("log_uniform", "half_cauchy")
    return isinstance(distribution, ScaleMixture) and distribution.mixing.name in poles
