"""Colours and layout that all figures share; colours of text and grid are set by the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Figure = dict[str, Any]

# Distinguishable with every common kind of colour vision, on white and on black.
BLUE, ORANGE, GREEN, GREY = "#3b82c4", "#e07b39", "#2f9e77", "#8a8f98"
LINE_COLOURS = (BLUE, ORANGE, GREEN, "#b565a7", "#c9a227", "#5f6fd1", "#4bb3c4")
# For points of up to ten groups: further apart than the colours of lines, whose legend is in the
# same order and helps.
POINT_COLOURS = (
    "#3b6fd4",
    "#f08c2e",
    "#2fa84f",
    "#d63c3c",
    "#9a5fd0",
    "#8c6239",
    "#ee7fc0",
    "#8a8f98",
    "#b8b32a",
    "#2fc4d8",
)

_LEGEND = 420  # width of the legend in pixels


def faded(colour: str, opacity: float) -> str:
    """The colour ``#rrggbb`` as CSS with an opacity from 0 to 1."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def layout(title: str, x_label: str, y_label: str) -> dict[str, Any]:
    """Title on the left, labelled axes, little room wasted, no legend."""
    return {
        "title": {"text": title, "font": {"size": 14}, "x": 0.02, "xanchor": "left"},
        "xaxis": {
            "title": {"text": x_label, "font": {"size": 12}, "standoff": 8},
            "zeroline": False,
            "automargin": True,
        },
        "yaxis": {
            "title": {"text": y_label, "font": {"size": 12}, "standoff": 8},
            "zeroline": False,
            "automargin": True,
        },
        "margin": {"l": 48, "r": 12, "t": 36, "b": 52},
        "height": 280,
        "showlegend": False,
    }


def with_legend(form: dict[str, Any]) -> dict[str, Any]:
    """The layout with a legend in a row between title and plot."""
    form["showlegend"] = True
    form["legend"] = {
        "orientation": "h",
        "x": 0,
        "y": 1.02,
        "yanchor": "bottom",
        "font": {"size": 11},
    }
    form["margin"] |= {"t": 64}
    form["title"] |= {"y": 0.97, "yanchor": "top"}
    return form


def band(x: Sequence[float], lower: Sequence[float], upper: Sequence[float], colour: str) -> Figure:
    """A trace that fills the area between two lines."""
    x = list(x)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x + x[::-1],
        "y": list(upper) + list(lower)[::-1],
        "fill": "toself",
        "fillcolor": faded(colour, 0.22),
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def legend_room(names: Sequence[str]) -> int:
    """Top margin in pixels for a title and a legend with these names; a column of it is as wide as
    the longest.
    """
    beside = max(1, int(_LEGEND // (45 + 6.5 * max(map(len, names), default=1))))
    return 48 + 19 * max(1, -(-len(names) // beside))
