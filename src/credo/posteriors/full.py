"""Full covariance: w = mean + L eps over all its parameters at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal, kl_divergence

from credo.core.errors import CredoError
from credo.core.linear_map import LinearMap
from credo.core.seeds import Noise
from credo.core.sites import FlatLayout, Site
from credo.posteriors.conjugate_normal import ConjugateNormal
from credo.posteriors.draw import Draw, Params
from credo.posteriors.family import Family, FamilyPrior, Gaussian, families, gaussian_entropy
from credo.posteriors.jacobian import FactoredDerivatives, Jacobian
from credo.posteriors.start import Start
from credo.posteriors.std_transform import raw_triangular, triangular

MAX_NUMEL = 20_000  # the factor then holds 4e8 numbers, 1.6 GB in float32


@families.register("full")
class Full(Gaussian):
    """N(mean, L L^T) with L lower triangular, stored as the logarithm of its diagonal and what is
    below relative to it.

    The exact family of Bayesian linear regression. Memory grows with the square of the number of
    parameters, so choose few of them (``random="last"``).
    """

    name: ClassVar[str] = "full"
    startable: ClassVar[bool] = True

    def __init__(self, shapes: Mapping[str, Sequence[int]], dtype: str = "float32") -> None:
        super().__init__(shapes)
        self.layout = FlatLayout(self.shapes)
        if self.layout.numel > MAX_NUMEL:
            raise CredoError(
                f"A full covariance over {self.layout.numel} parameters is too large (at most "
                f"{MAX_NUMEL}); "
                "choose fewer random parameters, e.g. random='last', or posterior='low_rank'."
            )
        self._blocks: tuple[Any, Tensor] | None = None
        self.flat_mean = nn.Parameter(torch.zeros(self.layout.numel, dtype=getattr(torch, dtype)))
        self.raw_tril = nn.Parameter(
            torch.zeros(self.layout.numel, self.layout.numel, dtype=getattr(torch, dtype))
        )

    @classmethod
    def over(cls, sites: Sequence[Site], values: Params, start: Start) -> list[Family]:
        """One family over all of them."""
        own = {site.name: values[site.name] for site in sites}
        return [cls.start(own, start.init_std)]

    @classmethod
    def start(cls, values: Mapping[str, Tensor], init_std: float = 1e-2) -> Full:
        """Means at ``values``, independent with standard deviation ``init_std``."""
        flat = (
            FlatLayout({name: value.shape for name, value in values.items()}).join(values).detach()
        )
        family = cls(
            {n: v.shape for n, v in values.items()}, str(flat.dtype).removeprefix("torch.")
        ).to(flat.device)
        return family.set(
            flat, torch.eye(flat.numel(), dtype=flat.dtype, device=flat.device) * init_std
        )

    def set(self, mean: Tensor, scale_tril: Tensor) -> Full:
        """Put in a mean and a Cholesky factor of the covariance."""
        with torch.no_grad():
            self.flat_mean.copy_(mean)
            self.raw_tril.copy_(raw_triangular(scale_tril))
        return self

    def scale_tril(self) -> Tensor:
        """L, with a positive diagonal."""
        return triangular(self.raw_tril)

    def covariance(self) -> Tensor:
        """L L^T over the flat vector, in the order of ``names``."""
        factor = self.scale_tril()
        return factor @ factor.mT

    def conjugate_normal(self) -> ConjugateNormal:
        tril = self.scale_tril().detach().double()
        return ConjugateNormal(self.names, self.flat_mean.detach().double(), tril)

    def begin(self, noise: Noise, fold: Any = None) -> FullDraw:
        """Draw eps of the whole vector."""
        return FullDraw(self, noise)

    def mean(self) -> Params:
        """The means."""
        return self.layout.split(self.flat_mean)

    def marginals(self) -> tuple[Params, Params]:
        """Means and the diagonal of the covariance."""
        return self.mean(), self.layout.split(self.scale_tril().square().sum(-1))

    def entropy(self) -> Tensor:
        """log det L + P/2 log 2 pi e."""
        return gaussian_entropy(self.raw_tril.diagonal().sum(), self.layout.numel)

    def log_prob(self, latents: Params) -> Tensor:
        """Joint Gaussian log density."""
        normal = MultivariateNormal(
            self.flat_mean, scale_tril=self.scale_tril(), validate_args=False
        )
        return normal.log_prob(self.layout.join(latents))

    def kl(self, prior: FamilyPrior | Mapping[str, Distribution]) -> Tensor | None:
        """Between two Gaussians of the same parameters the textbook's closed form too."""
        if not isinstance(prior, Full) or self.names != prior.names:
            return super().kl(prior)
        pair = (
            MultivariateNormal(f.flat_mean, scale_tril=f.scale_tril(), validate_args=False)
            for f in (self, prior)
        )
        return kl_divergence(*pair)

    def times_root(self, jacobian: Tensor) -> Tensor:
        """J L."""
        return jacobian @ self.scale_tril()

    def output_variance(self, jacobian: Jacobian) -> Tensor:
        """The diagonal of J C J^T; of a last layer only the covariances within each output's own
        weights are needed, which are kept.
        """
        parts = [jacobian[name] for name in self.names]
        if not all(
            isinstance(part, FactoredDerivatives) and _outputs_themselves(part) for part in parts
        ):
            return super().output_variance(jacobian)
        inputs = torch.cat(
            [part.inputs[:, 0] for part in parts if isinstance(part, FactoredDerivatives)], -1
        )
        blocks = self._own_blocks(
            [part.inputs.shape[-1] for part in parts if isinstance(part, FactoredDerivatives)]
        )
        return torch.einsum("oni,ni->no", inputs @ blocks, inputs)

    def _own_blocks(self, widths: Sequence[int]) -> Tensor:
        """Covariances ``(O, I, I)`` of the weights into each output; O(P^2 I) to make, so made once
        for as long as L stays the same.
        """
        key = (self.raw_tril._version, self.raw_tril.data_ptr(), *widths)
        if self._blocks is None or self._blocks[0] != key:
            index = self.layout.split(torch.arange(self.layout.numel, device=self.flat_mean.device))
            places = torch.cat(
                [index[n].reshape(-1, w) for n, w in zip(self.names, widths, strict=True)], -1
            )
            factor = self.scale_tril().detach()
            self._blocks = key, torch.stack([(block := factor[own]) @ block.mT for own in places])
        return self._blocks[1]

    def moments(
        self, op: LinearMap, mean: Tensor, var: Tensor, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """For a fully connected layer: V[y_o] = x~^T C_o x~ + sum_i (C_o + m_o m_o^T)_ii var_i, C_o
        the covariance of unit o's weights.
        """
        if op.num_spatial or op.is_embedding:
            return super().moments(op, mean, var, w, b)
        means = self.mean()
        rows = self._unit_places(w, b)
        cov = self.covariance()[rows.unsqueeze(-1), rows.unsqueeze(-2)]
        inputs = mean if b is None else torch.cat([mean, torch.ones_like(mean[..., :1])], -1)
        width = mean.shape[-1]
        second = cov.diagonal(dim1=-2, dim2=-1)[:, :width] + means[w] ** 2
        return op(mean, means[w], means[b] if b else None), torch.einsum(
            "...i,oij,...j->...o", inputs, cov, inputs
        ) + var @ second.mT

    def joint_moments(
        self, op: LinearMap, mean: Tensor, cov: Tensor | None, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """For a fully connected layer: M cov M^T + sum_kl Cov(W_ok, W_rl) E[x~_k x~_l] between
        units o and r.
        """
        if op.num_spatial or op.is_embedding or mean.dim() != 2:
            return super().joint_moments(op, mean, cov, w, b)
        means, rows = self.mean(), self._unit_places(w, b)
        weights = self.covariance()[rows.reshape(-1, 1), rows.reshape(1, -1)].reshape(
            *rows.shape, *rows.shape
        )
        inputs = mean if b is None else torch.cat([mean, torch.ones_like(mean[..., :1])], -1)
        second = inputs.unsqueeze(-1) * inputs.unsqueeze(-2)
        if cov is not None:
            pad = 0 if b is None else 1
            second = second + F.pad(cov, (0, pad, 0, pad))
        out_cov = torch.einsum("okrl,nkl->nor", weights, second)
        out_mean = op(mean, means[w], means[b] if b else None)
        return out_mean, out_cov if cov is None else out_cov + means[w] @ cov @ means[w].mT

    def _unit_places(self, w: str, b: str | None) -> Tensor:
        index = self.layout.split(torch.arange(self.layout.numel, device=self.flat_mean.device))
        return index[w] if b is None else torch.cat([index[w], index[b].unsqueeze(-1)], -1)

    def config(self) -> dict[str, Any]:
        """Shapes and dtype."""
        return super().config() | {"dtype": str(self.flat_mean.dtype).removeprefix("torch.")}


def _outputs_themselves(part: FactoredDerivatives) -> bool:
    """Whether a layer's outputs are the network's, each direction one of them, so that d f_k / d W
    has only the k-th row.
    """
    grads = part.grads
    return (
        grads.shape[2] == 1
        and grads.shape[1] == grads.shape[3]
        and bool((grads[:, :, 0] == torch.eye(grads.shape[1]).to(grads)).all())
    )


class FullDraw(Draw):
    """One pass of a :class:`Full`."""

    def __init__(self, family: Full, noise: Noise) -> None:
        eps = noise.normal(family.names[0], (family.layout.numel,), family.flat_mean)
        self.mean = family.mean()
        self.delta = family.layout.split(eps @ family.scale_tril().mT)

    def weights(self, names: Iterable[str]) -> Params:
        """mean + L eps."""
        return {name: self.mean[name] + self.delta[name] for name in names}
