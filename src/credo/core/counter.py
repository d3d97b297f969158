"""Counter-based random numbers on a GPU: any number of streams in one launch.

Torch's CUDA generator fills one stream per launch; a hundred posterior draws would be hundreds of
launches. Philox is a pure function of (seed, position), so one Triton kernel can fill all streams
at once, each as if it were alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def counter_normal(
    base: int, samples: Sequence[int], shape: Sequence[int], device: torch.device
) -> Tensor | None:
    """Standard normal ``(len(samples), *shape)`` in float32, row i from the key ``base +
    samples[i]`` alone; None without Triton.
    """
    return _rows("normal", base, samples, shape, device)


def counter_uniform(
    base: int, samples: Sequence[int], shape: Sequence[int], device: torch.device
) -> Tensor | None:
    """Uniform on [0, 1) likewise."""
    return _rows("uniform", base, samples, shape, device)


def _rows(
    kind: str, base: int, samples: Sequence[int], shape: Sequence[int], device: torch.device
) -> Tensor | None:
    fill = _kernel(kind)
    if fill is None:
        return None
    count = math.prod(shape)
    out = torch.empty(len(samples), count, device=device)
    keys = (torch.tensor(samples, dtype=torch.int64) + base).to(device, non_blocking=True)
    with torch.cuda.device(device):
        fill(out, keys, count)
    return out.reshape(len(samples), *shape)


@functools.cache
def _kernel(kind: str) -> Callable[[Tensor, Tensor, int], None] | None:
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return None

    @triton.jit
    def fill_rows(
        out, keys, count, NORMAL: tl.constexpr, BLOCK: tl.constexpr
    ):  # pragma: no cover, runs on the GPU
        row = tl.program_id(1).to(tl.int64)
        position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        if NORMAL:
            a, b, c, d = tl.randn4x(tl.load(keys + row), position)
        else:
            a, b, c, d = tl.rand4x(tl.load(keys + row), position)
        start = out + row * count
        tl.store(start + position * 4, a, mask=position * 4 < count)
        tl.store(start + position * 4 + 1, b, mask=position * 4 + 1 < count)
        tl.store(start + position * 4 + 2, c, mask=position * 4 + 2 < count)
        tl.store(start + position * 4 + 3, d, mask=position * 4 + 3 < count)

    def fill(out: Tensor, keys: Tensor, count: int) -> None:
        block = 256
        grid = (triton.cdiv(count, 4 * block), keys.numel())
        fill_rows[grid](out, keys, count, NORMAL=kind == "normal", BLOCK=block)  # type: ignore

    return fill
