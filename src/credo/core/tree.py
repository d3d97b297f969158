"""Inputs may be one tensor or dicts and tuples of tensors that share axis 0; these walk such
trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

Tree = Any
"""A tensor, or a dict or tuple of trees."""


def leaves(tree: Tree, name: str) -> Iterator[tuple[str, Any]]:
    """Every leaf with the expression that reaches it: ``x``, ``x['image']``, ``x[1]``."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{name}[{key!r}]")
    elif isinstance(tree, tuple):
        for place, value in enumerate(tree):
            yield from leaves(value, f"{name}[{place}]")
    else:
        yield name, tree


def map_leaves(f: Callable[[str, Any], Any], tree: Tree, name: str) -> Tree:
    """The tree with ``f(name, leaf)`` in place of each leaf."""
    if isinstance(tree, dict):
        return {key: map_leaves(f, value, f"{name}[{key!r}]") for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_leaves(f, value, f"{name}[{place}]") for place, value in enumerate(tree))
    return f(name, tree)


def take(tree: Tree, rows: Tensor | slice | int) -> Tree:
    """The chosen rows of every leaf."""
    return map_leaves(lambda _, leaf: leaf[rows], tree, "x")
