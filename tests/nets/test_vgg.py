"""Tests of the VGG-like network."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import credo
from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.nets import Augmented, CropFlip, vgg


def numel(net):
    return sum(p.numel() for p in net.parameters())


def by_hand(widths, dense, outputs, channels=3):
    """Weights of the convolutions and dense layers, two numbers per normalised channel, and the
    last bias.
    """
    pairs = list(zip((channels, *widths), widths, strict=False))
    return (
        sum(9 * a * b for a, b in pairs)
        + 2 * (sum(widths) + dense)
        + dense**2
        + outputs * (dense + 1)
    )


def test_size_and_shape():
    widths = (64, 64, 128, 128, *[256] * 3, *[512] * 6)
    assert numel(vgg()) == by_hand(widths, 512, 10) == 14_987_210
    assert numel(vgg(outputs=7, width=0.25, channels=1)) == by_hand(
        [w // 4 for w in widths], 128, 7, 1
    )
    assert vgg(outputs=7, width=0.05)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert vgg(outputs=7, width=0.05)(torch.zeros(2, 3, 64, 40)).shape == (2, 7)


def test_widths_are_rounded_and_never_zero():
    assert [m.out_channels for m in vgg(width=0.1) if isinstance(m, nn.Conv2d)] == [
        6,
        6,
        13,
        13,
        26,
        26,
        26,
        *[51] * 6,
    ]
    assert {m.out_channels for m in vgg(width=1e-4) if isinstance(m, nn.Conv2d)} == {1}


def test_what_stands_before_a_normalisation_has_no_bias():
    layers = list(vgg(width=0.05))
    norms = (nn.BatchNorm1d, nn.BatchNorm2d)
    before = [layers[place - 1] for place, m in enumerate(layers) if isinstance(m, norms)]
    assert len(before) == 14 and all(m.bias is None for m in before) and layers[-1].bias is not None


def test_dropout_stands_where_no_pooling_follows_and_changes_no_parameter():
    plain, dropped = vgg(width=0.05), vgg(width=0.05, dropout=True)
    rates = [m.p for m in dropped if isinstance(m, nn.Dropout)]
    assert rates == [0.3, 0.4, *[0.4] * 2, *[0.4] * 2, *[0.4] * 2, 0.5, 0.5]
    layers = list(dropped)
    assert all(
        not isinstance(b, nn.MaxPool2d) for a, b in pairwise(layers) if isinstance(a, nn.Dropout)
    )
    shapes = [[p.shape for p in net.state_dict().values()] for net in (plain, dropped)]
    assert shapes[0] == shapes[1]
    assert not any(isinstance(m, nn.Dropout) for m in plain)


def test_sparse_variational_dropout_fits_it_behind_crops_and_moves_its_statistics():
    with isolated(0):
        x, y = torch.randn(12, 3, 32, 32), torch.arange(12) % 3
        net = Augmented(vgg(outputs=3, width=0.03), CropFlip())
    bnn = credo.BNN(net).fit((x, y), "sparse_vd", epochs=1, batch_size=6, progress=False)
    means = {n: b for n, b in bnn.buffers.items() if n.endswith("running_mean")}
    assert len(means) == 14 and all(bool(mean.any()) for mean in means.values())
    assert bnn.predict(x, 2).outputs.shape == (2, 12, 3)


@pytest.mark.parametrize("width", [0, -1.0, True, "wide", float("nan"), float("inf")])
def test_bad_widths_are_refused_with_the_value(width):
    with pytest.raises(SettingError, match=f"vgg: width={width!r} is not valid"):
        vgg(width=width)


def test_small_images_are_refused_by_their_shape():
    with pytest.raises(credo.NetworkError, match="cannot take inputs of shape"):
        credo.BNN(vgg(width=0.03)).fit(
            (torch.zeros(4, 3, 16, 16), torch.arange(4)), "map", epochs=1, progress=False
        )
