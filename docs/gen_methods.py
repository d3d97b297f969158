"""Fill the lists of methods from the registry when the documentation is built, so that they cannot
fall behind the code: the methods page, and the classes in the API reference.
"""

from __future__ import annotations

import inspect
from typing import Any

from credo.core.settings import describe
from credo.methods import Method, methods

MARK = "<!-- every registered method -->"
CLASSES = "<!-- every method's class -->"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The hook that mkdocs calls for every page."""
    return fill(markdown) if page.file.src_uri in ("methods.md", "reference.md") else markdown


def fill(markdown: str) -> str:
    """The page with one section, or one class, per method in place of the mark."""
    sections = "\n".join(section(name, kind) for name, kind in methods.items())
    classes = "\n\n".join(reference(kind) for _, kind in methods.items())
    return markdown.replace(MARK, sections).replace(CLASSES, classes)


def reference(kind: type[Method]) -> str:
    """What mkdocstrings turns into the class, its arguments and their defaults."""
    return f"::: credo.methods.{kind.__name__}\n    options:\n      members: false"


def section(name: str, kind: type[Method]) -> str:
    """Summary, the rule and when it fails, defaults, settings, declared exceptions and reference of
    one method.
    """
    about = inspect.getdoc(inspect.getmodule(kind)) or inspect.getdoc(kind) or ""
    parts = [
        f"## `{name}`",
        kind.summary,
        about.replace("``", "`"),
        _defaults(kind),
        _settings(kind),
        _exceptions(kind),
    ]
    return "\n\n".join([*filter(None, parts), f"Reference: {kind.reference}"]) + "\n"


def _defaults(kind: type[Method]) -> str:
    size = "the whole data set" if kind.batch_size is None else f"`{kind.batch_size}`"
    length = "epochs until the objective has settled, " if kind.takes_epochs else ""
    rate = "by the size of the network" if kind.lr is None else f"{kind.lr:g}"
    return (
        f"Posterior: {kind.fidelity}. Defaults of `fit`: {length}`batch_size` {size}, `lr` {rate}."
    )


def _settings(kind: type[Method]) -> str:
    rows = [
        f"| `{r['name']}` | `{r['default']!r}` | {_cell(r['range'])} | {_cell(r['help'])} |"
        for r in describe(kind)
    ]
    return (
        "\n".join(["| setting | default | values | meaning |", "|---|---|---|---|", *rows])
        if rows
        else "No settings."
    )


def _exceptions(kind: type[Method]) -> str:
    rows = [f"- `{check}`: {reason}" for check, reason in kind.exceptions.items()]
    return "\n".join(["Conformance checks that do not apply:", "", *rows]) if rows else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
