"""Full covariance over single weights of any layers; all other weights are points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, kl_divergence

from credo.core.seeds import Noise
from credo.posteriors.delta import Delta
from credo.posteriors.draw import Draw, Params
from credo.posteriors.family import Gaussian, families
from credo.posteriors.full import Full
from credo.posteriors.jacobian import Jacobian


@families.register("subnetwork")
class Subnetwork(Gaussian):
    """w_s = mean_s + (L eps)_s for S chosen scalars s of the parameters, w = its point elsewhere.

    ``chosen``: how many of each parameter, without those of which there are none. Entropy, density
    and KL are those of the chosen weights; the points are constants of the network, as parameters
    that are not random are. Memory grows with the square of S.
    """

    name: ClassVar[str] = "subnetwork"
    joint_prior: ClassVar[bool] = False
    factored: ClassVar[bool] = True
    places: Tensor

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        chosen: Mapping[str, int],
        dtype: str | Mapping[str, str] = "float32",
    ) -> None:
        super().__init__(shapes)
        self.chosen = {name: chosen[name] for name in self.names if chosen.get(name)}
        self.points = Delta(shapes, dtype)
        kinds = [getattr(torch, self.points.dtypes[name]) for name in self.chosen]
        widest = reduce(torch.promote_types, kinds)
        size = sum(self.chosen.values())
        self.inside = Full({self.names[0]: (size,)}, str(widest).removeprefix("torch."))
        self.register_buffer(
            "places", torch.zeros(size, dtype=torch.int64)
        )  # in the flattened parameter, one after another

    @classmethod
    def of(
        cls, values: Mapping[str, Tensor], places: Mapping[str, Tensor], scale_tril: Tensor
    ) -> Subnetwork:
        """Means and points at ``values``, flat places by parameter, and a Cholesky factor ``(S,
        S)`` of the covariance in their order.
        """
        dtypes = {name: str(value.dtype).removeprefix("torch.") for name, value in values.items()}
        family = cls(
            {n: v.shape for n, v in values.items()}, {n: len(p) for n, p in places.items()}, dtypes
        )
        family.points.place(values)
        family.inside.to(scale_tril.device)
        family.places = torch.cat([places[name] for name in family.chosen]).to(scale_tril.device)
        family.inside.set(family._picked(dict(values)), scale_tril)
        return family

    @property
    def fixed(self) -> frozenset[str]:
        """Parameters of which nothing is chosen."""
        return frozenset(self.names) - frozenset(self.chosen)

    @property
    def varying(self) -> int:
        """S."""
        return len(self.places)

    def local(self) -> dict[str, Tensor]:
        """Flat places of the chosen weights by parameter."""
        return dict(zip(self.chosen, self.places.split(list(self.chosen.values())), strict=True))

    def _picked(self, params: Params) -> Tensor:
        """The chosen weights ``(..., S)`` of parameters that may have leading axes."""
        parts = []
        for name, places in self.local().items():
            value, shape = params[name], self.shapes[name]
            parts.append(
                value.reshape(*value.shape[: value.dim() - len(shape)], shape.numel())[..., places]
            )
        return torch.cat(parts, -1)

    def _scattered(self, numbers: Tensor, around: Params) -> Params:
        """``numbers`` ``(..., S)`` at the chosen places, ``around`` elsewhere; what has no chosen
        weight is repeated without a copy.
        """
        parts = dict(zip(self.chosen, numbers.split(list(self.chosen.values()), -1), strict=True))
        local, lead, out = self.local(), numbers.shape[:-1], {}
        for name, value in around.items():
            whole = value.reshape(-1).expand(*lead, value.numel())
            if name in parts:
                whole = whole.index_copy(-1, local[name], parts[name].to(value.dtype))
            out[name] = whole.reshape(*lead, *value.shape)
        return out

    def begin(self, noise: Noise, fold: Any = None) -> SubnetworkDraw:
        """Draw eps of the chosen weights."""
        return SubnetworkDraw(self, noise)

    def mean(self) -> Params:
        """Means of the chosen weights among the points."""
        return self._scattered(self.inside.flat_mean, self.points.mean())

    def covariance(self) -> Tensor:
        """L L^T ``(S, S)`` over the chosen weights, parameter after parameter."""
        return self.inside.covariance()

    def _variance(self) -> Tensor:
        return self.inside.scale_tril().square().sum(-1)

    def marginals(self) -> tuple[Params, Params]:
        """Means, and the diagonal of the covariance; points have the variance zero."""
        zeros = {name: torch.zeros_like(value) for name, value in self.points.mean().items()}
        return self.mean(), self._scattered(self._variance(), zeros)

    def entropy(self) -> Tensor:
        """Of the chosen weights: log det L + S/2 log 2 pi e."""
        return self.inside.entropy()

    def log_prob(self, latents: Params) -> Tensor:
        """Joint log density of the chosen weights, wherever the other ones are."""
        return self.inside.log_prob(
            {self.names[0]: self._picked(latents).to(self.inside.flat_mean.dtype)}
        )

    def times_root(self, jacobian: Tensor) -> Tensor:
        """J L, from the columns of the chosen weights."""
        pieces = dict(
            zip(
                self.names,
                jacobian.split([shape.numel() for shape in self.shapes.values()], -1),
                strict=True,
            )
        )
        return self.inside.times_root(
            torch.cat([pieces[name][..., places] for name, places in self.local().items()], -1)
        )

    def _output_root(self, jacobian: Jacobian) -> Tensor:
        return self.inside.times_root(
            torch.cat([jacobian[name].at(places) for name, places in self.local().items()], -1)
        )

    def output_covariance(self, jacobian: Jacobian) -> Tensor:
        """J C J^T ``(N, K, K)``; derivatives by no other than the chosen weights are written out
        where factors are known.
        """
        root = self._output_root(jacobian)
        return root @ root.mT

    def output_variance(self, jacobian: Jacobian) -> Tensor:
        """The diagonal of ``output_covariance``, ``(N, K)``."""
        return self._output_root(jacobian).square().sum(-1)

    def written(self, name: str, places: int | None) -> int:
        """The chosen columns and what they are taken from; nothing of a parameter without any."""
        count, numel = self.chosen.get(name, 0), self.shapes[name].numel()
        return count + (numel if places is None else min(places * count, numel)) if count else 0

    def restrict(self, distribution: Distribution, name: str) -> Distribution:
        """A prior of the chosen weights alone."""
        whole = self.points.mean()[name].detach()
        if self.chosen.get(name, 0) == whole.numel():
            return distribution
        mask = torch.zeros(whole.numel(), dtype=torch.bool, device=whole.device)
        if name in self.chosen:
            mask[self.local()[name]] = True
        return Pinned(distribution, mask.reshape(whole.shape), whole)

    def kl_elementwise(self, priors: Mapping[str, Distribution]) -> Tensor | None:
        """sum_s (KL[N(m_s, v_s), p_s] + h_s) - H[q] over the chosen weights; None where torch knows
        no such KL.
        """
        ones = {name: torch.ones_like(value) for name, value in self.points.mean().items()}
        means, stds = self.mean(), self._scattered(self._variance().sqrt(), ones)
        total = -self.entropy()
        for name, places in self.local().items():
            prior = priors[name]
            q = Normal(means[name], stds[name], validate_args=False)
            try:
                terms = (
                    kl_divergence(q, prior.base if isinstance(prior, Pinned) else prior)
                    + q.entropy()
                )
            except NotImplementedError:
                return None
            total = total + terms.expand(self.shapes[name]).reshape(-1)[places].sum()
        return total

    def config(self) -> dict[str, Any]:
        """Shapes, numbers of chosen weights, and dtypes."""
        return super().config() | {"chosen": self.chosen, "dtype": self.points.dtypes}


class SubnetworkDraw(Draw):
    """One pass of a :class:`Subnetwork`."""

    def __init__(self, family: Subnetwork, noise: Noise) -> None:
        (chosen,) = family.inside.draw(noise).values()
        self.whole = family._scattered(chosen, family.points.mean())

    def weights(self, names: Iterable[str]) -> Params:
        """The points, with mean + L eps at the chosen places."""
        return {name: self.whole[name] for name in names}


@final
class Pinned(Distribution):
    """An elementwise prior of which only the elements in ``mask`` count; the others are at
    ``point`` and have no density.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, base: Distribution, mask: Tensor, point: Tensor) -> None:
        self.base, self.mask, self.point = base, mask, point
        super().__init__(point.shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """The prior's where it counts, zero elsewhere."""
        return torch.where(self.mask, self.base.log_prob(value), 0.0)

    def sample(self, sample_shape: torch.Size | Sequence[int] = ()) -> Tensor:
        """Draws ``(*sample_shape, *shape)`` of what counts, among the points."""
        missing = self.point.shape[: self.point.dim() - len(self.base.batch_shape)]
        return torch.where(
            self.mask,
            self.base.sample(torch.Size([*sample_shape, *missing])).to(self.point),
            self.point,
        )
