"""Matrix normal: W = M + A E B^T for a weight matrix with its bias as one more column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from credo.core.linear_map import LinearMap, along, contract
from credo.core.seeds import Noise
from credo.core.sites import Site, blocks
from credo.posteriors.covariance_rules import (
    check_units,
    fixed_joint,
    per_channel,
    sandwich,
    with_rows,
)
from credo.posteriors.draw import Draw, Params
from credo.posteriors.family import Family, Gaussian, families, gaussian_entropy
from credo.posteriors.mean_field import MeanField
from credo.posteriors.start import Start
from credo.posteriors.std_transform import triangular


@families.register("kron")
class Kron(Gaussian):
    """Row covariance A A^T (outputs) times column covariance B B^T (inputs, and the bias last).

    For one layer: a weight (out, ...) and optionally its bias (out,). ``shapes`` names the weight
    first. Used by KFAC Laplace and matrix-normal VI.
    """

    name: ClassVar[str] = "kron"
    startable: ClassVar[bool] = True

    def __init__(self, shapes: Mapping[str, Sequence[int]], dtype: str = "float32") -> None:
        super().__init__(shapes)
        self.weight, *rest = self.names
        self.bias = rest[0] if rest else None
        rows = self.shapes[self.weight][0]
        cols = self.shapes[self.weight][1:].numel() + (self.bias is not None)
        kind = getattr(torch, dtype)
        self.matrix = nn.Parameter(torch.zeros(rows, cols, dtype=kind))
        self.raw_rows = nn.Parameter(torch.zeros(rows, rows, dtype=kind))
        self.raw_cols = nn.Parameter(torch.zeros(cols, cols, dtype=kind))

    @classmethod
    def over(cls, sites: Sequence[Site], values: Params, start: Start) -> list[Family]:
        """A matrix normal per layer; what is not a matrix (scales, lone biases) is independent."""
        families: list[Family] = []
        rest: list[Site] = []
        for block in blocks(sites):
            if len(block[0].shape) >= 2 and not (block[0].transposed and len(block) > 1):
                own = {site.name: values[site.name] for site in block}
                families.append(cls.start(own, start.init_std))
            else:
                rest += block
        return families + (MeanField.over(rest, values, start) if rest else [])

    @classmethod
    def start(cls, values: Mapping[str, Tensor], init_std: float = 1e-2) -> Kron:
        """Mean at ``values``; both factors diagonal, with ``init_std`` as standard deviation of
        each weight.
        """
        first = next(iter(values.values()))
        family = cls(
            {n: v.shape for n, v in values.items()}, str(first.dtype).removeprefix("torch.")
        ).to(first.device)
        with torch.no_grad():
            family.matrix.copy_(family._join({n: v.detach() for n, v in values.items()}))
            family.raw_rows.diagonal().fill_(0.5 * math.log(init_std))
            family.raw_cols.diagonal().fill_(0.5 * math.log(init_std))
        return family

    def _join(self, values: Params) -> Tensor:
        lead = values[self.weight].shape[
            : values[self.weight].dim() - len(self.shapes[self.weight])
        ]
        matrix = values[self.weight].reshape(*lead, self.shapes[self.weight][0], -1)
        return (
            matrix
            if self.bias is None
            else torch.cat([matrix, values[self.bias].unsqueeze(-1)], -1)
        )

    def _split(self, matrix: Tensor) -> Params:
        lead = matrix.shape[:-2]
        if self.bias is None:
            return {self.weight: matrix.reshape(*lead, *self.shapes[self.weight])}
        return {
            self.weight: matrix[..., :-1].reshape(*lead, *self.shapes[self.weight]),
            self.bias: matrix[..., -1],
        }

    def row_factor(self) -> Tensor:
        """A, lower triangular with a positive diagonal."""
        return triangular(self.raw_rows)

    def col_factor(self) -> Tensor:
        """B, lower triangular with a positive diagonal."""
        return triangular(self.raw_cols)

    def begin(self, noise: Noise, fold: Any = None) -> KronDraw:
        """Draw E."""
        return KronDraw(self, noise)

    def mean(self) -> Params:
        """M, split into weight and bias."""
        return self._split(self.matrix)

    def log_prob(self, latents: Params) -> Tensor:
        """-1/2 norm(A^-1 (W - M) B^-T)^2 - cols log det A - rows log det B - n/2 log 2 pi."""
        white = torch.linalg.solve_triangular(
            self.row_factor(), self._join(latents) - self.matrix, upper=False
        )
        white = torch.linalg.solve_triangular(self.col_factor(), white.mT, upper=False)
        return (
            -0.5 * white.square().sum((-2, -1))
            - self._log_det()
            - 0.5 * self.matrix.numel() * math.log(2 * math.pi)
        )

    def _log_det(self) -> Tensor:
        rows, cols = self.matrix.shape
        return cols * self.raw_rows.diagonal().sum() + rows * self.raw_cols.diagonal().sum()

    def marginals(self) -> tuple[Params, Params]:
        """Means, and the outer product of both factors' diagonals."""
        row_var, col_var = self.row_factor().square().sum(-1), self.col_factor().square().sum(-1)
        return self.mean(), self._split(torch.outer(row_var, col_var))

    def entropy(self) -> Tensor:
        """cols log det A + rows log det B + n/2 log 2 pi e."""
        return gaussian_entropy(self._log_det(), self.matrix.numel())

    def times_root(self, jacobian: Tensor) -> Tensor:
        """A^T G B for the derivatives G by the matrix."""
        pieces, start = {}, 0
        for name, shape in self.shapes.items():
            pieces[name] = jacobian[..., start : start + shape.numel()].unflatten(-1, shape)
            start += shape.numel()
        return (self.row_factor().mT @ self._join(pieces) @ self.col_factor()).flatten(-2)

    def input_map(self, op: LinearMap, x: Tensor) -> Tensor | None:
        """B^T x~ for every position: the columns' factor as the weights of the same linear map;
        None where groups split it.
        """
        if op.groups > 1 or op.transposed or op.is_embedding:
            return None
        factor = self.col_factor()
        body = factor if self.bias is None else factor[:-1]
        return op(
            x,
            body.mT.reshape(-1, *self.shapes[self.weight][1:]),
            None if self.bias is None else factor[-1],
        )

    def moments(
        self, op: LinearMap, mean: Tensor, var: Tensor, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """V[y_o] = (A A^T)_oo (norm(B^T x~)^2 + sum_i (B B^T)_ii var_i) + sum_i M_oi^2 var_i."""
        image = self.input_map(op, mean)
        if image is None or (b is None) != (self.bias is None):
            return super().moments(op, mean, var, w, b)
        means = self.mean()
        row_var = along(self.row_factor().square().sum(-1), op.channel_axis, image.dim())
        col_var = self.col_factor().square().sum(-1)
        col_var = (col_var if b is None else col_var[:-1]).reshape(1, *self.shapes[w][1:])
        out_var = image.square().sum(op.channel_axis, keepdim=True) + op(var, col_var)
        return op(mean, means[w], means[b] if b else None), row_var * out_var + op(
            var, means[w] ** 2
        )

    def joint_moments(
        self, op: LinearMap, mean: Tensor, cov: Tensor | None, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """M cov M^T + (A A^T)_or sum_k E[z_k(p) z_k(p')] between units o, r and positions p, p',
        with z = B^T x~.
        """
        image = self.input_map(op, mean)
        if image is None or (b is None) != (self.bias is None):
            return super().joint_moments(op, mean, cov, w, b)
        means, rows, image_cov = self.mean(), self.row_factor(), None
        b_mean = None if b is None else means[b]
        if cov is not None:
            check_units(image)
            body = self.col_factor() if b is None else self.col_factor()[:-1]
            body = body.mT.reshape(-1, *self.shapes[w][1:])
            image_cov = sandwich(lambda x: op(x, body), cov, mean.shape[1:])
        own_cov = with_rows(op, per_channel(op, image, image_cov).sum(1), rows @ rows.mT)
        if cov is None:
            return op(mean, means[w], b_mean), own_cov
        out, out_cov = fixed_joint(op, mean, cov, means[w], b_mean)
        return out, out_cov + own_cov

    def config(self) -> dict[str, Any]:
        """Shapes and dtype."""
        return super().config() | {"dtype": str(self.matrix.dtype).removeprefix("torch.")}


class KronDraw(Draw):
    """One pass of a :class:`Kron`."""

    def __init__(self, family: Kron, noise: Noise) -> None:
        self.family, self.noise = family, noise
        self._whole: Params | None = None

    def weights(self, names: Iterable[str]) -> Params:
        """M + A E B^T."""
        if self._whole is None:
            family = self.family
            white = self.noise.normal(family.weight, family.matrix.shape, family.matrix)
            self._whole = family._split(
                family.matrix + family.row_factor() @ white @ family.col_factor().mT
            )
        return {name: self._whole[name] for name in names}

    def _fits(self, b: str | Tensor | None) -> bool:
        return b == self.family.bias if isinstance(b, str) else self.family.bias is None

    def local(
        self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise
    ) -> Tensor:
        """op(x, M) + norm(B^T x~) A eps: exact per position."""
        image = self.family.input_map(op, x) if self._fits(b) else None
        if image is None:
            return NotImplemented
        mean = self.family.mean()
        out = op(x, mean[w], mean[b] if isinstance(b, str) else b)
        tiny = torch.finfo(image.dtype).tiny
        length = image.square().sum(op.channel_axis, keepdim=True).clamp_min(tiny).sqrt()
        return out + length * contract(
            self.family.row_factor(), noise.normal(w, out.shape, out), op.channel_axis
        )

    def flipout(
        self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise
    ) -> Tensor:
        """A ((E (s * B^T x~)) * r): the signs flip the white matrix E, whose distribution they
        leave unchanged.
        """
        image = self.family.input_map(op, x) if self._fits(b) else None
        if image is None:
            return NotImplemented
        mean = self.family.mean()
        white = noise.normal(w, self.family.matrix.shape, self.family.matrix)
        signs_in = noise.sign(w, op.per_example(x, white.shape[1]), white)
        signs_out = noise.sign(w, op.per_example(x, white.shape[0]), white)
        flipped = contract(white, image * signs_in, op.channel_axis) * signs_out
        return op(x, mean[w], mean[b] if isinstance(b, str) else b) + contract(
            self.family.row_factor(), flipped, op.channel_axis
        )
