"""Weights in groups that share a scale: w = z_g v, so that a whole group leaves the network when
its z says nothing.

q: v ~ N(mu, sigma^2) independent, z as its part says (:mod:`credo.posteriors.group_parts`). p(w
given z) = N(0, z^2), so v has the prior N(0, 1) and the KL of the weights, 1/2 sum(mu^2 + sigma^2 -
1 - log sigma^2), does not depend on z. Centred, w ~ N(mu, sigma^2) itself and z is only in the
prior: KL = sum of E[log z] - log sigma - 1/2 + (mu^2 + sigma^2) E[z^-2] / 2. A group whose score is
at the threshold or beyond is pruned: its mu counts as zero, in training already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from credo.core.errors import CredoError
from credo.core.linear_map import LinearMap, along
from credo.core.seeds import Noise
from credo.core.sites import FlatLayout
from credo.posteriors.draw import Draw, Params
from credo.posteriors.family import Family, families
from credo.posteriors.group_parts import Scales, scale_parts
from credo.posteriors.group_place import Place, bank_counts
from credo.posteriors.moment_rules import through_weights, times_factor
from credo.posteriors.std_transform import perturb
from credo.priors.group_prior import GroupPrior

PREFIX = "scales/"  # of the names of latents that are no weights


@families.register("group_scale")
class GroupScale(Family):
    """Gaussian weights times scales of their groups, and the prior that goes with them.

    It has no density over weights, since z is not integrated out: densities are over v and the
    latents of z (:meth:`latents`). Pruning a group changes E[w] at once; the KL counted is that of
    q before pruning.
    """

    name: ClassVar[str] = "group_scale"
    #: Parameters that share a bank belong to one layer, which draws them together.
    independent: ClassVar[bool] = True

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        places: Mapping[str, Sequence[Any]],
        scales: Mapping[str, Any],
        threshold: float | None = None,
        centred: bool = False,
        dtype: str = "float32",
    ) -> None:
        super().__init__(shapes)
        self.places = {name: Place(*place) for name, place in places.items()}
        if missing := set(self.shapes) ^ set(self.places):
            raise CredoError(
                "Every parameter needs a place of its groups and none else may have one; odd: "
                f"{sorted(missing)}."
            )
        kind, settings = (
            scale_parts[scales["name"]],
            {k: v for k, v in scales.items() if k != "name"},
        )
        self.scales: Scales = kind(bank_counts(self.shapes, self.places), dtype=dtype, **settings)
        if centred and not kind.centres:
            self.scales.inverse("")
        self.threshold = kind.threshold if threshold is None else threshold
        self.centred, self.layout = centred, FlatLayout(self.shapes)
        self.flat_mean = nn.Parameter(torch.zeros(self.layout.numel, dtype=getattr(torch, dtype)))
        self.raw_std = nn.Parameter(torch.zeros_like(self.flat_mean))

    @classmethod
    def start(
        cls,
        values: Mapping[str, Tensor],
        places: Mapping[str, Place],
        scales: Mapping[str, Any],
        init_std: float = 1e-2,
        threshold: float | None = None,
        centred: bool = False,
    ) -> GroupScale:
        """E[w] about at ``values``, deviations of weights and scales in proportion ``init_std``.
        ``scales``: name and settings of a part.

        Scales start at the root mean square of their bank, where the prior N(0, 1) of v fits best:
        from elsewhere descent would spend most of its steps on the way. All alike, since a group
        whose weights happen to start small would otherwise go before it learns.
        """
        shapes = {name: value.shape for name, value in values.items()}
        flat = FlatLayout({n: torch.Size(s) for n, s in shapes.items()}).join(values).detach()
        dtype = str(flat.dtype).removeprefix("torch.")
        family = cls(shapes, {n: places[n] for n in shapes}, scales, threshold, centred, dtype).to(
            flat.device
        )
        with torch.no_grad():
            sizes = family.bank_sizes(values)
            family.scales.begin(sizes, init_std)
            size = family.layout.join(
                {
                    n: family.of_group(n, sizes[p.bank]).expand(family.shapes[n])
                    for n, p in family.places.items()
                }
            )
            family.flat_mean.copy_(flat if centred else flat / size)
            family.raw_std.copy_((init_std * (size if centred else torch.ones_like(size))).log())
        return family

    @torch.no_grad()
    def bank_sizes(self, values: Mapping[str, Tensor]) -> Params:
        """Root mean square of the values of every bank, one where all are zero, for each of its
        groups ``(G,)``.
        """
        squares, numel = (
            self._sums(self.layout.join(values).detach().square()),
            self._sums(torch.ones_like(self.flat_mean)),
        )
        means = {
            bank: float(total.sum() / numel[bank].sum()) or 1.0 for bank, total in squares.items()
        }
        return {bank: torch.full_like(total, means[bank] ** 0.5) for bank, total in squares.items()}

    def of_group(self, name: str, values: Tensor) -> Tensor:
        """Numbers per group ``(..., G)`` of a parameter's bank, shaped to broadcast against it."""
        return self.places[name].over(values, self.shapes[name])

    def group_scores(self) -> Params:
        """Score ``(G,)`` of every group, by bank: high where it says little."""
        square, var = self._sums(self.flat_mean.square()), self._sums((2.0 * self.raw_std).exp())
        return {
            bank: self.scales.score(bank, square[bank], var[bank], self.centred)
            for bank in self.scales.counts
        }

    def _sums(self, flat: Tensor) -> Params:
        """Sums ``(G,)`` over groups, by bank, of numbers of all weights in a row."""
        out: Params = {}
        for name, values in self.layout.split(flat).items():
            place = self.places[name]
            part = place.sums(values)
            out[place.bank] = out[place.bank] + part if place.bank in out else part
        return out

    @torch.no_grad()
    def groups_kept(self, threshold: float | None = None) -> Params:
        """True where a group stays ``(G,)``, by bank."""
        limit = self.threshold if threshold is None else threshold
        return {bank: score < limit for bank, score in self.group_scores().items()}

    def keep_mask(self, threshold: float | None = None) -> Params:
        """True where a weight stays, by name and in the shape of the weight; what training has
        pruned is zero anyway.
        """
        stays = self.groups_kept(threshold)
        return {
            n: self.of_group(n, stays[self.places[n].bank]).expand(shape)
            for n, shape in self.shapes.items()
        }

    def inner(self) -> tuple[Params, Params]:
        """Means of v, zero in pruned groups, and its variances; of w where it is centred.

        The gradient of a mean is passed on though it counts as zero: a group that was pruned by the
        chance of its start can come back.
        """
        stays, mean, var = (
            self.groups_kept(),
            self.layout.split(self.flat_mean),
            self.layout.split((2.0 * self.raw_std).exp()),
        )
        return {
            n: mean[n] - mean[n].detach() * ~self.of_group(n, stays[self.places[n].bank])
            for n in self.names
        }, var

    def mean(self) -> Params:
        """E[z] mu, zeros in pruned groups."""
        mean, _ = self.inner()
        if self.centred:
            return mean
        return {
            n: mean[n] * self.of_group(n, self.scales.first(self.places[n].bank))
            for n in self.names
        }

    def std(self) -> Params:
        """Standard deviation of every weight: V[w] = V[z] (mu^2 + sigma^2) + E[z]^2 sigma^2."""
        mean, var = self.inner()
        if self.centred:
            return {n: var[n].sqrt() for n in self.names}
        out = {}
        for n in self.names:
            first, second = (
                self.of_group(n, moment(self.places[n].bank))
                for moment in (self.scales.first, self.scales.second)
            )
            out[n] = (
                (second - first.square()).clamp_min(0) * mean[n].square() + second * var[n]
            ).sqrt()
        return out

    def kl_elementwise(self, prior: Mapping[str, Distribution]) -> Tensor:
        """That of the weights given their scales and that of the scales; an error under a prior
        that has no such groups.
        """
        odd = {
            n: p
            for n, p in prior.items()
            if not (isinstance(p, GroupPrior) and p.label == self.scales.label)
        }
        if odd:
            name, given = next(iter(odd.items()))
            raise CredoError(
                f"The prior of {name!r} is {given}; the family {self.name!r} brings the "
                f"{self.scales.label} prior of its groups with it. "
                f"Give it GroupPrior({self.scales.label!r}, ...), as the methods do."
            )
        if not self.centred:
            square = torch.dot(self.flat_mean, self.flat_mean) + (2.0 * self.raw_std).exp().sum()
            return 0.5 * (square - self.layout.numel) - self.raw_std.sum() + self.scales.kl()
        mean, var = self.layout.split(self.flat_mean), self.layout.split((2.0 * self.raw_std).exp())
        total = self.scales.kl() - self.raw_std.sum() - 0.5 * self.layout.numel
        for n in self.names:
            log, inverse = (
                self.of_group(n, number).expand(self.shapes[n])
                for number in self.scales.inverse(self.places[n].bank)
            )
            total = total + log.sum() + 0.5 * ((mean[n].square() + var[n]) * inverse).sum()
        return total

    def begin(self, noise: Noise, fold: Any = None) -> GroupScaleDraw:
        """Nothing is drawn yet."""
        return GroupScaleDraw(self, noise)

    def latents(self, noise: Noise) -> Params:
        """v by name, and the latents of every bank under the name of the bank with a prefix."""
        draw = self.begin(noise)
        draw.weights(self.names)
        assert draw.drawn is not None
        return draw.drawn

    def assemble(self, latents: Params) -> Params:
        """w = z v; v itself where it is centred."""
        if self.centred:
            return {n: latents[n] for n in self.names}
        scales = {
            bank: self.scales.scale(bank, latents[PREFIX + bank]) for bank in self.scales.counts
        }
        return {n: latents[n] * self.of_group(n, scales[self.places[n].bank]) for n in self.names}

    def log_prob(self, latents: Params) -> Tensor:
        """Log density of v and the latents of z; weights alone have none."""
        if any(PREFIX + bank not in latents for bank in self.scales.counts):
            raise CredoError(
                f"The family {self.name!r} has no density over weights alone: their scales are "
                "not integrated out. "
                "Ask for mean(), std(), sample() or predictions."
            )
        mean, _ = self.inner()
        normal = Normal(self.layout.join(mean), self.raw_std.exp(), validate_args=False)
        scales = {bank: latents[PREFIX + bank] for bank in self.scales.counts}
        return normal.log_prob(self.layout.join(latents)).sum(-1) + self.scales.log_prob(scales)

    def moments(
        self, op: LinearMap, mean: Tensor, var: Tensor, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """E and V of op(x, z v) + b: exact for one dense layer; positions that share a scale count
        as independent.
        """
        means, variances = self.inner()
        bias = (means[b], variances[b]) if b in means else (None, None)
        place = self.places[w]
        if op.is_embedding and not self.centred:
            means, std = self.mean(), self.std()
            return op(mean, means[w]), op(mean, std[w].square())
        own, common = self.scales.own(place.bank), self.scales.common(place.bank)
        if self.centred or place.side == "output":
            out, out_var = through_weights(op, mean, var, means[w], variances[w], *bias)
        else:
            first, second = (along(number, op.channel_axis, mean.dim()) for number in own)
            out, out_var = times_factor(mean, var, first, second)
            out, out_var = through_weights(op, out, out_var, means[w], variances[w], *bias)
        if self.centred:
            return out, out_var
        if place.side == "output":
            out, out_var = times_factor(
                out, out_var, *(along(number, op.channel_axis, out.dim()) for number in own)
            )
        return times_factor(out, out_var, *common)

    def rate_params(self) -> list[nn.Parameter]:
        """What the scales are made from."""
        return list(self.scales.parameters())

    @torch.no_grad()
    def monitor(self) -> dict[str, float]:
        """Groups that are left in every bank, and the share of weights that are pruned."""
        weights = torch.cat([mask.reshape(-1) for mask in self.keep_mask().values()])
        left = {f"kept/{bank}": float(mask.sum()) for bank, mask in self.groups_kept().items()}
        return left | {"sparsity": float((~weights).double().mean())}

    def config(self) -> dict[str, Any]:
        """Shapes, places, the part and its settings."""
        places = {name: list(place) for name, place in self.places.items()}
        dtype = str(self.flat_mean.dtype).removeprefix("torch.")
        rest = {
            "scales": self.scales.config(),
            "threshold": self.threshold,
            "centred": self.centred,
            "dtype": dtype,
        }
        return super().config() | {"places": places} | rest


class GroupScaleDraw(Draw):
    """One pass of a :class:`GroupScale`."""

    def __init__(self, family: GroupScale, noise: Noise) -> None:
        self.family, self.noise = family, noise
        self._inner: tuple[Params, Params] | None = None
        self._latents: Params = {}

    def prepare(self) -> None:
        """Means and variances of v by name."""
        self._moments()

    def _moments(self) -> tuple[Params, Params]:
        if self._inner is None:
            self._inner = self.family.inner()
        return self._inner

    def _bank(self, bank: str) -> Tensor:
        """Latents of a bank, drawn once per pass."""
        if bank not in self._latents:
            self._latents |= self.family.scales.latents(self.noise, [bank])
        return self._latents[bank]

    def weights(self, names: Iterable[str]) -> Params:
        """z v with one z per group."""
        family, names = self.family, tuple(names)
        mean, var = self._moments()
        if set(names) == set(family.names):
            eps = family.layout.split(
                self.noise.normal(names[0], (family.layout.numel,), family.flat_mean)
            )
        else:
            eps = {n: self.noise.normal(n, mean[n].shape, mean[n]) for n in names}
        inner = {n: torch.addcmul(mean[n], var[n].sqrt(), eps[n]) for n in names}
        latents = {family.places[n].bank: self._bank(family.places[n].bank) for n in names}
        if set(names) == set(family.names):
            self.drawn = inner | {PREFIX + bank: latent for bank, latent in latents.items()}
        if family.centred:
            return inner
        scales = {bank: family.scales.scale(bank, latent) for bank, latent in latents.items()}
        return {n: inner[n] * family.of_group(n, scales[family.places[n].bank]) for n in names}

    def local(
        self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise
    ) -> Tensor:
        """Scales on the units, every example with its own and every position of it with the same;
        Gaussian noise of v on the outputs.

        A word that comes twice in an example has one scale, so scales of words are drawn as
        weights.
        """
        family = self.family
        place = family.places[w]
        scaled = not family.centred
        if op.is_embedding and scaled and place.side == "input":
            return NotImplemented
        mean, var = self._moments()
        own = isinstance(b, str)
        b_mean, b_var = (mean[b], var[b]) if isinstance(b, str) else (None, None)
        if scaled and place.side == "input":
            x = x * self._units(op, x, place.bank, x.shape[op.channel_axis], x.dim(), noise)
        out = op(x, mean[w], b_mean)
        out = perturb(out, op(op.square(x), var[w], b_var), noise.normal(w, out.shape, out))
        if scaled and place.side == "output":
            out = out * self._units(op, x, place.bank, out.shape[op.channel_axis], out.dim(), noise)
        if own or b is None:
            return out
        assert isinstance(b, Tensor)
        return out + b.reshape(-1, *[1] * op.num_spatial)

    def _units(
        self, op: LinearMap, x: Tensor, bank: str, channels: int, ndim: int, noise: Noise
    ) -> Tensor:
        shape, single = op.per_example(x, channels), op.per_example(x, 1)
        return self.family.scales.local(
            bank, noise, shape, single, lambda values: along(values, op.channel_axis, ndim)
        )
