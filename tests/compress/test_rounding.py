import math

import pytest
import torch
from torch import nn

from credo.compress import precision, quantise
from credo.compress.pruned import Pruned
from credo.compress.quantised import Coded, Raw, rounded_book
from credo.compress.rounding import average_bits
from credo.core.errors import SettingError


def pruned(std=0.05, zeros=0.5):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 10), nn.BatchNorm1d(10), nn.Linear(10, 2)).eval()
    masks = {n: torch.rand(p.shape) > zeros for n, p in net.named_parameters() if p.dim() > 1}
    with torch.no_grad():
        for name, mask in masks.items():
            net.get_parameter(name).mul_(mask)
    stds = {n: torch.full(m.shape, std) for n, m in masks.items()} if std else {}
    return Pruned(net, masks, stds, "own", None)


@pytest.mark.parametrize("std", [1e-4, 0.01, 0.05, 0.3])
def test_rounding_error_is_at_most_the_posterior_s_and_one_bit_less_would_exceed_it(std):
    for name, found in precision(pruned(std)).items():
        value = pruned(std).net.get_parameter(name).detach()
        unit = 2.0 ** math.floor(math.log2(float(value.abs().max())))
        assert (
            found.error == unit * 2.0 ** -(found.significand + 1) <= std == pytest.approx(found.std)
        )
        assert found.significand == 0 or 2 * found.error > std
        scale = unit * 2.0**-found.significand
        assert float(((value / scale).round() * scale - value).abs().max()) <= found.error
        assert found.bits == 1 + found.exponent + found.significand


def test_a_wider_posterior_needs_fewer_bits():
    bits = [average_bits(precision(pruned(std)), pruned(std)) for std in (1e-3, 1e-2, 1e-1)]
    assert bits[0] > bits[1] > bits[2]
    assert precision(pruned(0.0)) == {}


@pytest.mark.parametrize("step", [0.5, 1.0, 2.0])
def test_a_grid_rounds_by_at_most_the_step_times_the_sd(step):
    given = pruned(0.02)
    found = quantise(given, step)
    for name in given.masks:
        entry = found[name]
        assert isinstance(entry, Coded)
        error = (found.values(name) - given.net.get_parameter(name).detach()).abs()
        assert (
            float(error.max()) <= step * 0.02 * 1.02
            and not found.values(name)[~given.masks[name]].any()
        )
        multiples = entry.book / float(rounded_book(torch.tensor([2 * step * 0.02]), 8))
        assert torch.allclose(multiples, multiples.round(), atol=1e-4)
    assert isinstance(found["1.running_mean"], Raw)
    filled = found.fill(given.net)
    x = torch.randn(5, 20)
    assert float((filled(x) - given.net(x)).detach().abs().max()) < 0.3


def test_levels_are_the_best_few_values():
    given = pruned(0.02)
    errors = []
    for levels in (1, 2, 4, 16):
        found = quantise(given, levels=levels)
        assert all(len(found[name].book) <= levels for name in given.masks)
        errors.append(
            float(
                (found.values("0.weight") - given.net.get_parameter("0.weight").detach())
                .square()
                .sum()
            )
        )
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.02 * errors[0]


def test_levels_lean_to_weights_that_are_known_well():
    given = pruned(0.02, zeros=0.0)
    weight = given.net.get_parameter("2.weight").detach()
    given.std["2.weight"] = torch.where(weight == weight.max(), 1e-3, 1.0)
    found = quantise(given, levels=2).values("2.weight")
    assert found[weight == weight.max()] == pytest.approx(float(weight.max()), rel=0.05)


def test_without_a_posterior_levels_are_needed():
    with pytest.raises(
        SettingError, match="no posterior standard deviation to choose a grid by; give levels="
    ):
        quantise(pruned(0.0))
    assert quantise(pruned(0.0), levels=4).nonzero > 0
    for settings in ({"step": 0.0}, {"levels": 0}):
        with pytest.raises(SettingError, match="expected a step above 0 and at least one level"):
            quantise(pruned(), **settings)


def test_an_empty_layer_stays_empty():
    found = quantise(pruned(zeros=1.0))
    assert not found.values("0.weight").any() and len(found["0.weight"].book) == 0
