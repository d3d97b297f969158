"""Curvature H of the log-likelihood in one of its forms, and what it becomes with a prior: a log
determinant, and a Gaussian with precision H + D.

``precision`` is D by parameter: one number, or one per weight where the form allows it; of a
subnetwork, one per chosen weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from credo.core.errors import CredoError, SettingError
from credo.core.sites import FlatLayout
from credo.posteriors import EigenKron, Family, Full, LowRank, LowRankPrecision, Params, Subnetwork
from credo.posteriors.conjugate_normal import ConjugateNormal

Precision = Mapping[str, Tensor]
#: Determinants by Cholesky before eigenvalues, which cost about ten of them, are worth it.
CHOLESKY_FIRST = 4


class Block(ABC):
    """Curvature over some of the parameters, independent of the others."""

    names: tuple[str, ...]
    prior_shift: float = 0.0  # what a joint prior adds to the log evidence besides its diagonal

    @abstractmethod
    def log_det(self, precision: Precision) -> Tensor:
        """log det(H + D)."""

    def take_joint_prior(
        self, prior: ConjugateNormal, values: Params
    ) -> tuple[Params, Params] | None:
        """Add a prior with a whole covariance over just these parameters: its diagonal precision
        and the weights' distance from its mean by name; None where the form cannot.
        """
        return None

    @abstractmethod
    def family(self, values: Params, precision: Precision) -> Family:
        """N(values, (H + D)^-1)."""


@final
class DiagonalBlock(Block):
    """Only the diagonal of H, by parameter."""

    def __init__(self, diagonal: Mapping[str, Tensor]) -> None:
        self.names, self.diagonal = tuple(diagonal), dict(diagonal)

    def log_det(self, precision: Precision) -> Tensor:
        """sum log(h + d)."""
        return torch.stack(
            [(self.diagonal[n].double() + precision[n]).log().sum() for n in self.names]
        ).sum()

    def family(self, values: Params, precision: Precision) -> Family:
        """Independent Gaussians."""
        std = {
            n: (self.diagonal[n].double() + precision[n]).rsqrt().to(values[n]) for n in self.names
        }
        return LowRank.of_moments({n: values[n] for n in self.names}, std)


@final
class KronBlock(Block):
    """H = B x A of one weight (out, in), by the factors' eigenvectors and eigenvalues."""

    def __init__(
        self, name: str, left: Tensor, left_values: Tensor, right: Tensor, right_values: Tensor
    ) -> None:
        self.names = (name,)
        self.left, self.right = left, right
        self.eigenvalues = torch.outer(
            left_values.clamp_min(0.0), right_values.clamp_min(0.0)
        ).double()

    def _damping(self, precision: Precision) -> Tensor:
        (name,) = self.names
        value = precision[name]
        if value.dim() and not bool((value == value.reshape(-1)[0]).all()):
            raise SettingError(
                f"structure='kfac' needs one prior width for all of {name!r}, but its prior has "
                "several; use 'diagonal' or 'full'."
            )
        return value.reshape(-1)[0] if value.dim() else value

    def log_det(self, precision: Precision) -> Tensor:
        """sum log(b_o a_i + d)."""
        return (self.eigenvalues + self._damping(precision)).log().sum()

    def family(self, values: Params, precision: Precision) -> Family:
        """Independent in the eigenvectors."""
        (name,) = self.names
        std = (self.eigenvalues + self._damping(precision)).rsqrt()
        return EigenKron.of(name, values[name], self.left, self.right, std)


