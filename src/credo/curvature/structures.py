"""The four forms of curvature, measured in passes over the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.seeds import generator
from credo.core.sites import Site
from credo.core.tree import take
from credo.curvature.blocks import Block, DiagonalBlock, FullBlock, KronBlock, LowRankBlock
from credo.curvature.sweep import BATCH, BUDGET, Looked, Sweep, example_rows, look, rest, whole_rows
from credo.curvature.taps import Tap, layer_rows
from credo.engine.model import Model
from credo.posteriors import Family, Full, MeanField, PosteriorPrior
from credo.posteriors.family import FlatLayout
from credo.posteriors.full import MAX_NUMEL

# a parameter without factors up to this size keeps its whole block beside Kronecker factors, a
# larger one its diagonal
SMALL = 1024

HALVED = 256  # columns from which half a symmetric product in four pieces is quicker than all of it


class Measured(NamedTuple):
    """Curvature in independent blocks, the negative log-likelihood it was measured at, and flat
    places of single weights if it is about those.
    """

    blocks: list[Block]
    nll: float
    chosen: Mapping[str, Tensor] | None = None


def _grams(rows: Tensor) -> Tensor:
    """X^T X of ``(..., D)``, flattened to rows."""
    flat = rows.reshape(-1, rows.shape[-1])
    return flat.mT @ flat


class Gram:
    """A sum of X^T X, of which only the blocks on and above the diagonal are computed."""

    def __init__(self, width: int, like: Tensor) -> None:
        self.total = like.new_zeros(width, width)
        self.step = width if width < HALVED else -(-width // 4)

    def add(self, rows: Tensor) -> None:
        """One more batch ``(..., D)``."""
        flat = rows.reshape(-1, rows.shape[-1])
        for start in range(0, len(self.total), self.step):
            part = slice(start, start + self.step)
            self.total[part, start:].addmm_(flat[:, part].mT, flat[:, start:])

    def matrix(self) -> Tensor:
        """The whole of it."""
        upper = self.total.triu()
        return upper + upper.triu(1).mT


class _Rest:
    """Parameters without factors: diagonals, or whole blocks of small ones."""

    def __init__(
        self, sites: Mapping[str, Site], values: Mapping[str, Tensor], whole: bool
    ) -> None:
        self.sites = dict(sites)
        self.whole = {n for n, s in sites.items() if whole and s.numel <= SMALL}
        self.sums = {
            n: values[n].new_zeros((s.numel, s.numel) if n in self.whole else (s.numel,))
            for n, s in self.sites.items()
        }

    def add(self, sweep: Sweep, x: object, root: Tensor) -> None:
        """One batch."""
        for _, found in whole_rows(sweep, self.sites, x, root) if self.sites else ():
            for name, rows in found.items():
                self.sums[name] += _grams(rows) if name in self.whole else rows.square().sum((0, 1))

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
    others = _Rest(rest(sweep, taps), sweep.values, whole=False)
    sums = {n: torch.zeros_like(sweep.values[n]) for tap in taps.values() for n in tap.names}
    nll = 0.0
    for x, seen in look(sweep, taps):
        nll += seen.nll
        for grads in seen.grads:
            for path, tap in taps.items():
                _add_squares(sums, tap, seen.inputs[path], grads[path])
        others.add(sweep, x, seen.root)
    return Measured([*([DiagonalBlock(sums)] if sums else []), *others.blocks()], nll)


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
    others = _Rest(rest(sweep, taps), sweep.values, whole=True)
    left: dict[str, Gram] = {}
    right: dict[str, Gram] = {}
    nll, examples, places = 0.0, 0, {}
    for x, seen in look(sweep, taps):
        nll, examples = nll + seen.nll, examples + seen.examples
        for path, inputs in seen.inputs.items():
            places[path] = inputs.shape[1]
            if taps[path].weight is not None:
                right.setdefault(path, Gram(inputs.shape[-1], inputs)).add(inputs)
        for grads in seen.grads:
            for path, g in grads.items():
                left.setdefault(path, Gram(g.shape[-1], g)).add(g)
        others.add(sweep, x, seen.root)
    blocks: list[Block] = []
    for path, tap in taps.items():
        b, q = _eigen(left[path].matrix())
        if tap.weight is not None:
            a, p = _eigen(right[path].matrix() / (examples * places[path]))
            blocks.append(KronBlock(tap.weight, q, b, p, a))
        if tap.bias is not None:
            one = torch.ones(1, 1, dtype=q.dtype, device=q.device)
            blocks.append(KronBlock(tap.bias, q, b, one, one[0]))
    return Measured([*blocks, *others.blocks()], nll)


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors."""
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors


