"""Rotated digits, and the check that draws disagree about images that are no digits."""

import torch

from credo_reproduce.digit_uncertainty import more_disagreement, turned
from credo_reproduce.outcome import Row, Table


def test_turning_by_quarters_moves_pixels_and_four_make_a_whole():
    image = torch.zeros(28, 28)
    image[3, 14:20] = 1.0
    quarter = turned(image.reshape(1, 784), 90.0).reshape(28, 28)
    assert torch.allclose(quarter, torch.rot90(image, -1), atol=1e-4)
    whole = image.reshape(1, 784)
    for _ in range(4):
        whole = turned(whole, 90.0)
    assert torch.allclose(whole, image.reshape(1, 784), atol=1e-3)
    assert torch.allclose(turned(image.reshape(784), 0.0), image.reshape(784), atol=1e-5)


def test_draws_that_disagree_most_about_real_digits_fail_the_check():
    def table(real, blended, rotated):
        values = {"real images": real, "blended images": blended, "rotated images": rotated}
        rows = [Row(label, {"mutual information": value}) for label, value in values.items()]
        return Table("", ["mutual information"], rows)

    assert more_disagreement(table(0.1, 0.2, 0.3)).holds
    assert not more_disagreement(table(0.2, 0.1, 0.3)).holds
