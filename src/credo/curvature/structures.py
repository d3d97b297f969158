"""The four forms of curvature, measured in passes over the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.seeds import generator
from credo.core.sites import FlatLayout, Site
from credo.core.tree import take
from credo.curvature.blocks import (
    Block,
    DiagonalBlock,
    FullBlock,
    KronBlock,
    LowRankBlock,
    Precision,
)
from credo.curvature.sweep import (
    BATCH,
    BUDGET,
    ObservedBatch,
    Sweep,
    example_jacobians,
    jacobian_chunks,
    observe,
)
from credo.curvature.taps import Tap, layer_jacobians, untapped
from credo.engine.model import Model
from credo.posteriors import Family, Params, Posterior
from credo.posteriors.full import MAX_NUMEL

# a parameter without factors up to this size keeps its whole block beside Kronecker factors, a
# larger one its diagonal
WHOLE_BLOCK_NUMEL = 1024

#: Columns from which half a symmetric product in four pieces is quicker than all of it.
HALVED_FROM = 256


class Measured(NamedTuple):
    """Curvature in independent blocks, the negative log-likelihood it was measured at, and flat
    places of single weights if it is about those.
    """

    blocks: list[Block]
    nll: float
    chosen: Mapping[str, Tensor] | None = None

    def posterior(self, model: Model, values: Params, precision: Precision) -> Posterior:
        """The Gaussian of every block around these values, under a prior of this precision, and
        points for what is not random.
        """
        random = {name: values[name] for name in model.random}
        return model.with_points([block.family(random, precision) for block in self.blocks], values)


def _grams(vectors: Tensor) -> Tensor:
    """X^T X of ``(..., D)``, flattened to rows."""
    flat = vectors.reshape(-1, vectors.shape[-1])
    return flat.mT @ flat


class Gram:
    """A sum of X^T X, of which only the blocks on and above the diagonal are computed."""

    def __init__(self, width: int, like: Tensor) -> None:
        self.total = like.new_zeros(width, width)
        self.step = width if width < HALVED_FROM else -(-width // 4)

    def add(self, vectors: Tensor) -> None:
        """One more batch ``(..., D)``."""
        flat = vectors.reshape(-1, vectors.shape[-1])
        for start in range(0, len(self.total), self.step):
            part = slice(start, start + self.step)
            self.total[part, start:].addmm_(flat[:, part].mT, flat[:, start:])

    def matrix(self) -> Tensor:
        """The whole of it."""
        upper = self.total.triu()
        return upper + upper.triu(1).mT


class _UnfactoredSums:
    """Curvature of parameters without factors: diagonals, or whole blocks of those with few
    weights.
    """

    def __init__(
        self, sites: Mapping[str, Site], values: Mapping[str, Tensor], whole: bool
    ) -> None:
        self.sites = dict(sites)
        self.whole = {n for n, s in sites.items() if whole and s.numel <= WHOLE_BLOCK_NUMEL}
        self.sums = {
            n: values[n].new_zeros((s.numel, s.numel) if n in self.whole else (s.numel,))
            for n, s in self.sites.items()
        }

    def add(self, sweep: Sweep, x: object, root: Tensor) -> None:
        """One batch."""
        for _, found in jacobian_chunks(sweep, self.sites, x, root) if self.sites else ():
            for name, jacobian in found.items():
                whole = name in self.whole
                self.sums[name] += _grams(jacobian) if whole else jacobian.square().sum((0, 1))

    def blocks(self) -> list[Block]:
        """As they are."""
        out: list[Block] = [
            FullBlock({n: self.sites[n].shape}, self.sums[n]) for n in self.sites if n in self.whole
        ]
        diagonal = {
            n: self.sums[n].reshape(s.shape) for n, s in self.sites.items() if n not in self.whole
        }
        return [*out, *([DiagonalBlock(diagonal)] if diagonal else [])]


def diagonal(sweep: Sweep, rank: int = 0) -> Measured:
    """The exact diagonal: (sum_k g_k^2)^T a^2 for layers used at one place, products of patches and
    gradients squared otherwise.
    """
    taps = sweep.taps()
    unfactored = _UnfactoredSums(untapped(sweep.model, taps), sweep.values, whole=False)
    sums = {n: torch.zeros_like(sweep.values[n]) for tap in taps.values() for n in tap.names}
    nll = 0.0
    for x, batch in observe(sweep, taps):
        nll += batch.nll
        for grads in batch.grads:
            for path, tap in taps.items():
                _add_squares(sums, tap, batch.inputs[path], grads[path])
        unfactored.add(sweep, x, batch.root)
    return Measured([*([DiagonalBlock(sums)] if sums else []), *unfactored.blocks()], nll)


def _add_squares(sums: dict[str, Tensor], tap: Tap, inputs: Tensor, grads: Tensor) -> None:
    """Squared derivatives in one direction, a few examples at a time where they have to be written
    out.
    """
    if tap.bias is not None:
        sums[tap.bias] += grads.sum(1).square().sum(0)
    if tap.weight is None:
        return
    target = sums[tap.weight]
    if inputs.shape[1] == 1:
        target += (grads[:, 0].square().mT @ inputs[:, 0].square()).reshape(target.shape)
        return
    chunk = max(1, BUDGET // target.numel())
    for a, g in zip(inputs.split(chunk), grads.split(chunk), strict=True):
        target += (g.mT @ a).square().sum(0).reshape(target.shape)


def kfac(sweep: Sweep, rank: int = 0) -> Measured:
    """Kronecker factors of every layer: A = sum a a^T / (N R), B = sum g g^T (the sum of their
    product's blocks if a and g were independent).

    Weight and bias are apart. For layers used at several places this is the "expand" form. What has
    no factors keeps its own block.
    """
    taps = sweep.taps()
    unfactored = _UnfactoredSums(untapped(sweep.model, taps), sweep.values, whole=True)
    left: dict[str, Gram] = {}
    right: dict[str, Gram] = {}
    nll, examples, places = 0.0, 0, {}
    for x, batch in observe(sweep, taps):
        nll, examples = nll + batch.nll, examples + batch.examples
        for path, inputs in batch.inputs.items():
            places[path] = inputs.shape[1]
            if taps[path].weight is not None:
                right.setdefault(path, Gram(inputs.shape[-1], inputs)).add(inputs)
        for grads in batch.grads:
            for path, g in grads.items():
                left.setdefault(path, Gram(g.shape[-1], g)).add(g)
        unfactored.add(sweep, x, batch.root)
    blocks: list[Block] = []
    for path, tap in taps.items():
        b, q = _eigen(left[path].matrix())
        if tap.weight is not None:
            a, p = _eigen(right[path].matrix() / (examples * places[path]))
            blocks.append(KronBlock(tap.weight, q, b, p, a))
        if tap.bias is not None:
            one = torch.ones(1, 1, dtype=q.dtype, device=q.device)
            blocks.append(KronBlock(tap.bias, q, b, one, one[0]))
    return Measured([*blocks, *unfactored.blocks()], nll)


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors."""
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors


def full(sweep: Sweep, rank: int = 0) -> Measured:
    """Everything, over all random parameters at once."""
    layout = FlatLayout({n: s.shape for n, s in sweep.model.random.items()})
    taps = sweep.taps()
    unfactored = untapped(sweep.model, taps)
    first = next(iter(sweep.values.values()))
    total = torch.zeros(layout.numel, layout.numel, dtype=first.dtype, device=first.device)
    nll, size = 0.0, 0
    only_tap = next(iter(taps.values())) if len(taps) == 1 and not unfactored else None
    for x, batch in observe(sweep, taps, BATCH):
        nll += batch.nll
        grads = [
            dict(g) for g in batch.grads
        ]  # every direction's: as large as the activations times K
        if only_tap is not None and _is_output_layer(only_tap, grads, batch.root):
            _add_output_layer(
                total, layout, only_tap, batch.inputs[only_tap.path][:, 0], batch.root
            )
            continue
        size = max(1, BUDGET // (layout.numel * batch.root.shape[-1]))
        for start in range(0, batch.examples, size):
            part = slice(start, start + size)
            flat = _flat_jacobians(sweep, layout, taps, unfactored, x, batch, grads, part)
            total += _grams(flat)
    return Measured([FullBlock(layout.shapes, total)], nll)


def _flat_jacobians(
    sweep: Sweep,
    layout: FlatLayout,
    taps: Mapping[str, Tap],
    unfactored: Mapping[str, Site],
    x: object,
    batch: ObservedBatch,
    grads: list[dict[str, Tensor]],
    part: slice,
) -> Tensor:
    """R^T J of a few examples, ``(n, K, P)`` in the layout's order."""
    parts: dict[str, Tensor] = {}
    for path, tap in taps.items():
        stacked = torch.stack([g[path][part] for g in grads], 1)
        parts |= {
            n: r.dense() for n, r in layer_jacobians(tap, batch.inputs[path][part], stacked).items()
        }
    if unfactored:
        parts |= example_jacobians(
            sweep.model, sweep.values, sweep.buffers, unfactored, take(x, part), batch.root[part]
        )
    return torch.cat([parts[n] for n in layout.shapes], -1)


def _is_output_layer(tap: Tap, grads: list[dict[str, Tensor]], root: Tensor) -> bool:
    """Whether a layer's outputs are the network's own, at one place: then its gradients are the
    directions themselves.
    """
    return all(g[tap.path].shape[1] == 1 for g in grads) and all(
        g[tap.path].shape[-1] == root.shape[1] and torch.equal(g[tap.path][:, 0], column)
        for g, column in zip(grads, root.unbind(-1), strict=True)
    )


def _add_output_layer(
    total: Tensor, layout: FlatLayout, tap: Tap, inputs: Tensor, root: Tensor
) -> None:
    """sum_n Lambda_n x (a_n a_n^T) for a last layer: one product of (F^2, N) and (N, I^2), without
    any Jacobian.
    """
    index = layout.split(torch.arange(layout.numel, device=total.device))
    pieces = []
    if tap.weight is not None:
        pieces.append(index[tap.weight])
    if tap.bias is not None:
        inputs = (
            torch.cat([inputs, inputs.new_ones(len(inputs), 1)], -1)
            if pieces
            else inputs.new_ones(len(inputs), 1)
        )
        pieces.append(index[tap.bias].unsqueeze(-1))
    places = torch.cat(pieces, -1).reshape(-1)
    outputs, width = root.shape[1], inputs.shape[-1]
    chunk = max(1, BUDGET // max(outputs**2, width**2))
    for r, a in zip(root.split(chunk), inputs.split(chunk), strict=True):
        middle = (r @ r.mT).flatten(1)  # Lambda, (n, F^2)
        outer = (a.unsqueeze(-1) * a.unsqueeze(-2)).flatten(1)
        part = (
            (middle.mT @ outer)
            .reshape(outputs, outputs, width, width)
            .permute(0, 2, 1, 3)
            .reshape(len(places), len(places))
        )
        if torch.equal(places, torch.arange(len(places), device=places.device)):
            total += part
        else:
            total[places.unsqueeze(-1), places.unsqueeze(0)] += part


def low_rank(sweep: Sweep, rank: int) -> Measured:
    """The largest eigenvalues and their eigenvectors, by two rounds of subspace iteration with a
    few vectors to spare.
    """
    model = sweep.model
    layout = FlatLayout({n: s.shape for n, s in model.random.items()})
    first = next(iter(sweep.values.values()))
    count = min(layout.numel, rank + max(5, rank // 4))
    basis = torch.randn(
        layout.numel, count, generator=generator("subspace"), dtype=torch.float64
    ).to(first)
    nll, product = 0.0, basis
    for _ in range(3):
        basis = torch.linalg.qr(product.double())[0].to(first)
        nll, product = _curvature_times(sweep, layout, basis)
    projected = (basis.double().mT @ product.double() + product.double().mT @ basis.double()) / 2
    values, vectors = torch.linalg.eigh(projected)
    keep = slice(max(0, count - rank), count)
    factor = basis.double() @ (vectors[:, keep] * values[keep].clamp_min(0.0).sqrt())
    return Measured([LowRankBlock(layout.shapes, factor.to(first))], nll)


def _curvature_times(sweep: Sweep, layout: FlatLayout, vectors: Tensor) -> tuple[float, Tensor]:
    """H V for ``(P, K)`` vectors, one pass over the data."""
    taps = sweep.taps()
    unfactored = untapped(sweep.model, taps)
    product, nll = torch.zeros_like(vectors), 0.0
    for x, batch in observe(sweep, taps):
        nll += batch.nll
        grads = [dict(g) for g in batch.grads]
        size = max(1, BUDGET // (layout.numel * batch.root.shape[-1]))
        for start in range(0, batch.examples, size):
            flat = _flat_jacobians(
                sweep, layout, taps, unfactored, x, batch, grads, slice(start, start + size)
            ).flatten(0, 1)
            product += flat.mT @ (flat @ vectors)
    return nll, product


class Structure(NamedTuple):
    """A form of curvature: how it is measured, and for how many parameters at most.

    ``elementwise_prior``, ``joint_prior``: whether it can add data to an earlier posterior of
    independent weights, or to one with a whole covariance. ``tells_noise``: whether its evidence
    can tell noise from what the network explains. A diagonal leaves out how weights make up for
    each other, and would rather call everything noise.
    """

    measure: Callable[[Sweep, int], Measured]
    elementwise_prior: bool = False
    joint_prior: bool = False
    largest: int | None = None
    tells_noise: bool = True

    def check(self, name: str, model: Model) -> None:
        """Refuse what cannot end well whatever the data are, so that it is said before any
        training.
        """
        numel = sum(site.numel for site in model.random.values())
        if self.largest is not None and numel > self.largest:
            raise SettingError(
                f"structure={name!r} over {numel} parameters is too large (at most "
                f"{self.largest}); use subset='last', or 'kfac'."
            )
        odd = next((f.name for f in earlier_families(model) if not self._adds_to(f)), None)
        if odd is not None:
            raise SettingError(
                f"structure={name!r} cannot add data to an earlier posterior of the family "
                f"{odd!r}; fit both with 'diagonal', or both with 'full'."
            )

    def _adds_to(self, earlier: Family) -> bool:
        if independent_normal(earlier):
            return self.elementwise_prior
        joint = earlier.conjugate_normal()
        return self.joint_prior and joint is not None and joint.noise is None


def earlier_families(model: Model) -> list[Family]:
    """The families of an earlier posterior that is the prior now, but for point estimates."""
    posterior = model.prior.earlier_posterior
    return [] if posterior is None else [f for f in posterior.factors if f.atoms != 1]


def independent_normal(family: Family) -> bool:
    """Whether a family is a normal per weight, which is an elementwise prior."""
    return family.independent and family.as_gaussian() is not None


STRUCTURES: dict[str, Structure] = {
    "diagonal": Structure(diagonal, elementwise_prior=True, tells_noise=False),
    "kfac": Structure(kfac),
    "low_rank": Structure(low_rank, elementwise_prior=True),
    "full": Structure(full, elementwise_prior=True, joint_prior=True, largest=MAX_NUMEL),
}