def full(sweep: Sweep, rank: int = 0) -> Measured:
    """Everything, over all random parameters at once."""
    layout = FlatLayout({n: s.shape for n, s in sweep.model.random.items()})
    taps = sweep.taps()
    others = rest(sweep, taps)
    first = next(iter(sweep.values.values()))
    total = torch.zeros(layout.numel, layout.numel, dtype=first.dtype, device=first.device)
    nll, size = 0.0, 0
    lone = next(iter(taps.values())) if len(taps) == 1 and not others else None
    for x, seen in look(sweep, taps, BATCH):
        nll += seen.nll
        grads = [
            dict(g) for g in seen.grads
        ]  # every direction's: as large as the activations times K
        if lone is not None and _last(lone, grads, seen.root):
            _add_last(total, layout, lone, seen.inputs[lone.path][:, 0], seen.root)
            continue
        size = max(1, BUDGET // (layout.numel * seen.root.shape[-1]))
        for start in range(0, seen.examples, size):
            rows = slice(start, start + size)
            flat = _flat_rows(sweep, layout, taps, others, x, seen, grads, rows)
            total += _grams(flat)
    return Measured([FullBlock(layout.shapes, total)], nll)


def _flat_rows(
    sweep: Sweep,
    layout: FlatLayout,
    taps: Mapping[str, Tap],
    others: Mapping[str, Site],
    x: object,
    seen: Looked,
    grads: list[dict[str, Tensor]],
    rows: slice,
) -> Tensor:
    """R^T J of a few examples, ``(n, K, P)`` in the layout's order."""
    parts: dict[str, Tensor] = {}
    for path, tap in taps.items():
        stacked = torch.stack([g[path][rows] for g in grads], 1)
        parts |= {
            n: r.dense() for n, r in layer_rows(tap, seen.inputs[path][rows], stacked).items()
        }
    if others:
        parts |= example_rows(
            sweep.model, sweep.values, sweep.buffers, others, take(x, rows), seen.root[rows]
        )
    return torch.cat([parts[n] for n in layout.shapes], -1)


def _last(tap: Tap, grads: list[dict[str, Tensor]], root: Tensor) -> bool:
    """Whether a layer's outputs are the network's own, at one place: then its gradients are the
    directions themselves.
    """
    return all(g[tap.path].shape[1] == 1 for g in grads) and all(
        g[tap.path].shape[-1] == root.shape[1] and torch.equal(g[tap.path][:, 0], column)
        for g, column in zip(grads, root.unbind(-1), strict=True)
    )


def _add_last(total: Tensor, layout: FlatLayout, tap: Tap, inputs: Tensor, root: Tensor) -> None:
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
        nll, product = _times(sweep, layout, basis)
    small = (basis.double().mT @ product.double() + product.double().mT @ basis.double()) / 2
    values, vectors = torch.linalg.eigh(small)
    keep = slice(max(0, count - rank), count)
    factor = basis.double() @ (vectors[:, keep] * values[keep].clamp_min(0.0).sqrt())
    return Measured([LowRankBlock(layout.shapes, factor.to(first))], nll)


def _times(sweep: Sweep, layout: FlatLayout, vectors: Tensor) -> tuple[float, Tensor]:
    """H V for ``(P, K)`` vectors, one pass over the data."""
    taps = sweep.taps()
    others = rest(sweep, taps)
    product, nll = torch.zeros_like(vectors), 0.0
    for x, seen in look(sweep, taps):
        nll += seen.nll
        grads = [dict(g) for g in seen.grads]
        size = max(1, BUDGET // (layout.numel * seen.root.shape[-1]))
        for start in range(0, seen.examples, size):
            flat = _flat_rows(
                sweep, layout, taps, others, x, seen, grads, slice(start, start + size)
            ).flatten(0, 1)
            product += flat.mT @ (flat @ vectors)
    return nll, product


class Structure(NamedTuple):
    """A form of curvature: how it is measured, which earlier posteriors it can add data to, and for
    how many parameters.

    ``noise``: whether its evidence can tell noise from what the network explains. A diagonal leaves
    out how weights make up for each other, and would rather call everything noise.
    """

    measure: Callable[[Sweep, int], Measured]
    priors: tuple[type[Family], ...]
    largest: int | None = None
    noise: bool = True

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
        earlier = model.prior.posterior.members if isinstance(model.prior, PosteriorPrior) else []
        odd = next(
            (f.name for f in earlier if f.atoms != 1 and not isinstance(f, self.priors)), None
        )
        if odd is not None:
            raise SettingError(
                f"structure={name!r} cannot add data to an earlier posterior of the family "
                f"{odd!r}; fit both with 'diagonal', or both with 'full'."
            )


STRUCTURES: dict[str, Structure] = {
    "diagonal": Structure(diagonal, (MeanField,), noise=False),
    "kfac": Structure(kfac, ()),
    "low_rank": Structure(low_rank, (MeanField,)),
    "full": Structure(full, (MeanField, Full), MAX_NUMEL),
}
