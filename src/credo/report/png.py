"""PNG files from arrays of bytes, with the standard library alone."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from credo.core.errors import DataError

# channels to PNG's colour type: grey, grey with opacity, RGB, RGB with opacity
_COLOUR = {1: 0, 2: 4, 3: 2, 4: 6}
_UP = 2  # the filter that stores differences to the row above: enlarged pixels repeat rows


def png(pixels: np.ndarray) -> bytes:
    """A PNG file of bytes ``(H, W)`` or ``(H, W, C)`` with C from 1 to 4: grey or RGB, opacity last
    where there is any.
    """
    pixels = np.asarray(pixels)
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if (
        pixels.dtype != np.uint8
        or pixels.ndim not in (2, 3)
        or channels not in _COLOUR
        or not pixels.size
    ):
        raise DataError(
            f"Pixels of shape {pixels.shape} and type {pixels.dtype}; expected bytes (H, W) or "
            "(H, W, C) with C from 1 to 4."
        )
    height, width = pixels.shape[:2]
    rows = pixels.reshape(height, width * channels)
    above = np.vstack([np.zeros_like(rows[:1]), rows[:-1]])
    marked = np.hstack(
        [np.full((height, 1), _UP, np.uint8), rows - above]
    )  # bytes wrap around, as the filter wants
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(marked.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )
