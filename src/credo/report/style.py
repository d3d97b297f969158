"""Colours and layout that all figures share; colours of text and grid are set by the page."""

from __future__ import annotations

from typing import Any

Figure = dict[str, Any]

# Distinguishable with every common kind of colour vision, on white and on black.
BLUE, ORANGE, GREEN, GREY = "#3b82c4", "#e07b39", "#2f9e77", "#8a8f98"
GROUPS = (BLUE, ORANGE, GREEN, "#b565a7", "#c9a227", "#5f6fd1", "#4bb3c4")


def faded(colour: str, opacity: float) -> str:
    """The colour ``#rrggbb`` as CSS with an opacity from 0 to 1."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def layout(title: str, x_label: str, y_label: str) -> dict[str, Any]:
    """Title on the left, labelled axes, little room wasted, no legend."""
    return {
        "title": {"text": title, "font": {"size": 14}, "x": 0.02, "xanchor": "left"},
        "xaxis": {"title": {"text": x_label, "font": {"size": 12}, "standoff": 8}, "zeroline": False, "automargin": True},
        "yaxis": {"title": {"text": y_label, "font": {"size": 12}, "standoff": 8}, "zeroline": False, "automargin": True},
        "margin": {"l": 48, "r": 12, "t": 36, "b": 52},
        "height": 280,
        "showlegend": False,
    }


def with_legend(form: dict[str, Any]) -> dict[str, Any]:
    """The layout with a legend in a row between title and plot."""
    form["showlegend"] = True
    form["legend"] = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 11}}
    form["margin"] |= {"t": 64}
    form["title"] |= {"y": 0.97, "yanchor": "top"}
    return form
