"""Differences of outputs in units of the largest."""

import math

import pytest
import torch

from credo.compress.same_outputs import difference


def test_the_difference_is_the_largest_over_all_tensors():
    one = {"a": torch.tensor([1.0, -4.0]), "b": [torch.tensor([2.0])]}
    other = {"a": torch.tensor([1.0, -4.5]), "b": [torch.tensor([2.25])]}
    found = difference(one, other)
    assert found[:2] == (0.5, 4.0) and found.within(0.2) and not found.within(0.1)


@pytest.mark.parametrize(
    "other", [torch.tensor([1.0]), torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.inf])]
)
def test_outputs_that_do_not_compare_differ(other):
    found = difference(torch.tensor([1.0, 2.0]), other)
    assert found.worst == math.inf and not found.within(1.0)


def test_whole_numbers_do_not_count_and_rounding_is_no_difference():
    assert difference(torch.tensor([1]), torch.tensor([5])).within(0.0)
    assert difference(torch.tensor([1.0]), torch.tensor([1.0 + 2e-7])).within(0.0)
