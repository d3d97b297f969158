"""Weights and noise together: w given s^2 ~ N(mean, s^2 V), s^2 ~ InverseGamma(a, b)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.errors import CredoError
from credo.core.seeds import Noise
from credo.core.sites import FlatLayout
from credo.posteriors.family import ConjugateNormal, Draw, Family, Params, families

NOISE = "likelihood/log_std"  # the likelihood's own parameter, drawn with the weights


@families.register("normal_inverse_gamma")
class NormalInverseGamma(Family):
    """The conjugate posterior of linear regression with unknown noise; the marginal of w is a
    multivariate Student-t.
    """

    name: ClassVar[str] = "normal_inverse_gamma"
    flat_mean: Tensor
    scale_tril: Tensor
    shape_rate: Tensor

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        super().__init__(dict(shapes) | {NOISE: ()})
        self.layout = FlatLayout({n: s for n, s in self.shapes.items() if n != NOISE})
        numel = self.layout.numel
        self.register_buffer("flat_mean", torch.zeros(numel, dtype=torch.float64))
        self.register_buffer("scale_tril", torch.eye(numel, dtype=torch.float64))
        self.register_buffer("shape_rate", torch.ones(2, dtype=torch.float64))

    def set(
        self, mean: Tensor, scale_tril: Tensor, shape: float, rate: float
    ) -> NormalInverseGamma:
        """Put in the four parameters; ``scale_tril`` is the Cholesky factor of V."""
        self.flat_mean, self.scale_tril = (
            mean.clone(),
            scale_tril.clone(memory_format=torch.contiguous_format),
        )
        self.shape_rate = torch.tensor([shape, rate], dtype=torch.float64, device=mean.device)
        return self

    def conjugate_normal(self) -> ConjugateNormal:
        shape, rate = self.shape_rate.tolist()
        names = tuple(self.layout.shapes)
        return ConjugateNormal(names, self.flat_mean, self.scale_tril, (shape, rate))

    def begin(self, noise: Noise, fold: Any = None) -> NormalInverseGammaDraw:
        """Draw the noise variance, then the weights."""
        return NormalInverseGammaDraw(self, noise)

    def mean(self) -> Params:
        """E[w], and the log of the root of E[s^2] = b / (a - 1)."""
        shape, rate = self.shape_rate
        if shape <= 1:
            raise CredoError(
                f"The noise variance has no mean: its inverse-gamma shape is {float(shape):.3g}, "
                "at most 1; use more data."
            )
        return self.layout.split(self.flat_mean) | {NOISE: 0.5 * torch.log(rate / (shape - 1))}

    def log_prob(self, latents: Params) -> Tensor:
        """log N(w; mean, s^2 V) + log density of log s, whose Jacobian is 2 s^2."""
        log_var = 2 * latents[NOISE]
        shape, rate = self.shape_rate
        centred = (
            self.layout.join({n: latents[n] for n in self.layout.shapes}) - self.flat_mean
        ).unsqueeze(-1)
        white = torch.linalg.solve_triangular(self.scale_tril, centred, upper=False).squeeze(-1)
        numel = self.layout.numel
        weights = -0.5 * white.square().sum(-1) / log_var.exp() - 0.5 * numel * (
            log_var + math.log(2 * math.pi)
        )
        noise = (
            shape * rate.log()
            - torch.lgamma(shape)
            - shape * log_var
            - rate / log_var.exp()
            + math.log(2.0)
        )
        return weights - self.scale_tril.diagonal().log().sum() + noise

    def config(self) -> dict[str, Any]:
        """Shapes of the weights."""
        return {"name": self.name, "shapes": {n: list(s) for n, s in self.layout.shapes.items()}}


class NormalInverseGammaDraw(Draw):
    """One pass: s^2 by inversion of the gamma distribution, w = mean + s L eps."""

    def __init__(self, family: NormalInverseGamma, noise: Noise) -> None:
        from scipy.special import gammaincinv

        shape, rate = family.shape_rate
        u = noise.uniform(NOISE, (), family.flat_mean)
        gamma = torch.as_tensor(
            gammaincinv(float(shape), u.cpu().numpy()), dtype=torch.float64, device=u.device
        )
        log_std = 0.5 * torch.log(rate / gamma)
        eps = noise.normal(family.names[0], (family.layout.numel,), family.flat_mean)
        flat = family.flat_mean + log_std.exp().unsqueeze(-1) * (eps @ family.scale_tril.mT)
        self.params = family.layout.split(flat) | {NOISE: log_std}

    def weights(self, names: Iterable[str]) -> Params:
        """The draw."""
        return {name: self.params[name] for name in names}
