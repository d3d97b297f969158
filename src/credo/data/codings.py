"""Lossless codings of arrays inside an npz file: ``key__coding`` holds a coded array, which reads
back as ``key``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from credo.core.errors import DataError, nearest


def grey(coded: np.ndarray) -> np.ndarray:
    """Undo differences along the last two axes, modulo 256: ``(..., H, W)`` uint8."""
    rows = np.add.accumulate(coded, axis=-2, dtype=np.uint8)
    return np.add.accumulate(rows, axis=-1, dtype=np.uint8)


def colour(coded: np.ndarray) -> np.ndarray:
    """Undo differences of the planes green, red - green, blue - green: ``(3, ..., H, W) -> (..., H,
    W, 3)`` uint8.
    """
    green, red_less_green, blue_less_green = grey(coded)
    return np.stack((green + red_less_green, green, green + blue_less_green), axis=-1)


def bits105(coded: np.ndarray) -> np.ndarray:
    """Unpack binary images of 105 x 105: ``(N, 1379) -> (N, 105, 105)`` uint8 of 0 and 1."""
    side = 105
    return np.unpackbits(coded, axis=1, count=side * side).reshape(len(coded), side, side)


CODINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "g": grey,
    "cg": colour,
    "bits105": bits105,
}


def decode(key: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """The plain key and array of one npz entry; an unknown coding is refused."""
    plain, mark, coding = key.rpartition("__")
    if not mark:
        return key, array
    if coding not in CODINGS:
        raise DataError(
            f"Entry {key!r} uses the unknown coding {coding!r}.{nearest(coding, CODINGS)}"
        )
    return plain, CODINGS[coding](array)
