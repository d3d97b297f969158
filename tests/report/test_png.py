import struct
import zlib

import numpy as np
import pytest

from credo.core.errors import DataError
from credo.report.png import png


def read(data):
    """Width, height, depth, colour type and the pixels of a PNG whose rows are all stored as
    differences to the row above.
    """
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, chunks = 8, {}
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        name, content = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        assert struct.unpack(">I", data[place + 8 + length : place + 12 + length])[0] == zlib.crc32(
            name + content
        )
        chunks[name], place = content, place + 12 + length
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [0, 0, 0] and chunks[b"IEND"] == b""
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert (rows[:, 0] == 2).all()
    return width, height, depth, colour, np.add.accumulate(rows[:, 1:], axis=0, dtype=np.uint8)


@pytest.mark.parametrize(("channels", "colour"), [(None, 0), (1, 0), (2, 4), (3, 2), (4, 6)])
def test_pixels_are_read_back_as_they_were(channels, colour):
    shape = (5, 7) if channels is None else (5, 7, channels)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    width, height, depth, kind, rows = read(png(pixels))
    assert (width, height, depth, kind) == (7, 5, 8, colour)
    assert (rows.reshape(shape) == pixels).all()


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((2, 2)),
        np.zeros((2, 2, 5), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((0, 3), np.uint8),
    ],
)
def test_what_is_no_picture_is_refused(pixels):
    with pytest.raises(DataError, match="expected bytes"):
        png(pixels)
