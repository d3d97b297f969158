"""A small convolutional network for images of any size."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from credo.nets.catalogue import networks, positive


@networks.register("small_cnn")
def small_cnn(
    in_channels: int = 1,
    num_classes: int = 10,
    channels: Sequence[int] = (8, 16),
    kernel_size: int = 3,
    grid: int = 2,
    batch_norm: bool = False,
) -> nn.Sequential:
    """Convolution, ReLU, 2x2 max pooling per entry of ``channels``, then average pooling to ``grid
    x grid`` and a dense layer.

    Takes ``(N, in_channels, H, W)`` with any H and W (odd edges are pooled too) and gives ``(N,
    num_classes)``. ``batch_norm`` puts a BatchNorm2d after each convolution; in training it needs
    more than one value per channel.
    """
    positive(
        "small_cnn",
        in_channels=in_channels,
        num_classes=num_classes,
        kernel_size=kernel_size,
        grid=grid,
    )
    layers: list[nn.Module] = []
    width = in_channels
    for place, size in enumerate(channels):
        positive("small_cnn", **{f"channels[{place}]": size})
        layers.append(nn.Conv2d(width, size, kernel_size, padding="same"))
        if batch_norm:
            layers.append(nn.BatchNorm2d(size))
        layers += [nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
        width = size
    return nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(grid),
        nn.Flatten(),
        nn.Linear(width * grid * grid, num_classes),
    )
