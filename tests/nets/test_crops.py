"""Tests of random crops and flips."""

import pytest
import torch
from torch import nn

from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.nets import Augmented, CropFlip


def places(x, margin):
    """All crops of one image ``(C, H, W)``, and of its mirror image."""
    padded = nn.functional.pad(x, (margin,) * 4)
    height, width = x.shape[1:]
    span = range(2 * margin + 1)
    plain = [padded[:, i : i + height, j : j + width] for i in span for j in span]
    return plain, [crop.flip(-1) for crop in plain]


def test_every_image_is_one_of_its_crops():
    with isolated(0):
        x = torch.rand(60, 2, 5, 4)
        out = CropFlip(2)(x)
    assert out.shape == x.shape
    mirrored = 0
    for before, after in zip(x, out, strict=True):
        plain, flipped = places(before, 2)
        assert any(torch.equal(after, crop) for crop in plain + flipped)
        mirrored += not any(torch.equal(after, crop) for crop in plain)
    # sixty fair coins: outside 12..48 with probability 4e-6
    assert 12 <= mirrored <= 48


def test_places_are_even():
    """Nine places of one pixel: a chi-square statistic with 8 degrees of freedom is above 36 with
    probability 2e-5.
    """
    x = torch.zeros(9000, 1, 3, 3)
    x[:, 0, 1, 1] = 1.0
    with isolated(0):
        out = CropFlip(1, flip=False)(x)
    counts = out.sum((0, 1)).flatten()
    assert float(counts.sum()) == 9000 and float((counts - 1000).square().sum() / 1000) < 36


def test_margin_zero_without_flips_changes_nothing():
    x = torch.rand(3, 1, 4, 4)
    assert torch.equal(CropFlip(0, flip=False)(x), x)


def test_off_in_evaluation_and_its_own_noise_for_every_member():
    with isolated(0):
        x = torch.rand(4, 1, 6, 6)
        net = Augmented(nn.Identity(), CropFlip(2))
        net.train()
        members = torch.vmap(lambda scale: net(scale * x), randomness="different")(torch.ones(3))
        assert members.shape == (3, 4, 1, 6, 6)
        assert not torch.equal(members[0], members[1]) and not torch.equal(members[1], members[2])
        assert torch.equal(net.eval()(x), x)


@pytest.mark.parametrize("margin", [-1, 1.5, True])
def test_bad_margins_are_refused(margin):
    with pytest.raises(SettingError, match="margin="):
        CropFlip(margin)
