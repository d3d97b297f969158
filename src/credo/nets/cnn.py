"""A small convolutional network for images of any size."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from credo.core.errors import SettingError
from credo.core.settings import check_sizes, renamed


@renamed(num_classes="outputs", channels="widths")
def small_cnn(
    in_channels: int = 1,
    outputs: int = 10,
    widths: Sequence[int] = (8, 16),
    kernel_size: int = 3,
    grid: int = 2,
    batch_norm: bool = False,
) -> nn.Sequential:
    """Convolution, ReLU, 2x2 max pooling per entry of ``widths``, then average pooling to ``grid
    x grid`` and a dense layer.

    Takes ``(N, in_channels, H, W)`` with any H and W (odd edges are pooled too) and gives ``(N,
    outputs)``. ``batch_norm`` puts a BatchNorm2d after each convolution; in training it needs
    more than one value per channel.
    """
    check_sizes(
        "small_cnn", in_channels=in_channels, outputs=outputs, kernel_size=kernel_size, grid=grid
    )
    if not isinstance(widths, Sequence):
        raise SettingError(
            f"small_cnn: widths={widths!r} is not valid; expected the channels of every "
            "convolution, such as (8, 16). Channels of the images are in_channels."
        )
    layers: list[nn.Module] = []
    width = in_channels
    for place, size in enumerate(widths):
        check_sizes("small_cnn", **{f"widths[{place}]": size})
        layers.append(nn.Conv2d(width, size, kernel_size, padding="same"))
        if batch_norm:
            layers.append(nn.BatchNorm2d(size))
        layers += [nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
        width = size
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(grid), nn.Flatten(), nn.Linear(width * grid * grid, outputs)
    )
