"""What one pass sees of a family."""

import pytest
import torch
from zoo.families import MAKERS

from credo.core.seeds import Ambient, isolated


def drawn(kind):
    family = MAKERS[kind]()
    draw = family.begin(Ambient())
    draw.owner = family
    return draw


def test_parameters_that_depend_on_each_other_are_drawn_whole_and_once():
    draw = drawn("full")
    with isolated(0):
        weights, biases = draw.each(3, ["w"]), draw.each(3, ["b"])
    assert set(weights) == {"w", "b"} and weights is biases
    assert weights["w"].shape == (3, 3, 4)


def test_independent_parameters_are_drawn_one_by_one():
    draw = drawn("mean_field")
    with isolated(0):
        assert set(draw.each(3, ["w"])) == {"w"}


def test_what_a_family_has_no_form_for_is_not_implemented():
    draw = drawn("mean_field")
    assert draw.straight_through(["w"]) is NotImplemented
    assert draw.relaxed(["w"], 0.5) is NotImplemented
    assert not torch.is_tensor(draw.kl)


@pytest.mark.parametrize("kind", MAKERS)
def test_only_masks_with_learned_rates_have_gates(kind):
    family, draw = MAKERS[kind](), drawn(kind)
    draw.harden()
    with isolated(0):
        draw.weights(family.names)
    assert bool(draw.gates) == family.gated == (kind == "concrete_dropout")
