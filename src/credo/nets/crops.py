"""The usual change of small training images: a shifted crop, mirrored every other time."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from credo.core.errors import SettingError


@final
class CropFlip:
    """Pad by ``margin`` zeros on all sides, cut out the original size at a random place, mirror
    left to right with probability 1/2.

    Takes ``(N, C, H, W)``; every image has its own place, from torch's generators on the images'
    device. Only gathers, so that it runs under ``vmap(randomness="different")`` and in a captured
    graph. For ``credo.nets.Augmented``.
    """

    def __init__(self, margin: int = 4, flip: bool = True) -> None:
        if isinstance(margin, bool) or not isinstance(margin, int) or margin < 0:
            raise SettingError(
                f"CropFlip: margin={margin!r} is not valid; expected a whole number of pixels "
                "from 0."
            )
        self.margin, self.flip = margin, flip

    def __call__(self, x: Tensor) -> Tensor:
        """Images of the same shape."""
        count, _, height, width = x.shape
        padded = F.pad(x, (self.margin,) * 4)
        rows = self._window(count, height, x)
        columns = self._window(count, width, x)
        if self.flip:
            mirrored = torch.rand(count, 1, device=x.device) < 0.5
            columns = torch.where(mirrored, columns.flip(1), columns)
        tall = padded.gather(2, rows[:, None, :, None].expand(-1, x.shape[1], -1, padded.shape[3]))
        return tall.gather(3, columns[:, None, None, :].expand(-1, x.shape[1], height, -1))

    def _window(self, count: int, size: int, like: Tensor) -> Tensor:
        """The places ``(N, size)`` of every image's crop along one axis of the padded images."""
        first = torch.randint(0, 2 * self.margin + 1, (count, 1), device=like.device)
        return first + torch.arange(size, device=like.device)
