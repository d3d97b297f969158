"""The VGG-like network for small images of the dropout literature."""

from __future__ import annotations

import math

from torch import nn

from credo.core.errors import SettingError
from credo.core.settings import check_sizes

#: Channels of the 3x3 convolutions; every row ends in a 2x2 max pooling.
BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg(
    outputs: int = 10, width: float = 1.0, channels: int = 3, dropout: bool = False
) -> nn.Sequential:
    """Thirteen 3x3 convolutions and two dense layers with batch normalisation: ``(N, channels, H,
    W) -> (N, outputs)``, H and W at least 32.

    Channels 64-64, 128-128, 256-256-256, 512-512-512, 512-512-512 and 512 dense units, all times
    ``width`` and rounded (the factor k of Molchanov et al. 2017). Five poolings take 32 x 32 images
    to one place; what is left of larger ones is averaged. ``dropout``: binary dropout as Zagoruyko
    2015 places it, 0.3 behind the first convolution, 0.4 behind those that no pooling follows, 0.5
    around the first dense layer. Layers in front of a normalisation have no bias. 14,987,210
    parameters for ten classes; a training pass needs more than one example.
    """
    check_sizes("vgg", outputs=outputs, channels=channels)
    if isinstance(width, bool) or not isinstance(width, (int, float)) or not 0.0 < width < math.inf:
        raise SettingError(f"vgg: width={width!r} is not valid; expected a number above 0.")
    layers: list[nn.Module] = []
    size = channels
    for row in BLOCKS:
        for place, base in enumerate(row):
            wide = max(1, round(base * width))
            layers += [
                nn.Conv2d(size, wide, 3, padding=1, bias=False),
                nn.BatchNorm2d(wide),
                nn.ReLU(),
            ]
            if dropout and place < len(row) - 1:
                layers.append(nn.Dropout(0.3 if base == BLOCKS[0][0] else 0.4))
            size = wide
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    dense = [nn.Linear(size, size, bias=False), nn.BatchNorm1d(size), nn.ReLU()]
    around = [[nn.Dropout(0.5)] if dropout else [] for _ in range(2)]
    return nn.Sequential(*layers, *around[0], *dense, *around[1], nn.Linear(size, outputs))
