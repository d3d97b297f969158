"""Noise that multiplies: w = W s with E[s] = 1, one factor per input unit of a layer or per unit
that a dropout module masks.

Masking a unit of a layer's input and masking the column of weights that reads it are the same
thing, so the two textbook ways of writing dropout are one family under two estimators: ``weights``
scales columns, ``local`` scales activations, example by example. Densities live on the factors; the
weights have none, since all weights of a unit share one factor.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credo.core.errors import CredoError
from credo.core.linear_map import LinearMap, along
from credo.core.seeds import Noise
from credo.core.sites import FlatLayout
from credo.posteriors.family import Draw, Family, Params


class Places(NamedTuple):
    """Where the noise of a family is.

    ``axes``: weights whose input units are scaled, with (the axis they lie along, groups of the
    convolution). ``masks``: places of dropout modules, with the shape of their masks. ``feeds``:
    weights that read the units of such a mask. The first two are scaled by draws, the first and the
    last cost what scaled weights cost. ``noisy_modules``: those with noise of their own that goes
    on beside it. ``fed_axes``: as ``axes``, of the weights in ``feeds`` whose units do not lie
    along axis 1.
    """

    axes: dict[str, tuple[int, int]] = {}
    masks: dict[str, tuple[int, ...]] = {}
    feeds: dict[str, str] = {}
    noisy_modules: tuple[str, ...] = ()
    fed_axes: dict[str, tuple[int, int]] = {}

    @classmethod
    def of(cls, given: Places | Mapping[str, Any]) -> Places:
        """Places from what JSON makes of them, or themselves."""
        if isinstance(given, Places):
            return given
        axes, masks, fed = (
            {n: tuple(v) for n, v in given[key].items()} for key in ("axes", "masks", "fed_axes")
        )
        return cls(
            axes,
            masks,
            dict(given["feeds"]),
            tuple(given.get("noisy_modules", given.get("live", ()))),
            fed,
        )  # type: ignore[arg-type]


class Multiplicative(Family):
    """E[w] in one flat vector, and the noise a subclass puts on it.

    Parameters in none of the places are points.
    """

    independent: ClassVar[bool] = True
    kl_is_bound: ClassVar[bool] = False
    kind: ClassVar[str]  # of the noise a factor is made from: "uniform" or "normal"

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        places: Places | Mapping[str, Any],
        dtype: str = "float32",
    ) -> None:
        where = Places.of(places)
        super().__init__({**shapes, **where.masks})
        self.places = where
        self.layout = FlatLayout({n: self.shapes[n] for n in shapes})
        self.flat_mean = nn.Parameter(torch.zeros(self.layout.numel, dtype=getattr(torch, dtype)))

    @classmethod
    def begun(cls, values: Mapping[str, Tensor], places: Places, **settings: Any) -> Self:
        """A family whose mean is at ``values``."""
        flat = FlatLayout({n: v.shape for n, v in values.items()}).join(values).detach()
        shapes = {n: v.shape for n, v in values.items()}
        family = cls(shapes, places, dtype=str(flat.dtype).removeprefix("torch."), **settings).to(
            flat.device
        )
        with torch.no_grad():
            family.flat_mean.copy_(flat)
        return family

    @property
    def noised(self) -> tuple[str, ...]:
        """The names that draws change."""
        return (*self.places.axes, *self.places.masks)

    @property
    def fixed(self) -> frozenset[str]:
        """Points: what every draw leaves alone."""
        return frozenset(self.names) - frozenset(self.noised)

    @property
    def noisy_modules(self) -> frozenset[str]:
        """Modules whose own noise goes on beside the family's."""
        return frozenset(self.places.noisy_modules)

    @property
    def masks(self) -> dict[str, tuple[int, ...]]:
        """Places of dropout modules it fills, with their shapes."""
        return self.places.masks

    @property
    def spread(self) -> dict[str, str]:
        """Each weight whose units are noisy, with the name under which their noise is: its own, or
        that of the mask it reads.
        """
        return {name: name for name in self.places.axes} | self.places.feeds

    def unit_shape(self, name: str) -> tuple[int, ...]:
        """The factors of one draw: one per input unit of a weight, or a mask's own shape."""
        if name in self.places.masks:
            return self.places.masks[name]
        axis, groups = self.places.axes[name]
        return (self.shapes[name][axis] * (groups if axis == 1 else 1),)

    def over(self, name: str, units: Tensor) -> Tensor:
        """One number per input unit ``(..., units)`` shaped to broadcast against the weight ``(...,
        *shape)``.
        """
        axis, groups = self.places.axes.get(name) or self.places.fed_axes.get(name, (1, 1))
        shape, lead = self.shapes[name], units.shape[:-1]
        if axis == 1 and groups > 1:
            rows = units.reshape(*lead, groups, 1, shape[1]).expand(
                *lead, groups, shape[0] // groups, shape[1]
            )
            return rows.reshape(*lead, shape[0], shape[1], *[1] * (len(shape) - 2))
        return units.reshape(*lead, *[-1 if place == axis else 1 for place in range(len(shape))])

    def mean(self) -> Params:
        """W, since factors have mean one; a mask's mean is one."""
        return self.layout.split(self.flat_mean) | {
            n: self.flat_mean.new_ones(s) for n, s in self.places.masks.items()
        }

    def begin(self, noise: Noise, fold: Any = None) -> MultiplicativeDraw:
        """Nothing is drawn yet."""
        return MultiplicativeDraw(self, noise)

    def log_prob(self, latents: Params) -> Tensor:
        """The weights have no density: always an error."""
        raise CredoError(
            f"The family {self.name!r} has no density over weights: its noise is on units. Ask "
            "for mean(), sample() or predictions."
        )

    @abstractmethod
    def factor(self, name: str, raw: Tensor, align: Callable[[Tensor], Tensor]) -> Tensor:
        """Factors from noise of the kind of this family; ``align`` shapes one number per unit to
        broadcast against ``raw``.
        """

    @abstractmethod
    def excess(self, name: str) -> Tensor:
        """alpha = V[s] of the factors under ``name``: one number, or one per unit."""

    @abstractmethod
    def kl_elementwise(self, prior: Mapping[str, Distribution]) -> Tensor | None:
        """Minus the expected log prior, minus the entropy of the noise; None where it is not known
        in closed form.
        """

    def to_units(self, weight: str, values: Tensor) -> Tensor:
        """Numbers per unit of a weight's source of noise, shaped to broadcast against the weight.

        A mask over the channels of an image that is flattened before a dense layer holds for all
        entries of its channel.
        """
        if values.dim() == 0:
            return values
        if weight in self.places.axes:
            return self.over(weight, values)
        axis, groups = self.places.fed_axes.get(weight, (1, 1))
        flat, inputs = values.reshape(-1), self.shapes[weight][axis] * (groups if axis == 1 else 1)
        if inputs % flat.numel():
            return flat.mean()
        return Multiplicative.over(self, weight, flat.repeat_interleave(inputs // flat.numel()))

    def moments(
        self, op: LinearMap, mean: Tensor, var: Tensor, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """V[y] = op(var_x + alpha (mean_x^2 + var_x), W^2): fast dropout, units independent (Wang
        and Manning 2013).
        """
        values = self.mean()
        out = op(mean, values[w], None if b is None else values[b])
        if op.is_product:
            return out, self.excess(w) * (mean * mean + var) + var
        if w in self.fixed:
            return out, op(var, values[w] ** 2)
        if op.is_embedding:
            return out, self.over(w, self.excess(w).expand(self.unit_shape(w)))[
                mean.long()
            ].expand_as(out) * out**2
        alpha = self.excess(w)
        alpha = alpha if alpha.dim() == 0 else along(alpha, op.channel_axis, mean.dim())
        return out, op(var + alpha * (mean * mean + var), values[w] ** 2)

    def config(self) -> dict[str, Any]:
        """Shapes, places and dtype."""
        shapes = {n: list(s) for n, s in self.layout.shapes.items()}
        dtype = str(self.flat_mean.dtype).removeprefix("torch.")
        return {
            "name": self.name,
            "shapes": shapes,
            "places": self.places._asdict(),
            "dtype": dtype,
        }


class MultiplicativeDraw(Draw):
    """One pass of a :class:`Multiplicative`."""

    def __init__(self, family: Multiplicative, noise: Noise) -> None:
        self.family, self.noise = family, noise

    def factors(self, names: Sequence[str]) -> Params:
        """Factors of the named places, from one stretch of noise."""
        family = self.family
        shapes = [family.unit_shape(name) for name in names]
        sizes = [math.prod(shape) for shape in shapes]
        raw = getattr(self.noise, family.kind)(names[0], (sum(sizes),), family.flat_mean)
        pieces = raw.split_with_sizes(sizes, -1)
        lead = self.noise.lead
        return {
            name: self.factor(name, piece.reshape(*lead, *shape), lambda values: values, None)
            for name, piece, shape in zip(names, pieces, shapes, strict=True)
        }

    def factor(
        self, name: str, raw: Tensor, align: Callable[[Tensor], Tensor], axis: int | None
    ) -> Tensor:
        """Factors from noise; ``axis``: along which every example has its own, if they do."""
        return self.family.factor(name, raw, align)

    def weights(self, names: Iterable[str]) -> Params:
        """W with its columns scaled; masks themselves."""
        family, names = self.family, tuple(names)
        noised = [name for name in family.noised if name in names]
        scaled = self.factors(noised) if noised else {}
        values, lead, out = family.layout.split(family.flat_mean), self.noise.lead, {}
        for name in names:
            if name in family.places.masks:
                out[name] = scaled[name]
            elif name in scaled:
                out[name] = values[name] * family.over(name, scaled[name])
            else:
                out[name] = (
                    values[name].expand(*lead, *values[name].shape) if lead else values[name]
                )
        return out

    def local(
        self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise
    ) -> Tensor:
        """The input scaled, every example by its own factors and every position of an example by
        the same.
        """
        family = self.family
        if op.is_embedding and w in family.noised:
            return NotImplemented
        values = self._values
        bias = values[b] if isinstance(b, str) else b
        if w in family.places.masks:
            shape = list(family.places.masks[w])
            if op.example_axis is not None:
                shape[op.example_axis] = x.shape[op.example_axis]
            return self.scaled(w, x, tuple(shape), op.example_axis, noise, lambda values: values)
        if w not in family.places.axes:
            return op(x, values[w], bias)
        shape = op.per_example(x, x.shape[op.channel_axis])
        scaled = self.scaled(
            w, x, shape, op.example_axis, noise, lambda v: along(v, op.channel_axis, x.dim())
        )
        return op(scaled, values[w], bias)

    def scaled(
        self,
        w: str,
        x: Tensor,
        shape: tuple[int, ...],
        axis: int | None,
        noise: Noise,
        align: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """x times factors of ``shape``."""
        raw = getattr(noise, self.family.kind)(w, shape, self.family.flat_mean)
        return x * self.factor(
            w, raw, lambda values: values if values.dim() == 0 else align(values), axis
        )

    def prepare(self) -> None:
        """The values by name, made once."""
        self._values = self.family.layout.split(self.family.flat_mean)
