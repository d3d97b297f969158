"""Encoders and decoders: data to a few numbers, and a few numbers back to as many as the data
has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import final

from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.core.settings import check_sizes, renamed
from credo.nets.mlp import mlp


def mlp_encoder(
    shape: Sequence[int], outputs: int, hidden: Sequence[int] = (500, 500), activation: str = "relu"
) -> nn.Sequential:
    """A perceptron over flattened data: ``(N, *shape) -> (N, outputs)``, no nonlinearity after the
    last layer.

    Rows that are flat already, ``(N, D)`` with D the product of ``shape``, are taken too. Sizes
    below 1 are refused.
    """
    sizes = _sizes("mlp_encoder", shape)
    check_sizes("mlp_encoder", outputs=outputs)
    return nn.Sequential(nn.Flatten(), *mlp(math.prod(sizes), hidden, outputs, activation))


def mlp_decoder(
    latent_dim: int, outputs: int, hidden: Sequence[int] = (500, 500), activation: str = "relu"
) -> nn.Sequential:
    """A perceptron from latent to data: ``(N, latent_dim) -> (N, outputs)``, no nonlinearity after
    the last layer.

    ``outputs`` is what the likelihood needs: D for one number per target, 2 D for a mean and a
    deviation each, and so on.
    """
    check_sizes("mlp_decoder", latent_dim=latent_dim, outputs=outputs)
    return mlp(latent_dim, hidden, outputs, activation)


@renamed(channels="widths")
def conv_encoder(
    shape: Sequence[int], outputs: int, widths: Sequence[int] = (32, 64), hidden: int = 256
) -> nn.Sequential:
    """A 3x3 convolution of stride 2 with ReLU per entry of ``widths``, then a dense hidden layer:
    ``(N, *shape) -> (N, outputs)``.

    ``shape`` is (H, W) or (C, H, W); every convolution halves H and W, rounded up, so any size from
    1 works. Flat rows ``(N, C H W)`` are taken too.
    """
    width, height, breadth = _image("conv_encoder", shape)
    check_sizes("conv_encoder", outputs=outputs, hidden=hidden)
    layers: list[nn.Module] = [nn.Flatten(), nn.Unflatten(1, (width, height, breadth))]
    for place, size in enumerate(widths):
        check_sizes("conv_encoder", **{f"widths[{place}]": size})
        layers += [nn.Conv2d(width, size, 3, stride=2, padding=1), nn.ReLU()]
        width, height, breadth = size, math.ceil(height / 2), math.ceil(breadth / 2)
    return nn.Sequential(*layers, nn.Flatten(), *mlp(width * height * breadth, (hidden,), outputs))


@renamed(channels="widths")
def conv_decoder(
    latent_dim: int,
    shape: Sequence[int],
    per_pixel: int = 1,
    widths: Sequence[int] = (64, 32),
    hidden: int = 256,
) -> nn.Sequential:
    """Dense layers to a small grid, then transposed convolutions: ``(N, latent_dim) -> (N,
    per_pixel * D)``, D = C H W.

    ``shape`` is (H, W) or (C, H, W). There is one transposed convolution per entry of ``widths``,
    which is what goes into it; each doubles H and W, and what lies beyond ``shape`` is cut off, so
    any size from 1 works. The outputs are flat and all D numbers of the first kind come before all
    D of the second: means before raw deviations, level 0 before level 1.
    """
    depth, height, breadth = _image("conv_decoder", shape)
    check_sizes("conv_decoder", latent_dim=latent_dim, per_pixel=per_pixel, hidden=hidden)
    check_sizes("conv_decoder", **{f"widths[{place}]": size for place, size in enumerate(widths)})
    sizes = (*widths, per_pixel * depth)
    grid = tuple(math.ceil(size / 2 ** len(widths)) for size in (height, breadth))
    layers: list[nn.Module] = [
        *mlp(latent_dim, (hidden,), sizes[0] * math.prod(grid)),
        nn.Unflatten(1, (sizes[0], *grid)),
    ]
    for before, after in pairwise(sizes):
        # Kernel 4 is a multiple of the stride: every pixel is reached by as many weights as the
        # next.
        layers += [nn.ReLU(), nn.ConvTranspose2d(before, after, 4, stride=2, padding=1)]
    return nn.Sequential(*layers, Crop(height, breadth), nn.Flatten())


@final
class Crop(nn.Module):
    """The first ``height`` rows and ``width`` columns of images: ``(..., H, W) -> (..., height,
    width)``.
    """

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        """A view, ``(..., height, width)``."""
        return x[..., : self.height, : self.width]


def _sizes(owner: str, shape: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(shape, Sequence) or isinstance(shape, str) or not shape:
        raise SettingError(
            f"{owner}: shape={shape!r} is not valid; expected the sizes of one datum, such as "
            "(28, 28)."
        )
    check_sizes(owner, **{f"shape[{place}]": size for place, size in enumerate(shape)})
    return tuple(shape)


def _image(owner: str, shape: Sequence[int]) -> tuple[int, int, int]:
    """(C, H, W), with one channel where ``shape`` names none."""
    sizes = _sizes(owner, shape)
    if len(sizes) not in (2, 3):
        raise SettingError(
            f"{owner}: shape={shape!r} has {len(sizes)} sizes; expected (H, W) or (C, H, W): use "
            "mlp_encoder and mlp_decoder "
            "for data that are not images."
        )
    depth, height, breadth = (1, *sizes)[-3:]
    return depth, height, breadth
