"""Specifications of figures, in the form that ``credo.report`` draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def curves(
    title: str, x_label: str, y_label: str, lines: Sequence[dict[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    """Lines in one plot; ``more``: bands, points, logarithmic axes and the like, see
    ``credo.report.curve_figures.curves``.
    """
    return {
        "kind": "curves",
        "title": title,
        "x_label": x_label,
        "y_label": y_label,
        "lines": list(lines),
    } | more


def line(name: str, x: Any, y: Any, **more: Any) -> dict[str, Any]:
    """One line, or one set of points: values ``y`` at ``x``."""
    return {"name": name, "x": list(x), "y": list(y)} | more


def band(name: str, x: Any, lower: Any, upper: Any, **more: Any) -> dict[str, Any]:
    """The area between two lines."""
    return {"name": name, "x": list(x), "lower": list(lower), "upper": list(upper)} | more


def bars(
    title: str, names: Sequence[str], values: Sequence[float], x_label: str, **more: Any
) -> dict[str, Any]:
    """Horizontal bars; ``more``: their errors, or a caption."""
    return {
        "kind": "bars",
        "title": title,
        "names": list(names),
        "values": list(values),
        "x_label": x_label,
    } | more
