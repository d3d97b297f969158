"""Independent Gaussians: q(w) = prod_i N(w_i; mean_i, std_i^2), all parameters in two flat
vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from credo.core.linear_map import LinearMap
from credo.core.seeds import Noise
from credo.core.sites import FlatLayout, Site
from credo.posteriors.covariance_rules import embedded, fixed_joint, independent_weights
from credo.posteriors.draw import Draw, Params
from credo.posteriors.family import Family, FamilyPrior, Gaussian, families, gaussian_entropy
from credo.posteriors.jacobian import Jacobian, independent_covariance, independent_variance
from credo.posteriors.moment_rules import through_weights
from credo.posteriors.start import Start
from credo.posteriors.std_transform import (
    MomentsAndKL,
    NormalStats,
    WeightsAndKL,
    perturb,
    std_transforms,
)


@families.register("mean_field")
class MeanField(Gaussian):
    """Bayes by Backprop's family (Blundell et al. 2015).

    Fails where weights are strongly correlated in the posterior: on conjugate regression its
    variances are 1 / diag(precision), smaller than the true marginals.
    """

    name: ClassVar[str] = "mean_field"
    startable: ClassVar[bool] = True
    factored: ClassVar[bool] = True
    independent: ClassVar[bool] = True
    joint_prior: ClassVar[bool] = False

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], scale: str = "log", dtype: str = "float32"
    ) -> None:
        super().__init__(shapes)
        self.scale_name, self.layout = scale, FlatLayout(self.shapes)
        self.std_transform = std_transforms[scale]
        self.flat_mean = nn.Parameter(torch.zeros(self.layout.numel, dtype=getattr(torch, dtype)))
        self.raw_std = nn.Parameter(torch.zeros_like(self.flat_mean))

    @classmethod
    def over(cls, sites: Sequence[Site], values: Params, start: Start) -> list[Family]:
        """One family over all of them."""
        own = {site.name: values[site.name] for site in sites}
        return [cls.start(own, start.init_std, start.std_transform)]

    @classmethod
    def start(
        cls, values: Mapping[str, Tensor], init_std: float = 1e-2, scale: str = "log"
    ) -> MeanField:
        """Means at ``values``, all standard deviations at ``init_std``."""
        flat = (
            FlatLayout({name: value.shape for name, value in values.items()}).join(values).detach()
        )
        family = cls(
            {n: v.shape for n, v in values.items()}, scale, str(flat.dtype).removeprefix("torch.")
        ).to(flat.device)
        with torch.no_grad():
            family.flat_mean.copy_(flat)
            family.raw_std.fill_(family.std_transform.raw(init_std))
        return family

    @property
    def elementwise(self) -> dict[str, Distribution] | None:
        """A normal distribution for every weight, as it stands."""
        mean, std = self.mean(), self.std()
        return {n: Normal(mean[n].detach(), std[n].detach(), validate_args=False) for n in mean}

    def fold(self, prior: FamilyPrior | None) -> NormalStats | None:
        """Mean and variance of a prior of normals."""
        if prior is None or prior.elementwise is None:
            return None
        normals = [d for d in prior.elementwise.values() if type(d) is Normal]
        if len(normals) < len(prior.elementwise):
            return None
        like = self.flat_mean.detach()
        moments = [(d.loc.detach().to(like), d.scale.detach().to(like) ** 2) for d in normals]
        centred = not any(bool(m.any()) for m, _ in moments)
        parts = [[m for m, _ in moments], [v for _, v in moments]]
        if all(p.numel() == 1 and bool(p == column[0]) for column in parts for p in column):
            mean, var = (column[0].reshape(()) for column in parts)
        else:
            shapes = self.shapes.values()
            mean, var = (
                torch.cat([p.expand(s).reshape(-1) for p, s in zip(column, shapes, strict=True)])
                for column in parts
            )
        return NormalStats(None if centred else mean, var)

    def begin(self, noise: Noise, fold: NormalStats | None = None) -> MeanFieldDraw:
        """Nothing is drawn yet: weights and noise on outputs are drawn where they are asked for."""
        return MeanFieldDraw(self, noise, fold)

    def hold_width(self) -> None:
        """The deviations stay as they are."""
        self.raw_std.requires_grad_(False)

    def std(self) -> Params:
        """Standard deviations by name."""
        return self.layout.split(self.std_transform.std(self.raw_std))

    def mean(self) -> Params:
        """The means."""
        return self.layout.split(self.flat_mean)

    def marginals(self) -> tuple[Params, Params]:
        """Means and variances."""
        return self.mean(), self.layout.split(self.std_transform.std(self.raw_std) ** 2)

    def independent_normals(self) -> dict[str, Normal]:
        means, variances = self.marginals()
        return {n: Normal(means[n], variances[n].sqrt(), validate_args=False) for n in means}

    def entropy(self) -> Tensor:
        """sum log std + P/2 log 2 pi e."""
        log_std = self.std_transform.log_std(self.raw_std, self.std_transform.std(self.raw_std))
        return gaussian_entropy(log_std.sum(), self.layout.numel)

    def times_root(self, jacobian: Tensor) -> Tensor:
        """J times the deviations."""
        return jacobian * self.std_transform.std(self.raw_std)

    def output_covariance(self, jacobian: Jacobian) -> Tensor:
        """J diag(std^2) J^T, layer by layer."""
        std = self.std()
        return torch.stack(
            [independent_covariance(jacobian[n], std[n] ** 2) for n in self.names]
        ).sum(0)

    def output_variance(self, jacobian: Jacobian) -> Tensor:
        """Its diagonal."""
        std = self.std()
        return torch.stack(
            [independent_variance(jacobian[n], std[n] ** 2) for n in self.names]
        ).sum(0)

    def log_prob(self, latents: Params) -> Tensor:
        """Sum of normal log densities."""
        normal = torch.distributions.Normal(
            self.flat_mean, self.std_transform.std(self.raw_std), validate_args=False
        )
        return normal.log_prob(self.layout.join(latents)).sum(-1)

    def log_prob_each(self, latents: Params) -> Params:
        """Normal log densities, element by element."""
        normal = torch.distributions.Normal(
            self.flat_mean, self.std_transform.std(self.raw_std), validate_args=False
        )
        return self.layout.split(normal.log_prob(self.layout.join(latents)))

    def moments(
        self, op: LinearMap, mean: Tensor, var: Tensor, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        means, std = self.mean(), self.std()
        b_mean, b_var = (means[b], std[b] ** 2) if b in means else (None, None)
        return through_weights(op, mean, var, means[w], std[w] ** 2, b_mean, b_var)

    def joint_moments(
        self, op: LinearMap, mean: Tensor, cov: Tensor | None, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """M cov M^T plus, for each unit, sum_k V_ok E[x_k(p) x_k(p')] + V_b between its positions p
        and p'.
        """
        means, std = self.mean(), self.std()
        if op.is_embedding:
            return op(mean, means[w]), embedded(mean, std[w] ** 2)
        b_mean, b_var = (means[b], std[b] ** 2) if b is not None else (None, None)
        own_cov = independent_weights(op, mean, cov, std[w] ** 2, b_var)
        if cov is None:
            return op(mean, means[w], b_mean), own_cov
        out, out_cov = fixed_joint(op, mean, cov, means[w], b_mean)
        return out, out_cov + own_cov

    def config(self) -> dict[str, Any]:
        """Shapes, scale and dtype."""
        return super().config() | {
            "scale": self.scale_name,
            "dtype": str(self.flat_mean.dtype).removeprefix("torch."),
        }


class MeanFieldDraw(Draw):
    """One pass of a :class:`MeanField`."""

    def __init__(self, family: MeanField, noise: Noise, fold: NormalStats | None) -> None:
        self.family, self.noise, self.fold = family, noise, fold
        self._moments: tuple[Params, Params] | None = None

    def _key(self) -> str:
        return self.family.names[0]

    def weights(self, names: Iterable[str]) -> Params:
        """mean + std * eps, for all parameters at once where all are asked for."""
        names, family = tuple(names), self.family
        if set(names) == set(family.names):
            eps = self.noise.normal(self._key(), (family.layout.numel,), family.flat_mean)
            if self.fold is None:
                std = family.std_transform.std(family.raw_std)
                if torch.is_grad_enabled():
                    return family.layout.split(torch.addcmul(family.flat_mean, std, eps))
                return family.layout.split(
                    eps.mul_(std).add_(family.flat_mean)
                )  # a prediction reuses the memory of its noise
            flat, self.kl = WeightsAndKL.apply(
                family.flat_mean, family.raw_std, eps, *self.fold, family.std_transform
            )  # type: ignore[misc]
            return family.layout.split(flat)
        mean, var = self.moments()
        return {
            n: torch.addcmul(mean[n], var[n].sqrt(), self.noise.normal(n, mean[n].shape, mean[n]))
            for n in names
        }

    def prepare(self) -> None:
        """Means and variances by name."""
        self.moments()

    def moments(self) -> tuple[Params, Params]:
        """Means and variances by name, made once per pass."""
        if self._moments is None:
            family = self.family
            if self.fold is None:
                mean, var = family.flat_mean, family.std_transform.std(family.raw_std) ** 2
            else:
                mean, var, self.kl = MomentsAndKL.apply(
                    family.flat_mean, family.raw_std, *self.fold, family.std_transform
                )  # type: ignore[misc]
            self._moments = family.layout.split(mean), family.layout.split(var)
        return self._moments

    def _layer(
        self, w: str, b: str | Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Mean and variance of the weight and of the bias; a bias that is not random has no
        variance.
        """
        mean, var = self.moments()
        b_mean, b_var = (mean[b], var[b]) if isinstance(b, str) else (b, None)
        return mean[w], var[w], b_mean, b_var

    def local(
        self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise
    ) -> Tensor:
        """Noise on the output with the output's own mean and variance (Kingma et al. 2015)."""
        mean, var, b_mean, b_var = self._layer(w, b)
        if x.is_cuda and op.function is F.linear:
            out_mean, out_var = _dense(x, mean, var, b_mean, b_var)
        else:
            out_mean, out_var = op(x, mean, b_mean), op(op.square(x), var, b_var)
        return perturb(out_mean, out_var, noise.normal(w, out_mean.shape, out_mean))

    def flipout(
        self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise
    ) -> Tensor:
        """One perturbation for the batch, its rows and columns flipped by fair signs per example
        (Wen et al. 2018).
        """
        mean, var, b_mean, b_var = self._layer(w, b)
        delta = var.sqrt() * noise.normal(w, mean.shape, mean)
        signs_out = noise.sign(w, op.per_example(x, op.out_channels(delta)), delta)
        if op.is_embedding:
            return op(x, mean) + op(x, delta) * signs_out
        signs_in = noise.sign(w, op.per_example(x, x.shape[op.channel_axis]), delta)
        shift = op(x * signs_in, delta)
        if b_var is not None:
            shift = shift + (b_var.sqrt() * noise.normal(str(b), b_var.shape, b_var)).reshape(
                -1, *[1] * op.num_spatial
            )
        return op(x, mean, b_mean) + shift * signs_out


def _dense(
    x: Tensor, mean: Tensor, var: Tensor, b_mean: Tensor | None, b_var: Tensor | None
) -> tuple[Tensor, Tensor]:
    """x W^T and x^2 V^T as one batched product: on a GPU two small products in one launch cost
    hardly more than one.
    """
    flat = x.reshape(-1, x.shape[-1])
    inputs, weights = torch.stack([flat, flat * flat]), torch.stack([mean, var]).mT
    if b_mean is None:
        out = torch.bmm(inputs, weights)
    else:
        bias = torch.stack([b_mean, torch.zeros_like(b_mean) if b_var is None else b_var])
        out = torch.baddbmm(bias.unsqueeze(1), inputs, weights)
    out_mean, out_var = out.reshape(2, *x.shape[:-1], mean.shape[0]).unbind(0)
    return out_mean, out_var
