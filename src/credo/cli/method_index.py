"""The list of methods, read from their source without importing them: that would import torch,
which takes seconds.

``credo.methods`` has one import line per method, and a method's class states ``name``, ``summary``
and, unless it is "approximate", ``fidelity`` as literals in its own file.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import credo


class MethodEntry(NamedTuple):
    """One line of the list."""

    name: str
    summary: str
    fidelity: str = "approximate"


def list_methods() -> list[MethodEntry]:
    """All methods, in the order of the import lines of ``credo.methods``."""
    imports = [node for node in _tree("credo.methods").body if isinstance(node, ast.ImportFrom)]
    stated = [
        _literals(line.module, alias.name)
        for line in imports
        for alias in line.names
        if line.module is not None and line.module.startswith("credo.methods.")
    ]
    return [MethodEntry(**literals) for literals in stated]


def _literals(module: str, name: str) -> dict[str, str]:
    """What the class ``name`` of a module states of the fields of :class:`MethodEntry`."""
    classes = [node for node in _tree(module).body if isinstance(node, ast.ClassDef)]
    fields = [node for kind in classes if kind.name == name for node in kind.body]
    return {
        node.target.id: ast.literal_eval(node.value)
        for node in fields
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id in MethodEntry._fields
        and node.value is not None
    }


def _tree(module: str) -> ast.Module:
    """The source of a module of credo, parsed; a package's is its ``__init__.py``."""
    place = Path(credo.__file__).parents[1].joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))
