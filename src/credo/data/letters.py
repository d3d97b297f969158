"""Letters on the grid of the 8 x 8 digits: inputs that look like the data and belong to no class of
it.
"""

from __future__ import annotations

import numpy as np

from credo.core.errors import DataError

# Five columns by seven rows a letter, A to J; a row is five marks.
_SHAPES = """
.###. ####. .###. ####. ##### ##### .###. #...# .###. ..###
#...# #...# #...# #...# #.... #.... #...# #...# ..#.. ...#.
#...# #...# #.... #...# #.... #.... #.... #...# ..#.. ...#.
##### ####. #.... #...# ####. ####. #.### ##### ..#.. ...#.
#...# #...# #.... #...# #.... #.... #...# #...# ..#.. ...#.
#...# #...# #...# #...# #.... #.... #...# #...# ..#.. #..#.
#...# ####. .###. ####. ##### #.... .#### #...# .###. .##..
"""
_FINE, _BLOCK = (
    32,
    4,
)  # a fine canvas of 32 x 32, counted in blocks of 4 x 4, gives 8 x 8 values from 0 to 16


def letters(n: int, seed: int = 0) -> np.ndarray:
    """``(n, 64)`` float64 images of A to J in random order, whole numbers from 0 to 16 as in
    scikit-learn's digits.

    Each is drawn on a 32 x 32 canvas at a random place, with each ink pixel kept with a random rate
    in [0.7, 1], and counted in 4 x 4 blocks, the way the digits were made.
    """
    if n < 1:
        raise DataError(f"n={n} letters asked for; expected a whole number above 0.")
    rng = np.random.default_rng(seed)
    shapes = _shapes()
    images = np.zeros((n, _FINE, _FINE), dtype=bool)
    wide, tall = 5 * _BLOCK, 7 * _BLOCK
    for image, letter in zip(images, rng.integers(len(shapes), size=n), strict=True):
        down, across = rng.integers(_FINE - tall + 1), rng.integers(2, _FINE - wide - 1)
        ink = shapes[letter].repeat(_BLOCK, 0).repeat(_BLOCK, 1)
        image[down : down + tall, across : across + wide] = ink & (
            rng.random(ink.shape) < rng.uniform(0.7, 1.0)
        )
    side = _FINE // _BLOCK
    return (
        images.reshape(n, side, _BLOCK, side, _BLOCK)
        .sum((2, 4))
        .reshape(n, side * side)
        .astype(np.float64)
    )


def _shapes() -> np.ndarray:
    rows = [row.split() for row in _SHAPES.split("\n") if row]
    return np.array(
        [[[mark == "#" for mark in row[letter]] for row in rows] for letter in range(len(rows[0]))]
    )
