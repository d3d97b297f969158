import numpy as np
import pytest

from credo.core.errors import DataError
from credo.data import letters
from credo.data.letters import _shapes


def test_values_are_those_of_the_digits():
    images = letters(200, seed=1)
    assert images.shape == (200, 64)
    assert (images.min(), images.max()) == (0, 16)
    assert np.array_equal(images, images.round())


def test_the_seed_decides_and_images_differ():
    np.testing.assert_array_equal(letters(5, seed=2), letters(5, seed=2))
    assert len(np.unique(letters(50, seed=2), axis=0)) == 50
    assert not np.array_equal(letters(5, seed=2), letters(5, seed=3))


def test_ten_distinct_letters():
    shapes = _shapes()
    assert shapes.shape == (10, 7, 5)
    assert len({shape.tobytes() for shape in shapes}) == 10


def test_none_is_refused():
    with pytest.raises(DataError, match="n=0"):
        letters(0)
