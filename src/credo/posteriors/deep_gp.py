"""Sparse Gaussian processes of Gaussian processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor, nn

from credo.core.errors import DataError
from credo.core.roots import semidefinite_root
from credo.core.seeds import Streams
from credo.core.shell import Shell
from credo.posteriors.family import families
from credo.posteriors.gaussian_process import SparseLayer, SparseProcess
from credo.posteriors.process import RowNoise, flattened

INNER = (
    1e-5**0.5
    # deviation of q(v) in hidden layers at the start: nearly the linear map, so that something
    # reaches the last one
)
MEAN_DRAWS = 256  # behind the mean function
_MEAN_ROWS = 1024  # of which it is computed at once


@families.register("deep_gp")
@final
class DeepGP(SparseProcess):
    """f = f_L(... f_1(x)), each layer F_l independent sparse processes of all values of the layer
    before, on the flattened inputs x.

    Hidden layers have the mean x W: the identity, or where they are narrower than their inputs the
    main directions of these. A draw of a prediction draws every layer's values at every input,
    independently between inputs (which is exact for each of them) or, ``joint``, as functions.
    """

    name: ClassVar[str] = "deep_gp"

    def __init__(
        self, features: int, outputs: int, widths: Sequence[int], inducing: Sequence[int]
    ) -> None:
        super().__init__({})
        sizes, last = [features, *widths, outputs], len(widths)
        self.layers = nn.ModuleList(
            [
                SparseLayer(sizes[k], sizes[k + 1], inducing[k], linear=k < last)
                for k in range(last + 1)
            ]
        )

    @classmethod
    def start(
        cls,
        rows: Tensor,
        outputs: int,
        widths: Sequence[int],
        inducing: int,
        source: torch.Generator,
    ) -> DeepGP:
        """On inputs like ``rows`` ``(R, D)``, with inducing points at what hidden layers' means
        make of some of them.
        """
        layers: list[SparseLayer] = []
        for width in widths:
            layers.append(SparseLayer.start(rows, width, inducing, source, INNER, linear=True))
            rows = layers[-1].linear(rows)
        layers.append(SparseLayer.start(rows, outputs, inducing, source))
        family = cls(layers[0].features, outputs, widths, [layer.inducing for layer in layers])
        family.layers = nn.ModuleList(layers)
        return family

    @property
    def _layers(self) -> list[SparseLayer]:
        return cast(list[SparseLayer], list(self.layers))

    def read(self, shell: Shell, x: Any) -> Tensor:
        """The inputs, flattened."""
        return real_rows(x)

    def conditionals(self, inputs: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        """Mean and variance in the last layer ``(S, N, F)`` given ``samples`` draws of the hidden
        ones; S = 1 without hidden layers.
        """

        def noise(depth: int, like: Tensor) -> Tensor:
            return torch.randn((samples, *like.shape[1:]), dtype=like.dtype, device=like.device)

        mean, var = _independent_moments(self._layers[-1], self._hidden(inputs, noise, False))
        return mean.to(inputs.dtype), var.to(inputs.dtype)

    def own_kl(self) -> Tensor:
        """Summed over layers."""
        return torch.stack([layer.own_kl() for layer in self._layers]).sum()

    def outputs(self, inputs: Tensor, noise: RowNoise, joint: bool) -> Tensor:
        """Function values ``(S, N, F)``; ``joint`` costs S N^3 per process of every layer but the
        first.
        """

        def normal(depth: int, like: Tensor) -> Tensor:
            return noise.normal(f"layer {depth}", like.shape[-1], like)

        before = self._hidden(inputs, normal, joint)
        last = self._layers[-1]
        eps = noise.normal("function", last.outputs, before)
        return _drawn(last, before, lambda like: eps, joint).to(inputs.dtype)

    def average(self, inputs: Tensor) -> Tensor:
        """The mean function ``(N, F)``: over 256 draws of the hidden layers from a fixed stream,
        the same noise for all inputs.
        """
        streams = Streams(0, range(MEAN_DRAWS))

        def noise(depth: int, like: Tensor) -> Tensor:
            return streams.normal(f"layer {depth}", (1, like.shape[-1]), like)

        parts = [
            _independent_moments(self._layers[-1], self._hidden(part, noise, False))[0].mean(0)
            for part in inputs.split(_MEAN_ROWS)
        ]
        return torch.cat(parts).to(inputs.dtype)

    def _hidden(
        self, inputs: Tensor, noise: Callable[[int, Tensor], Tensor], joint: bool
    ) -> Tensor:
        """Drawn values of the last hidden layer ``(S, N, D)``, or the inputs ``(1, N, D)`` where
        there is none.
        """
        values = inputs.double().unsqueeze(0)
        for depth, layer in enumerate(self._layers[:-1]):
            values = _drawn(layer, values, lambda like, depth=depth: noise(depth, like), joint)
        return values

    def config(self) -> dict[str, Any]:
        """Sizes."""
        layers = self._layers
        return {
            "name": self.name,
            "features": layers[0].features,
            "outputs": layers[-1].outputs,
            "widths": [layer.outputs for layer in layers[:-1]],
            "inducing": [layer.inducing for layer in layers],
        }


def real_rows(x: Any) -> Tensor:
    """Inputs as rows ``(N, D)``; refused are those that are no real numbers."""
    rows = flattened(x)
    if not rows.is_floating_point():
        raise DataError(
            f"deep_gp measures distances between inputs, and these are {rows.dtype}: give real "
            "numbers, not codes or tokens."
        )
    return rows


def _independent_moments(layer: SparseLayer, values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance ``(S, N, F)`` of a layer at ``(S, N, D)``, every row by itself."""
    mean, var = layer.marginals_at(values.flatten(0, 1))
    return mean.unflatten(0, values.shape[:2]), var.unflatten(0, values.shape[:2])


def _drawn(
    layer: SparseLayer, values: Tensor, noise: Callable[[Tensor], Tensor], joint: bool
) -> Tensor:
    """Values of a layer at ``(S, N, D)``; one row of S serves all draws that ``noise`` has."""
    if not joint:
        mean, var = _independent_moments(layer, values)
        return mean + var.sqrt() * noise(mean)
    found = [layer.joint_at(each) for each in values]
    mean, root = (
        torch.stack([m for m, _ in found]),
        torch.stack([semidefinite_root(cover) for _, cover in found]),
    )
    if len(found) == 1:
        return mean + torch.einsum("fnm,smf->snf", root[0], noise(mean))
    return mean + torch.einsum("sfnm,smf->snf", root, noise(mean))
