"""Figures of images and of labelled points: a mosaic is one PNG inside the page, so it stays small
and asks for nothing.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from credo.core.errors import DataError
from credo.report.png import png
from credo.report.style import POINT_COLOURS, Figure, layout, legend_room, with_legend

# least width in pixels that a mosaic's PNG is enlarged to, so that small images stay sharp
_MIN_WIDTH = 900
_GAP, _BLOCK = 0.06, 0.35  # of an image's side: between neighbours, and between blocks of rows
_FIGURE_WIDTH = 500  # in pixels, on a large screen
_MAX_HEIGHT = 640
_SYMBOLS = ("circle", "diamond", "square")


class Tiles(NamedTuple):
    """One picture ``(H, W, C)`` of bytes with opacity last and transparent gaps, and where its rows
    and columns lie in pixels.
    """

    pixels: np.ndarray
    rows: list[float]
    columns: list[float]


def tiles(entry: dict[str, Any]) -> Tiles:
    """The images of a mosaic on a grid, enlarged by a whole number; see :func:`mosaic` for
    ``entry``.
    """
    down, across, height, width = (
        int(entry[key]) for key in ("rows", "columns", "height", "width")
    )
    channels = int(entry.get("channels", 1))
    images = _bytes(entry["pixels"])
    count = images.size // (channels * height * width)
    if (
        channels not in (1, 3)
        or images.size != count * channels * height * width
        or not 0 < count <= down * across
    ):
        raise DataError(
            f"A mosaic of {down} x {across} images of {height} x {width} with {channels} "
            f"channel(s) has {images.size} pixels; "
            f"expected whole images with 1 or 3 channels, at most {down * across}."
        )
    images = np.moveaxis(images.reshape(count, channels, height, width), 1, -1)
    factor = max(1, -(-_MIN_WIDTH // (across * width)))
    images = images.repeat(factor, 1).repeat(factor, 2)
    tall, wide = height * factor, width * factor
    gap, between = max(1, round(_GAP * min(tall, wide))), round(_BLOCK * min(tall, wide))
    block = int(entry.get("block") or down)
    tops = [row * (tall + gap) + (row // block) * between for row in range(down)]
    lefts = [column * (wide + gap) for column in range(across)]
    canvas = np.zeros((tops[-1] + tall, lefts[-1] + wide, channels + 1), np.uint8)
    for image, (top, left) in zip(images, itertools.product(tops, lefts), strict=False):
        canvas[top : top + tall, left : left + wide, :channels] = image
        canvas[top : top + tall, left : left + wide, channels] = 255
    return Tiles(canvas, [top + tall / 2 for top in tops], [left + wide / 2 for left in lefts])


def mosaic(entry: dict[str, Any]) -> Figure:
    """A grid of images, row by row.

    ``entry``: title, rows, columns, height and width (of one image), and pixels: numbers in [0, 1],
    image by image, or text, which is the base64 of one byte per pixel. ``channels``: 3 for colour,
    each image then holds all red, all green, all blue. ``row_labels`` stand on the left and
    ``column_labels`` below, one each, empty where there is none; ``block`` puts a wider gap after
    every so many rows; ``x_label``, ``y_label`` and ``caption`` as elsewhere. The last row may be
    incomplete.
    """
    picture = tiles(entry)
    tall, wide = picture.pixels.shape[:2]
    form: Figure = layout(entry["title"], entry.get("x_label", ""), entry.get("y_label", ""))
    hidden = {"showticklabels": False, "showgrid": False, "ticks": "", "constrain": "domain"}
    form["xaxis"] |= hidden | {"range": [0, wide]}
    form["yaxis"] |= hidden | {"range": [tall, 0], "scaleanchor": "x"}
    labels = [str(label) for label in entry.get("row_labels") or []]
    below = [str(label) for label in entry.get("column_labels") or []]
    left = 14 + 6.2 * max(map(len, labels), default=0) + (18 if entry.get("y_label") else 0)
    bottom = 14 + (18 if any(below) else 0) + (20 if entry.get("x_label") else 0)
    form["margin"] = {"l": left, "r": 14, "t": 40, "b": bottom}
    form["height"] = round(40 + bottom + min(_MAX_HEIGHT, (_FIGURE_WIDTH - left) * tall / wide))
    form["images"] = [
        {
            "source": "data:image/png;base64," + base64.b64encode(png(picture.pixels)).decode(),
            "xref": "x",
            "yref": "y",
            "x": 0,
            "y": 0,
            "sizex": wide,
            "sizey": tall,
            "sizing": "stretch",
            "layer": "above",
        }
    ]
    beside = [
        _note(text, 0, y, "right", "middle", -6, 0)
        for text, y in zip(labels, picture.rows, strict=False)
    ]
    under = [
        _note(text, x, tall, "center", "top", 0, -4)
        for text, x in zip(below, picture.columns, strict=False)
    ]
    form["annotations"] = [note for note in beside + under if note["text"]]
    # Axes are drawn where there is something on them, so the corners get points nobody sees.
    corners = {
        "type": "scatter",
        "mode": "markers",
        "x": [0, wide],
        "y": [0, tall],
        "marker": {"opacity": 0},
        "hoverinfo": "skip",
    }
    return {"data": [corners], "layout": form}


def scatter(entry: dict[str, Any]) -> Figure:
    """Points coloured by group, up to ten colours and three shapes, with a legend where there is
    more than one group.

    ``entry``: title, x_label, y_label and groups, a list of ``{"name", "x", "y"}``. ``bare``: true
    where the axes have no units, so that no numbers stand on them.
    """
    groups: Sequence[dict[str, Any]] = entry["groups"]
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": str(group["name"]),
            "x": list(group["x"]),
            "y": list(group["y"]),
            "marker": {
                "color": POINT_COLOURS[place % len(POINT_COLOURS)],
                "symbol": _SYMBOLS[place // len(POINT_COLOURS) % len(_SYMBOLS)],
                "size": 5,
                "opacity": 0.8,
            },
            "hovertemplate": str(group["name"]) + " (%{x:.3g}, %{y:.3g})<extra></extra>",
        }
        for place, group in enumerate(groups)
    ]
    form: Figure = layout(entry["title"], entry["x_label"], entry["y_label"])
    form["height"] = 520
    if len(groups) > 1:
        form = with_legend(form)
        names = [trace["name"] for trace in data]
        form["legend"] |= {"itemsizing": "constant", "entrywidth": 8 + 7 * max(map(len, names))}
        form["margin"] |= {"t": legend_room(names)}
    if entry.get("bare"):
        for axis in ("xaxis", "yaxis"):
            form[axis] |= {"showticklabels": False}
    return {"data": data, "layout": form}


def _bytes(pixels: str | Sequence[float]) -> np.ndarray:
    if isinstance(pixels, str):
        return np.frombuffer(base64.b64decode(pixels), np.uint8)
    values = np.asarray(pixels, dtype=float).ravel()
    if not values.size:
        raise DataError("A mosaic has no pixels; expected those of at least one image.")
    if not (values.min() >= 0 and values.max() <= 1):  # written so that a NaN is refused too
        raise DataError(
            f"A mosaic has pixels from {values.min():g} to {values.max():g}; expected 0 to 1."
        )
    return (values * 255).round().astype(np.uint8)


def _note(
    text: str, x: float, y: float, anchor: str, level: str, right: float, up: float
) -> dict[str, Any]:
    return {
        "text": text,
        "x": x,
        "y": y,
        "xref": "x",
        "yref": "y",
        "xanchor": anchor,
        "yanchor": level,
        "xshift": right,
        "yshift": up,
        "showarrow": False,
        "font": {"size": 11},
    }