@final
class FullBlock(Block):
    """All of H over several parameters, ``(P, P)`` in the order of their names."""

    def __init__(self, shapes: Mapping[str, torch.Size], matrix: Tensor) -> None:
        self.layout = FlatLayout(shapes)
        self.names, self.matrix = tuple(shapes), matrix
        # what a joint prior's precision has besides its diagonal
        self.prior_off_diagonal: Tensor | None = None
        self._rounded = False
        self._log_dets, self._values = 0, None

    def _total(self, precision: Precision) -> Tensor:
        shapes = self.layout.shapes
        diagonal = torch.cat([precision[n].expand(shapes[n]).reshape(-1) for n in self.names])
        total = self.matrix.double() + torch.diag(diagonal.to(self.matrix.device, torch.float64))
        return total if self.prior_off_diagonal is None else total + self.prior_off_diagonal

    def _factor(self, precision: Precision) -> Tensor:
        factor, failed = torch.linalg.cholesky_ex(self._total(precision))
        if int(failed) and not self._rounded:
            # A sum in single precision has eigenvalues below zero, which a wide prior does not
            # hide.
            values, vectors = torch.linalg.eigh(self.matrix.double())
            self.matrix, self._rounded = (vectors * values.clamp_min(0.0)) @ vectors.mT, True
            return self._factor(precision)
        if int(failed):
            raise CredoError(
                "The curvature plus the prior's precision is not positive definite; give the "
                "network a narrower prior."
            )
        return factor

    def log_det(self, precision: Precision) -> Tensor:
        """By Cholesky; by eigenvalues, found once, where one number is the precision of all and is
        asked for again and again.

        Numbers that are equal but move apart, as those of two layers, have a gradient each: they
        must be the same tensor, or have none.
        """
        single = [precision[name] for name in self.names]
        self._log_dets += 1
        move_apart = any(
            p is not single[0] and (p.requires_grad or bool(p != single[0]))
            for p in single
            if not p.dim()
        )
        if (
            self._log_dets <= CHOLESKY_FIRST
            or self.prior_off_diagonal is not None
            or move_apart
            or any(p.dim() for p in single)
        ):
            return 2.0 * self._factor(precision).diagonal().log().sum()
        if self._values is None:
            self._values = torch.linalg.eigvalsh(self.matrix.double()).clamp_min(0.0)
        return (self._values + single[0].to(self._values)).log().sum()

    def take_joint_prior(
        self, prior: ConjugateNormal, values: Params
    ) -> tuple[Params, Params] | None:
        """P0 = its diagonal, which the evidence counts by weight, and the rest, which is the
        block's.
        """
        if prior.names != self.names:
            return None
        inverse = torch.cholesky_inverse(prior.tril)
        offset = self.layout.join({n: values[n].double() for n in self.names}) - prior.mean
        diagonal = inverse.diagonal().clone()
        off_diagonal = inverse - torch.diag(diagonal)
        self.prior_off_diagonal = off_diagonal
        self.prior_shift = float(
            0.5 * torch.linalg.slogdet(inverse).logabsdet - 0.5 * diagonal.log().sum()
        ) - float(0.5 * offset @ off_diagonal @ offset)
        return self.layout.split(diagonal), self.layout.split(offset)

    def root(self, precision: Precision) -> Tensor:
        """A lower triangular root of the covariance: U^-T, where the precision is U U^T for an
        upper triangular U.
        """
        turned = torch.linalg.cholesky_ex(self._total(precision).flip(0, 1))
        if int(turned.info):
            self._factor(precision)  # mends the curvature's rounding, or says what is wrong
            turned = torch.linalg.cholesky_ex(self._total(precision).flip(0, 1))
        upper = turned.L.flip(0, 1)
        one = torch.eye(len(upper), dtype=upper.dtype, device=upper.device)
        return torch.linalg.solve_triangular(upper, one, upper=True).mT

    def family(self, values: Params, precision: Precision) -> Family:
        """The joint Gaussian."""
        flat = self.layout.join(values)
        family = Full(self.layout.shapes, str(flat.dtype).removeprefix("torch.")).to(flat.device)
        return family.set(flat, self.root(precision).to(flat))


@final
class SubnetworkBlock(Block):
    """All of H over single weights, ``(S, S)``, at flat ``places`` by parameter; the others have
    none, and are points.
    """

    def __init__(self, places: Mapping[str, Tensor], matrix: Tensor) -> None:
        self.names, self.places = tuple(places), dict(places)
        self.inside = FullBlock({n: p.shape for n, p in places.items()}, matrix)

    def log_det(self, precision: Precision) -> Tensor:
        return self.inside.log_det(precision)

    def family(self, values: Params, precision: Precision) -> Family:
        """The joint Gaussian of the chosen weights, in all of the parameters given."""
        return Subnetwork.of(values, self.places, self.inside.root(precision))


@final
class LowRankBlock(Block):
    """H = U U^T with few columns, ``(P, K)``."""

    def __init__(self, shapes: Mapping[str, torch.Size], factor: Tensor) -> None:
        self.layout = FlatLayout(shapes)
        self.names, self.factor = tuple(shapes), factor

    def _diagonal(self, precision: Precision) -> Tensor:
        shapes = self.layout.shapes
        return torch.cat([precision[n].double().expand(shapes[n]).reshape(-1) for n in self.names])

    def log_det(self, precision: Precision) -> Tensor:
        """sum log d + log det(I + U^T D^-1 U)."""
        diagonal = self._diagonal(precision)
        white = self.factor.double() * diagonal.rsqrt().unsqueeze(-1)
        inner = torch.eye(white.shape[1], dtype=white.dtype, device=white.device) + white.mT @ white
        return diagonal.log().sum() + torch.linalg.slogdet(inner).logabsdet

    def family(self, values: Params, precision: Precision) -> Family:
        """Narrow along U, as wide as the prior elsewhere."""
        return LowRankPrecision.of(
            {n: values[n] for n in self.names}, self._diagonal(precision), self.factor
        )
