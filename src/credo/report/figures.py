"""Figures of predictions and of training, and the list of all sections of a report.

A figure is a plain Plotly description, ``{"data": [...], "layout": {...}}``; colours of text and
grid are set by the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from credo.report import style
from credo.report.chain_figures import energy, ranks, trace
from credo.report.curve_figures import bars, curves
from credo.report.image_figures import mosaic, scatter
from credo.report.style import BLUE, GREY, LINE_COLOURS, ORANGE, Figure, layout, with_legend


def reliability(entry: dict[str, Any]) -> Figure:
    """Accuracy against confidence per bin; the dashed diagonal is perfect calibration, a larger
    mark holds more inputs.

    ``entry``: method, confidence, accuracy and count, one value per bin; empty bins are left out.
    """
    bins = [
        row
        for row in zip(entry["confidence"], entry["accuracy"], entry["count"], strict=True)
        if row[2]
    ]
    most = max((row[2] for row in bins), default=1)
    marks = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [row[0] for row in bins],
        "y": [row[1] for row in bins],
        "customdata": [row[2] for row in bins],
        "hovertemplate": "confidence %{x:.3f}<br>accuracy %{y:.3f}<br>%{customdata} "
        "inputs<extra></extra>",
        "marker": {
            "size": [6 + 14 * math.sqrt(row[2] / most) for row in bins],
            "color": BLUE,
            "opacity": 0.85,
        },
        "line": {"color": BLUE, "width": 1.5},
        "cliponaxis": False,
    }
    diagonal = {
        "type": "scatter",
        "mode": "lines",
        "x": [0, 1],
        "y": [0, 1],
        "hoverinfo": "skip",
        "line": {"color": GREY, "dash": "dash", "width": 1},
    }
    form = layout(entry["method"], "confidence", "accuracy")
    form["xaxis"] |= {"range": [-0.03, 1.05]}
    form["yaxis"] |= {"range": [-0.03, 1.05]}
    return {"data": [diagonal, marks], "layout": form}


def uncertainty(entry: dict[str, Any], num_bins: int = 24) -> Figure:
    """Histograms of one uncertainty for several groups of inputs, in shared bins, each group
    summing to one.

    ``entry``: method, measure (axis label) and groups, a list of ``{"name", "values"}``.
    """
    values = [np.asarray(group["values"], dtype=float) for group in entry["groups"]]
    top = max((float(v.max()) for v in values if v.size), default=1.0)
    low = min(0.0, min((float(v.min()) for v in values if v.size), default=0.0))
    # A point estimate has no epistemic part: all values are zero up to rounding, and one bin at
    # zero says so.
    edges = np.linspace(low, top if top - low > 1e-9 else low + 1.0, num_bins + 1)
    centres, width = (edges[:-1] + edges[1:]) / 2, float(edges[1] - edges[0])
    data = [
        {
            "type": "bar",
            "name": group["name"],
            "x": centres.tolist(),
            "y": (np.histogram(v, edges)[0] / max(v.size, 1)).tolist(),
            "width": width,
            "marker": {"color": LINE_COLOURS[place % len(LINE_COLOURS)], "opacity": 0.55},
            "hovertemplate": "%{x:.3f}: %{y:.1%} of " + str(group["name"]) + "<extra></extra>",
        }
        for place, (group, v) in enumerate(zip(entry["groups"], values, strict=True))
    ]
    form = with_legend(layout(entry["method"], entry["measure"], "share of inputs")) | {
        "barmode": "overlay",
        "bargap": 0,
    }
    form["yaxis"] |= {"tickformat": ".0%", "rangemode": "tozero"}
    return {"data": data, "layout": form}


def band(entry: dict[str, Any]) -> Figure:
    """Predictive mean and interval along one input, with data points.

    ``entry``: method, x, mean, lower, upper, level, data_x, data_y, x_label and y_label.
    """
    area = style.band(entry["x"], entry["lower"], entry["upper"], BLUE)
    mean = {
        "type": "scatter",
        "mode": "lines",
        "x": list(entry["x"]),
        "y": list(entry["mean"]),
        "line": {"color": BLUE, "width": 2},
    }
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": list(entry["data_x"]),
        "y": list(entry["data_y"]),
        "marker": {"color": ORANGE, "size": 4, "opacity": 0.6},
    }
    return {
        "data": [area, points, mean],
        "layout": layout(
            f"{entry['method']} ({entry['level']:.0%} interval)", entry["x_label"], entry["y_label"]
        ),
    }


def objective(entry: dict[str, Any]) -> Figure:
    """The parts of the objective over epochs, in nats per data set.

    ``entry``: method and parts, a list of ``{"name", "values"}`` with one value per epoch.
    """
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": part["name"],
            "x": list(range(1, len(part["values"]) + 1)),
            "y": list(part["values"]),
            "line": {"color": LINE_COLOURS[place % len(LINE_COLOURS)], "width": 2},
        }
        for place, part in enumerate(entry["parts"])
    ]
    form = with_legend(layout(entry["method"], "epoch", "nats per data set"))
    # The parts may differ a hundredfold; a density can make either negative, and then only a linear
    # axis shows it.
    positive = all(value > 0 for part in entry["parts"] for value in part["values"])
    form["yaxis"] |= (
        {"type": "log", "dtick": 1, "tickformat": ",~g"} if positive else {"tickformat": ",~g"}
    )
    return {"data": data, "layout": form}


class Section(NamedTuple):
    """A section of the page: its key in a task's results, heading, how to read it, the function
    that draws one entry, and whether figures are wide.
    """

    key: str
    heading: str
    caption: str
    draw: Callable[[dict[str, Any]], Figure]
    wide: bool = False


SECTIONS: Sequence[Section] = (
    Section(
        "reliability",
        "Can the stated confidence be trusted?",
        (
            "Test inputs are sorted into bins by the confidence of their prediction. On the "
            "dashed line, predictions made"
            " with 80\u00a0% confidence are right 80\u00a0% of the time. Marks below it mean "
            "over-confidence, above it "
            "under-confidence; larger marks hold more inputs."
        ),
        reliability,
    ),
    Section(
        "uncertainty",
        "Does it know what it does not know?",
        (
            "How uncertain the predictions are on inputs like the training data and on inputs of "
            "another kind. The "
            "further the histograms lie apart, the easier it is to tell the strange inputs from "
            "the familiar ones by "
            "uncertainty alone."
        ),
        uncertainty,
    ),
    Section(
        "band",
        "What does it predict, and how sure is it?",
        (
            "The line is the predicted mean as one input varies and the others stay at their "
            "average; the shaded band "
            "should hold the stated share of the outcomes. Points are real data, whose other "
            "inputs differ, so some "
            "spread around the line is expected."
        ),
        band,
    ),
    Section(
        "objective",
        "What moved during training?",
        (
            "The two parts of the objective, both in nats for the whole data set: how badly the "
            "data is explained, and "
            "how far the posterior has moved from the prior. A penalty that dwarfs the data term "
            "means the model is held "
            "at its prior."
        ),
        objective,
    ),
    Section(
        "trace",
        "Do the chains agree?",
        (
            "Some numbers that the network computes, draw by draw, a line per chain; those on "
            "which the chains agree least. Chains "
            "that have mixed look alike: noise about the same level, without a trend, and none "
            "that stays apart."
        ),
        trace,
        wide=True,
    ),
    Section(
        "ranks",
        "Does every chain visit all values?",
        (
            "The draws of all chains are put in order, and each chain's places in that order are "
            "counted. A chain that has mixed "
            "fills all bins to about the dashed line; the band is two standard deviations of "
            "independent draws, and chains with "
            "a memory stray further. A slope means that a chain stays too low or too high, a hill "
            "or a valley that its spread is another."
        ),
        ranks,
        wide=True,
    ),
    Section(
        "energy",
        "Can the sampler reach all of the posterior?",
        (
            "A trajectory keeps its energy (minus the log density, plus that of its momentum), "
            "and only a fresh momentum changes it. "
            "Where changes from draw to draw are much narrower than the energies themselves "
            "(E-BFMI below 0.3), chains cannot get "
            "around in the time they were given."
        ),
        energy,
        wide=True,
    ),
    Section(
        "mosaic",
        "What does it look like?",
        "Each square is one picture, from black (0) to white (1).",
        mosaic,
        wide=True,
    ),
    Section(
        "scatter",
        "Which of them lie together?",
        "Each point is one datum, coloured by its label. Click a name in the legend to hide or "
        "show its points.",
        scatter,
        wide=True,
    ),
    Section("curves", "", "", curves, wide=True),
    Section("bars", "", "", bars, wide=True),
)
"""In the order of the page; figures of the last two bring their own captions."""
