import numpy as np
import pytest

from credo.core.errors import DataError
from credo.data.codings import decode

RNG = np.random.default_rng(0)


def differences(image):
    """Code a plane by differences along both axes, modulo 256."""
    rows = np.diff(image, axis=-1, prepend=np.zeros_like(image[..., :1]))
    return np.diff(rows, axis=-2, prepend=np.zeros_like(rows[..., :1, :]))


def test_grey_and_colour_round_trip():
    grey = RNG.integers(0, 256, (4, 6, 5), dtype=np.uint8)
    key, back = decode("x__g", differences(grey))
    assert key == "x" and back.dtype == np.uint8
    np.testing.assert_array_equal(back, grey)
    colour = RNG.integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    red, green, blue = np.moveaxis(colour, -1, 0)
    np.testing.assert_array_equal(
        decode("x__cg", differences(np.stack([green, red - green, blue - green])))[1], colour
    )


def test_packed_bits_round_trip():
    images = RNG.integers(0, 2, (3, 105, 105), dtype=np.uint8)
    np.testing.assert_array_equal(
        decode("x__bits105", np.packbits(images.reshape(3, -1), axis=1))[1], images
    )


def test_plain_keys_pass_and_unknown_codings_are_refused():
    array = np.arange(3)
    assert decode("x_train", array) == ("x_train", array)
    with pytest.raises(DataError, match="unknown coding 'zip'"):
        decode("x__zip", array)
