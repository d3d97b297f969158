"""Residual networks for small images (He et al. 2016, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from credo.core.errors import SettingError, nearest
from credo.core.settings import check_sizes

GROUPS = 8  # of group normalisation, where the width has as many


class FilterResponse(nn.Module):
    """Filter response normalisation: scale x / sqrt(mean over positions of x^2 + eps) + shift,
    clipped below at a learned threshold.

    Knows no other example, so a network with it is one function of its weights in training and in
    evaluation alike; takes ``(N, C, H, W)``. Singh and Krishnan 2020. The threshold stands in for
    the ReLU.
    """

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias, self.threshold = (
            nn.Parameter(torch.empty(channels, 1, 1)) for _ in range(3)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1, shift and threshold 0."""
        for parameter, value in ((self.weight, 1.0), (self.bias, 0.0), (self.threshold, 0.0)):
            nn.init.constant_(parameter, value)

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W)`` to the same."""
        size = x.square().mean((-2, -1), keepdim=True)
        return torch.maximum(
            self.weight * x * torch.rsqrt(size + self.eps) + self.bias, self.threshold
        )


def _batch(channels: int, active: bool) -> nn.Module:
    return (
        nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU()) if active else nn.BatchNorm2d(channels)
    )


def _group(channels: int, active: bool) -> nn.Module:
    norm = nn.GroupNorm(GROUPS if channels % GROUPS == 0 else 1, channels)
    return nn.Sequential(norm, nn.ReLU()) if active else norm


def _response(channels: int, active: bool) -> nn.Module:
    return FilterResponse(
        channels
    )  # its threshold is an activation, also where the sum of the branches follows


#: name -> (channels, followed by an activation) -> module
NORMS: dict[str, Callable[[int, bool], nn.Module]] = {
    "batch": _batch,
    "group": _group,
    "frn": _response,
}


class Block(nn.Module):
    """x + conv(norm(conv(x))): two 3x3 convolutions around an identity that is thinned out and
    padded with zeros where the size changes.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        norm: Callable[[int, bool], nn.Module],
        last: nn.Module,
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.between = norm(outputs, True)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.after = norm(outputs, False)
        self.last = last
        self.stride, self.more = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """``(N, inputs, H, W)`` to ``(N, outputs, H / stride, W / stride)``."""
        shortcut = x[..., :: self.stride, :: self.stride]
        shortcut = (
            F.pad(shortcut, (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
            if self.more
            else shortcut
        )
        return self.last(shortcut + self.after(self.second(self.between(self.first(x)))))


def resnet(
    outputs: int = 10, depth: int = 20, width: int = 16, channels: int = 3, norm: str = "batch"
) -> nn.Sequential:
    """The CIFAR residual network of ``depth`` = 6 n + 2 layers: ``(N, channels, H, W) -> (N,
    outputs)``, H and W at least 4.

    Three stages of n blocks with ``width``, 2 and 4 times ``width`` channels, shortcuts without
    parameters, global average pooling. ``norm``: "batch", whose training passes mix examples;
    "group"; or "frn", filter response normalisation. depth=20 with batch normalisation has 269,722
    parameters for ten classes. Other depths and names are refused.
    """
    check_sizes("resnet", outputs=outputs, depth=depth, width=width, channels=channels)
    if depth < 8 or (depth - 2) % 6:
        raise SettingError(
            f"resnet: depth={depth} is not valid; expected 6 n + 2 layers, such as 8, 14, 20, 32, "
            "44 or 56."
        )
    if norm not in NORMS:
        raise SettingError(f"resnet: unknown norm {norm!r}.{nearest(norm, NORMS)}")
    make = NORMS[norm]
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), make(width, True)]
    size = width
    for stage in range(3):
        for place in range((depth - 2) // 6):
            wide = width * 2**stage
            layers.append(Block(size, wide, 2 if stage and not place else 1, make, nn.ReLU()))
            size = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size, outputs))
