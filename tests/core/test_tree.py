from collections import namedtuple

import pytest
import torch

from credo.core.errors import NetworkError
from credo.core.tree import (
    flatten,
    leaves,
    map_leaves,
    map_named_leaves,
    map_rows,
    map_tensors,
    named_leaves,
    num_rows,
    one_more,
    split,
    stack,
    structure,
    take,
    tensors,
    unflatten,
)

TREE = {"image": torch.arange(6.0).reshape(3, 2), "rest": (torch.arange(3), torch.zeros(3))}
MIXED = {"a": torch.arange(6).reshape(3, 2), "b": torch.zeros(2, 3), "c": 5}


def test_named_leaves_carry_the_expression_that_reaches_them():
    assert [name for name, _ in named_leaves(TREE, "x")] == [
        "x['image']",
        "x['rest'][0]",
        "x['rest'][1]",
    ]
    assert [name for name, _ in named_leaves(torch.zeros(2), "y")] == ["y"]


def test_map_named_leaves_sees_names_and_lists_whole():
    assert map_named_leaves(lambda name, leaf: (name, leaf.ndim), torch.zeros(1, 2), "x") == (
        "x",
        2,
    )
    assert map_named_leaves(lambda name, leaf: len(leaf), {"a": [1, 2, 3]}, "x") == {"a": 3}


def test_dicts_and_tuples_of_own_classes_become_plain_ones():
    class Own(dict):
        pass

    Pair = namedtuple("Pair", "first second")
    found = map_named_leaves(lambda name, leaf: name, Own(a=Pair(1, Own(b=2))), "x")
    assert found == {"a": ("x['a'][0]", {"b": "x['a'][1]['b']"})}
    assert type(found) is dict and type(found["a"]) is tuple


def test_leaves_and_tensors_come_in_the_same_order_whatever_the_keys():
    tree = {"z": torch.zeros(1), "a": [torch.ones(1), 3]}
    assert [type(leaf) for leaf in leaves(tree)] == [torch.Tensor, torch.Tensor, int]
    assert [float(t) for t in tensors(tree)] == [0.0, 1.0]
    found, shape = flatten(tree)
    again = unflatten(found, shape)
    assert again.keys() == tree.keys() and again["a"][1] == 3
    assert map_tensors(lambda t: t + 1, tree)["a"][1] == 3
    summed = map_leaves(lambda a, b: a + b, tree, tree)
    assert float(summed["a"][0]) == 2.0 and summed["a"][1] == 6


def test_take_picks_examples_of_every_tensor_and_keeps_the_structure():
    rows = take(TREE, torch.tensor([2, 0]))
    assert rows["image"].tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert rows["rest"][0].tolist() == [2, 0]
    assert take(TREE, 1)["rest"][0] == 1


def test_what_has_no_example_axis_stays_whole():
    part = take(MIXED, slice(1, 2))
    assert part["a"].tolist() == [[2, 3]] and part["b"].shape == (2, 3) and part["c"] == 5
    assert map_rows(lambda t: t * 2, MIXED)["a"][2, 1] == 10


def test_one_more_example():
    more = one_more(MIXED)
    assert (
        more["a"].tolist() == [[0, 1], [2, 3], [4, 5], [0, 1]]
        and more["b"].shape == (2, 3)
        and more["c"] == 5
    )


def test_num_rows_is_the_first_axis_of_the_first_tensor_that_has_one():
    assert num_rows(MIXED) == 3 and num_rows((torch.tensor(1.0), torch.zeros(4))) == 4
    with pytest.raises(NetworkError, match="no tensor with an example axis"):
        num_rows({"a": 1})


def test_split_gives_all_examples_in_order():
    assert [part["a"].tolist() for part in split(MIXED, 2)] == [[[0, 1], [2, 3]], [[4, 5]]]
    assert [part is MIXED for part in split(MIXED, None)] == [True]
    assert [part is MIXED for part in split(MIXED, 3)] == [True]


def test_stack_adds_a_leading_axis():
    both = stack([TREE, TREE])
    assert both["image"].shape == (2, 3, 2) and both["rest"][0].shape == (2, 3)


def test_the_structure_key_tells_trees_ranks_and_types_apart_but_not_batch_sizes():
    x = torch.zeros(3, 5)
    assert structure(x) == structure(torch.zeros(7, 5))
    others = [x.double(), x.unsqueeze(0), (x,), {"a": x}, [x], (x, 1)]
    keys = [structure(other) for other in others]
    assert len({str(k) for k in keys} | {str(structure(x))}) == len(others) + 1
