"""Figures of Markov chains: values over draws, ranks by chain, energies.

Entries are lists of numbers, as they are in a result file.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from credo.report.style import (
    BLUE,
    GREY,
    LINE_COLOURS,
    ORANGE,
    Figure,
    faded,
    layout,
    legend_room,
    with_legend,
)

POINTS = 500  # most draws of a chain in a trace: more cannot be told apart and make the page heavy
BINS = 20  # of the ranks of a chain
_GAP = 4  # bins' widths between the ranks of two chains
_BINS_OF_ENERGY = 40  # of the histograms of energies
_TALL, _LOW = 320, 280  # heights in pixels


def trace(entry: dict[str, Any]) -> Figure:
    """One number over draws, a line per chain, at most 500 evenly spaced draws of each.

    ``entry``: title, y_label and ``chains``, a list of draws per chain; ``caption`` stands below.
    """
    length = max(map(len, entry["chains"]), default=0)
    data = []
    for place, draws in enumerate(entry["chains"]):
        places = np.linspace(0, len(draws) - 1, min(POINTS, len(draws))).round().astype(int)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"chain {place + 1}",
                "x": (places + 1).tolist(),
                "y": [draws[index] for index in places],
                "line": {"color": faded(LINE_COLOURS[place % len(LINE_COLOURS)], 0.75), "width": 1},
            }
        )
    form: Figure = with_legend(layout(entry["title"], "draw", entry["y_label"])) | {"height": _TALL}
    form["margin"] |= {"t": legend_room([line["name"] for line in data])}
    form["xaxis"] |= {"range": [1, max(length, 2)]}
    return {"data": data, "layout": form}


def ranks(entry: dict[str, Any]) -> Figure:
    """Histograms of each chain's ranks among the draws of all chains, 20 bins, chain beside chain.

    Of C chains with D draws, each has D p = D / 20 in a bin on average, and independent draws
    deviate from that by sqrt(D p (1 - p) (CD - D) / (CD - 1)): the band is twice as much to either
    side. Ties share their mean rank. ``entry``: title and ``chains``, a list of equally many draws
    per chain.
    """
    values = np.asarray(entry["chains"], dtype=float)
    chains, length = values.shape
    _, place, ties = np.unique(values, return_inverse=True, return_counts=True)
    order = (ties.cumsum() - (ties + 1) / 2)[place].reshape(values.shape)
    counts = [np.histogram(row, BINS, (-0.5, values.size - 0.5))[0] for row in order]
    width = BINS + _GAP
    expected, share = length / BINS, 1 / BINS
    sd = math.sqrt(length * share * (1 - share) * (values.size - length) / max(values.size - 1, 1))
    ends = [-0.5, chains * width - _GAP - 0.5]
    bars = [
        {
            "type": "bar",
            "name": f"chain {chain + 1}",
            "x": [chain * width + bin for bin in range(BINS)],
            "y": row.tolist(),
            "width": 1,
            "marker": {"color": LINE_COLOURS[chain % len(LINE_COLOURS)], "opacity": 0.7},
            "hovertemplate": f"chain {chain + 1}: %{{y}} draws<extra></extra>",
        }
        for chain, row in enumerate(counts)
    ]
    level = {
        "type": "scatter",
        "mode": "lines",
        "x": ends,
        "y": [expected] * 2,
        "hoverinfo": "skip",
        "line": {"color": GREY, "dash": "dash", "width": 1.5},
    }
    form: Figure = layout(
        entry["title"], "rank among all draws, low to high in each chain", "draws"
    ) | {"height": _LOW, "bargap": 0}
    centres = [chain * width + (BINS - 1) / 2 for chain in range(chains)]
    form["xaxis"] |= {
        "tickvals": centres,
        "ticktext": [bar["name"] for bar in bars],
        "range": [ends[0] - 1, ends[1] + 1],
    }
    form["xaxis"] |= {"showgrid": False}
    form["yaxis"] |= {"rangemode": "tozero"}
    # A shape, because a filled trace would cover the bars.
    form["shapes"] = [
        {
            "type": "rect",
            "layer": "below",
            "x0": ends[0],
            "x1": ends[1],
            "y0": max(expected - 2 * sd, 0.0),
            "y1": expected + 2 * sd,
            "fillcolor": faded(GREY, 0.25),
            "line": {"width": 0},
        }
    ]
    return {"data": [*bars, level], "layout": form}


def energy(entry: dict[str, Any]) -> Figure:
    """Energies about their mean and their changes from draw to draw, as two overlaid histograms
    that each sum to one.

    The title gives E-BFMI = sum (E_t - E_(t-1))^2 / sum (E_t - mean)^2 of the chain where it is
    smallest: near 1 the two look alike, below 0.3 fresh momentum changes the energy too little to
    visit all of it. ``entry``: title and ``chains``, a list of energies per chain.
    """
    values = np.asarray(entry["chains"], dtype=float)
    changes = np.diff(values, axis=1)
    own = values - values.mean(1, keepdims=True)
    total = (own**2).sum(1)
    found = (changes**2).sum(1)[total > 0] / total[total > 0]
    named = [
        ("energy, less its mean", values - values.mean(), BLUE),
        ("change from draw to draw", changes, ORANGE),
    ]
    largest = (
        max((float(np.abs(part).max()) for _, part, _ in named if part.size), default=0.0) or 1.0
    )
    edges = np.linspace(-largest, largest, _BINS_OF_ENERGY + 1)
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": ((edges[:-1] + edges[1:]) / 2).tolist(),
            "y": (np.histogram(part, edges)[0] / max(part.size, 1)).tolist(),
            "line": {"color": colour, "width": 1.5, "shape": "hvh"},
            "fill": "tozeroy",
            "fillcolor": faded(colour, 0.3),
            "hovertemplate": "%{x:.3g}: %{y:.1%}<extra></extra>",
        }
        for name, part, colour in named
    ]
    text = (
        f"{entry['title']}: E-BFMI {found.min():.2f}"
        if found.size
        else f"{entry['title']}: constant"
    )
    form: Figure = with_legend(layout(text, "nats", "share of draws")) | {"height": _TALL}
    form["margin"] |= {"t": legend_room([part["name"] for part in data])}
    form["yaxis"] |= {"tickformat": ".0%", "rangemode": "tozero"}
    return {"data": data, "layout": form}
