import torch

from credo.core.tree import leaves, map_leaves, take

TREE = {"image": torch.arange(6.0).reshape(3, 2), "rest": (torch.arange(3), torch.zeros(3))}


def test_leaves_carry_the_expression_that_reaches_them():
    assert [name for name, _ in leaves(TREE, "x")] == ["x['image']", "x['rest'][0]", "x['rest'][1]"]


def test_take_picks_rows_of_every_leaf_and_keeps_the_structure():
    rows = take(TREE, torch.tensor([2, 0]))
    assert rows["image"].tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert rows["rest"][0].tolist() == [2, 0]


def test_map_leaves_sees_names():
    assert map_leaves(lambda name, leaf: (name, leaf.ndim), torch.zeros(1, 2), "x") == ("x", 2)
