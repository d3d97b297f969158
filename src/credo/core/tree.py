"""Batches of any structure: a tensor, or dicts, tuples and lists of tensors that share axis 0.

A network's inputs may be such a tree. The walk over it is torch's own (``torch.utils._pytree``,
which its compiler understands), and this is the only file that calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo.core.errors import NetworkError

Tree = Any
"""A tensor, or a dict, tuple or list of trees."""

Structure = pytree.TreeSpec
"""What is left of a tree without its leaves."""


def leaves(tree: Tree) -> list[Any]:
    """Every leaf, in order."""
    return pytree.tree_leaves(tree)


def tensors(tree: Tree) -> list[Tensor]:
    """Every leaf that is a tensor, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def map_leaves(f: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The tree with ``f(leaf, *leaves of the others)`` in place of each leaf."""
    return pytree.tree_map(f, tree, *others)


def map_tensors(f: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """The tree with ``f(leaf)`` in place of each tensor; other leaves stay."""
    return pytree.tree_map(lambda leaf: f(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def flatten(tree: Tree) -> tuple[list[Any], Structure]:
    """Leaves and structure; :func:`unflatten` puts them together again."""
    return pytree.tree_flatten(tree)


def unflatten(leaves: Sequence[Any], structure: Structure) -> Tree:
    """The tree of this structure with these leaves."""
    return pytree.tree_unflatten(leaves, structure)


# --- leaves by name, for messages -----------------------------------------------------------------


def named_leaves(tree: Tree, name: str) -> Iterator[tuple[str, Any]]:
    """Every leaf with the expression that reaches it: ``x``, ``x['image']``, ``x[1]``.

    A list is a leaf here: what a user gives as a list is one array.
    """
    for path, leaf in pytree.tree_flatten_with_path(_plain(tree), is_leaf=_is_list)[0]:
        yield name + pytree.keystr(path), leaf


def map_named_leaves(f: Callable[[str, Any], Any], tree: Tree, name: str) -> Tree:
    """The tree, of plain dicts and tuples, with ``f(expression, leaf)`` in place of each leaf; a
    list is a leaf.
    """
    return pytree.tree_map_with_path(
        lambda path, leaf: f(name + pytree.keystr(path), leaf), _plain(tree), is_leaf=_is_list
    )


def _is_list(tree: Tree) -> bool:
    return isinstance(tree, list)


def _plain(tree: Tree) -> Tree:
    """Dicts and tuples of a user's own classes as plain ones: torch would take them for leaves."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    return tuple(_plain(value) for value in tree) if isinstance(tree, tuple) else tree


# --- examples, on axis 0 --------------------------------------------------------------------------


def num_rows(tree: Tree) -> int:
    """Number of examples: the first axis of the first tensor that has one."""
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.dim():
            return leaf.shape[0]
    raise NetworkError("The network's input holds no tensor with an example axis.")


def map_rows(f: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The tree with ``f(leaf)`` in place of each tensor with one entry per example; what has no
    such axis, a scale for example, is left as it is.
    """
    total = num_rows(tree)

    def apply(leaf: Any) -> Any:
        whole = isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == total
        return f(leaf) if whole else leaf

    return pytree.tree_map(apply, tree)


def take(tree: Tree, rows: Tensor | slice | int) -> Tree:
    """The chosen examples."""
    return map_rows(lambda leaf: leaf[rows], tree)


def one_more(tree: Tree) -> Tree:
    """The same examples and the first once more at the end."""
    return map_rows(lambda leaf: torch.cat([leaf, leaf[:1]]), tree)


def split(tree: Tree, size: int | None) -> Iterator[Tree]:
    """Batches of at most ``size`` examples, in order; None for all of them in one."""
    total = num_rows(tree)
    if size is None or size >= total:
        yield tree
        return
    for start in range(0, total, size):
        yield take(tree, slice(start, start + size))


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of one structure as one, with a new leading axis."""
    return pytree.tree_map(lambda *parts: torch.stack(parts), trees[0], *trees[1:])


def structure(tree: Tree) -> tuple[Any, ...]:
    """A key for what a pass may depend on besides the numbers: the tree's shape, and the number of
    axes and type of each tensor.
    """
    found, spec = pytree.tree_flatten(tree)
    kinds = [(leaf.dim(), leaf.dtype) if isinstance(leaf, Tensor) else type(leaf) for leaf in found]
    return (str(spec), *kinds)


def is_real_table(x: Any) -> bool:
    """Whether it is one tensor ``(N, D)`` of real numbers."""
    return isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point()
