"""General figures: curves with bands and points on linear or logarithmic axes, and named bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from credo.report.style import (
    GREY,
    LINE_COLOURS,
    Figure,
    band,
    faded,
    layout,
    legend_room,
    with_legend,
)

_HEIGHT = 400


def curves(entry: dict[str, Any]) -> Figure:
    """Several lines, with optional bands and scattered points.

    ``entry``: title, x_label, y_label, and lists ``lines`` (name, x, y; ``dash``: true for theory;
    ``faint``: true for one of many draws, which gets no place in the legend; ``marks``: true to
    show the points), ``bands`` (name, x, lower, upper) and ``points`` (name, x, y). ``colour`` is a
    place in the palette (or -1: grey), by default that of the item in its list. ``log_x``,
    ``log_y`` and ``y_range`` shape the axes; ``caption`` stands below.
    """
    bands, lines, points = (entry.get(kind) or [] for kind in ("bands", "lines", "points"))
    data = [_band(item, place) for place, item in enumerate(bands)]
    data += [_line(item, place) for place, item in enumerate(lines)]
    data += [_points(item, place) for place, item in enumerate(points)]
    form: Figure = with_legend(layout(entry["title"], entry["x_label"], entry["y_label"])) | {
        "height": _HEIGHT
    }
    form["margin"] |= {"t": legend_room([trace["name"] for trace in data if trace["showlegend"]])}
    for axis in ("x", "y"):
        if entry.get(f"log_{axis}"):
            form[f"{axis}axis"] |= _log_axis(
                [
                    value
                    for trace in data
                    for value in trace[axis]
                    if value is not None and value > 0
                ]
            )
    if entry.get("y_range"):
        form["yaxis"] |= {"range": list(entry["y_range"])}
    return {"data": data, "layout": form}


def rates(title: str, history: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """An entry of :func:`curves` with the learned drop rates of a history, one line per place; None
    where it has none.
    """
    places = [key for key in (history[-1] if history else {}) if key.startswith("rate/")]
    if not places:
        return None
    x = [row["epoch"] + 1 for row in history]
    lines = [
        {"name": key.removeprefix("rate/"), "x": x, "y": [row[key] for row in history]}
        for key in places
    ]
    caption = (
        "Of the inputs of every layer, averaged over their units. More data and more certain data "
        "pull rates down."
    )
    return {
        "title": f"Learned drop rates: {title}",
        "x_label": "epoch",
        "y_label": "drop rate",
        "lines": lines,
        "caption": caption,
    }


def bars(entry: dict[str, Any]) -> Figure:
    """Horizontal bars, the first on top.

    ``entry``: title, names, values, x_label; ``errors`` (half widths) and ``caption``.
    """
    names = list(entry["names"])
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "x": list(entry["values"]),
        "y": names,
        "marker": {"color": LINE_COLOURS[0]},
        "hovertemplate": "%{y}: %{x:.4g}<extra></extra>",
    }
    if entry.get("errors"):
        trace["error_x"] = {
            "type": "data",
            "array": list(entry["errors"]),
            "color": GREY,
            "thickness": 1.5,
        }
    form: Figure = layout(entry["title"], entry["x_label"], "") | {
        "height": max(_HEIGHT - 100, 90 + 22 * len(names))
    }
    form["yaxis"] |= {"autorange": "reversed", "type": "category"}
    return {"data": [trace], "layout": form}


def _log_axis(values: list[float]) -> dict[str, Any]:
    """Powers of ten, and between them 2 and 5 where there are few."""
    decades = math.log10(max(values) / min(values)) if values else 0.0
    ticks = (
        {"dtick": 1, "exponentformat": "power"}
        if decades > 2.5
        else {"dtick": "D2", "tickformat": "~g"}
    )
    return {"type": "log"} | ticks


def _colour(item: dict[str, Any], place: int) -> str:
    chosen = item.get("colour", place)
    return GREY if chosen < 0 else LINE_COLOURS[chosen % len(LINE_COLOURS)]


def _line(item: dict[str, Any], place: int) -> dict[str, Any]:
    faint = bool(item.get("faint"))
    colour = _colour(item, place)
    return {
        "type": "scatter",
        "mode": "lines+markers" if item.get("marks") else "lines",
        "name": item["name"],
        "x": list(item["x"]),
        "y": list(item["y"]),
        "line": {
            "color": faded(colour, 0.35) if faint else colour,
            "width": 1 if faint else 2,
            "dash": "dash" if item.get("dash") else "solid",
        },
        "marker": {"size": 7},
        "showlegend": not faint,
        **({"hoverinfo": "skip"} if faint else {}),
    }


def _band(item: dict[str, Any], place: int) -> dict[str, Any]:
    area = band(item["x"], item["lower"], item["upper"], _colour(item, place))
    return area | {"name": item["name"], "showlegend": True}


def _points(item: dict[str, Any], place: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": item["name"],
        "x": list(item["x"]),
        "y": list(item["y"]),
        "marker": {"color": _colour(item, place), "size": 5, "opacity": 0.75},
        "showlegend": True,
    }
