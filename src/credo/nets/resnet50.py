"""The residual network of 50 layers for images of ImageNet's size (He et al. 2016, table 1)."""

from __future__ import annotations

from torch import Tensor, nn

from credo.core.settings import check_sizes

BLOCKS = (3, 4, 6, 3)  # of the four stages
WIDER = 4  # how many times more channels a block gives than it has inside


class BottleneckBlock(nn.Module):
    """x + conv1x1(conv3x3(conv1x1(x))), each with batch normalisation.

    The 3x3 convolution has the stride; the shortcut is a projection where sizes change.
    """

    def __init__(self, inputs: int, inside: int, stride: int) -> None:
        super().__init__()
        outputs = WIDER * inside
        self.narrow = nn.Sequential(
            nn.Conv2d(inputs, inside, 1, bias=False), nn.BatchNorm2d(inside), nn.ReLU()
        )
        self.middle = nn.Sequential(
            nn.Conv2d(inside, inside, 3, stride, 1, bias=False), nn.BatchNorm2d(inside), nn.ReLU()
        )
        self.widen = nn.Sequential(
            nn.Conv2d(inside, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        )
        self.last = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """``(N, inputs, H, W)`` to ``(N, 4 * inside, H / stride, W / stride)``."""
        return self.last(self.shortcut(x) + self.widen(self.middle(self.narrow(x))))


def resnet50(outputs: int = 1000, channels: int = 3, width: int = 64) -> nn.Sequential:
    """The 50-layer residual network: ``(N, channels, H, W) -> (N, outputs)``, made for 224 x 224
    pixels, H and W at least 32.

    Sixteen blocks of three convolutions in four stages, with the stride in the 3x3 convolution
    (known as version 1.5) and global average pooling; ``width`` channels in the first layer, and
    twice as many inside the blocks of each stage after the first. 25,557,032 parameters for 1000
    classes at the published width of 64. Its batch normalisation mixes examples in training.
    """
    check_sizes("resnet50", outputs=outputs, channels=channels, width=width)
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    size = width
    for stage, blocks in enumerate(BLOCKS):
        for place in range(blocks):
            layers.append(BottleneckBlock(size, width * 2**stage, 2 if stage and not place else 1))
            size = WIDER * width * 2**stage
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size, outputs))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net
