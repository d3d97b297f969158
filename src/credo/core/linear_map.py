"""Linear maps as objects: ``F.linear``, convolutions, transposed convolutions, embeddings and
products, all bound but x, w, b.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = (
    "input",
    "weight",
    "bias",
    "stride",
    "padding",
    "output_padding",
    "groups",
    "dilation",
)
_EMBEDDING = (
    "input",
    "weight",
    "padding_idx",
    "max_norm",
    "norm_type",
    "scale_grad_by_freq",
    "sparse",
)

#: function -> (argument names, number of spatial axes, transposed)
SIGNATURES: dict[Callable[..., Any], tuple[tuple[str, ...], int, bool]] = {
    F.linear: (("input", "weight", "bias"), 0, False),
    F.conv1d: (_CONV, 1, False),
    F.conv2d: (_CONV, 2, False),
    F.conv3d: (_CONV, 3, False),
    F.conv_transpose1d: (_TRANSPOSED, 1, True),
    F.conv_transpose2d: (_TRANSPOSED, 2, True),
    F.conv_transpose3d: (_TRANSPOSED, 3, True),
    F.embedding: (_EMBEDDING, 0, False),
}
#: what a random tensor may meet: linear maps, and products such as with the mask of a dropout
#: module
MEETINGS = SIGNATURES | {torch.mul: (("input", "weight"), 0, False)}


class LinearMap:
    """y = op(x, w) + b, linear in the weights; ``example_axis`` is where examples lie in x, if that
    is known.

    A plain class, because compiled code of older torch cannot build frozen dataclasses.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        bound: dict[str, Any],
        num_spatial: int,
        transposed: bool,
        example_axis: int | None = None,
    ) -> None:
        self.function, self.bound = function, bound
        self.num_spatial, self.transposed, self.example_axis = num_spatial, transposed, example_axis

    def along_examples(self, axis: int | None) -> LinearMap:
        """The same map with its example axis known."""
        return LinearMap(self.function, self.bound, self.num_spatial, self.transposed, axis)

    @property
    def is_embedding(self) -> bool:
        """Whether x holds indices: then x is a one-hot vector and its square is itself."""
        return self.function is F.embedding

    @property
    def is_product(self) -> bool:
        """Whether x is multiplied elementwise, as by the mask of a dropout module."""
        return self.function is torch.mul

    @property
    def groups(self) -> int:
        """Groups of a grouped convolution, else 1."""
        return self.bound.get("groups", 1)

    @property
    def channel_axis(self) -> int:
        """The feature axis of x and y, counted from the back."""
        return -1 - self.num_spatial

    def __call__(self, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        """Apply the map with other weights."""
        if self.is_embedding or self.is_product:
            return self.function(x, w, **self.bound)
        return self.function(x, w, b, **self.bound)

    def square(self, x: Tensor) -> Tensor:
        """The input whose map with variances gives the variance of the output."""
        return x if self.is_embedding else x * x

    def per_example(self, x: Tensor, channels: int) -> tuple[int, ...]:
        """Shape of one number per (example, channel), broadcastable over the other axes of ``x``
        (of y for embeddings).
        """
        ndim = x.dim() + (1 if self.is_embedding else 0)
        shape = [1] * ndim
        if self.example_axis is not None:
            shape[self.example_axis] = x.shape[self.example_axis]
        shape[self.channel_axis] = channels
        return tuple(shape)

    def out_channels(self, w: Tensor) -> int:
        """Channels of y."""
        if self.is_embedding:
            return w.shape[1]
        return w.shape[1] * self.groups if self.transposed else w.shape[0]


def bind(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[LinearMap, Any, Any, Any]:
    """Split a call of a known function into (map, x, weight, bias)."""
    names, num_spatial, transposed = MEETINGS[function]
    bound = dict(zip(names, args, strict=False)) | {
        "weight" if k == "other" else k: v for k, v in kwargs.items()
    }
    x, w, b = bound.pop("input"), bound.pop("weight"), bound.pop("bias", None)
    return LinearMap(function, bound, num_spatial, transposed), x, w, b


def along(values: Tensor, axis: int, ndim: int) -> Tensor:
    """A vector shaped to broadcast along one axis (counted from the back) of an
    ``ndim``-dimensional tensor.
    """
    shape = [1] * ndim
    shape[axis] = values.numel()
    return values.reshape(shape)


def contract(matrix: Tensor, y: Tensor, axis: int) -> Tensor:
    """``matrix`` (rows, channels) applied along one axis of ``y``."""
    return torch.movedim(torch.movedim(y, axis, -1) @ matrix.mT, -1, axis)
