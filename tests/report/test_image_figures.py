import base64
import json

import numpy as np
import pytest

from credo.core.errors import DataError
from credo.report.html import render
from credo.report.image_figures import mosaic, scatter, tiles
from credo.report.style import POINT_COLOURS


def entry(count=4, rows=2, columns=2, channels=1, side=3, **changes):
    pixels = np.linspace(0, 1, count * channels * side * side).round(3).tolist()
    size = {"rows": rows, "columns": columns, "channels": channels, "height": side, "width": side}
    return {"title": "t", **size, "pixels": pixels} | changes


def test_images_lie_row_by_row_with_transparent_gaps_between_them():
    picture = tiles(entry())
    pixels, opaque = picture.pixels[..., 0], picture.pixels[..., 1]
    assert pixels.shape[1] >= 900 and set(np.unique(opaque)) == {0, 255}
    tops, lefts = ([round(place) for place in places] for places in (picture.rows, picture.columns))
    middle = (np.arange(4) * 9 + 4) / 35  # the middle pixel of each image
    found = [pixels[top, left] for top in tops for left in lefts]
    assert np.abs(np.array(found) / 255 - middle).max() < 1 / 255
    between = (tops[0] + tops[1]) // 2
    assert opaque[between, lefts[0]] == 0 and opaque[tops[0], lefts[0]] == 255


def test_blocks_of_rows_stand_further_apart():
    plain, blocked = (tiles(entry(rows=4, columns=1, block=block)).rows for block in (None, 2))
    assert np.allclose(np.diff(plain), np.diff(plain)[0])
    apart = np.diff(blocked)
    assert apart[1] > apart[0] == apart[2] == np.diff(plain)[0]


def test_the_last_row_may_be_incomplete_and_colour_is_kept():
    picture = tiles(entry(count=3, channels=3, pixels=([1.0] * 9 + [0.0] * 9 + [0.5] * 9) * 3))
    assert picture.pixels.shape[2] == 4
    (top, bottom), (left, right) = (
        [round(place) for place in places] for places in (picture.rows, picture.columns)
    )
    assert (
        picture.pixels[top, left].tolist()
        == picture.pixels[bottom, left].tolist()
        == [255, 0, 128, 255]
    )
    assert picture.pixels[bottom, right].tolist() == [0, 0, 0, 0]


def test_text_is_one_byte_per_pixel():
    given = entry()
    text = base64.b64encode(
        (np.array(given["pixels"]) * 255).round().astype(np.uint8).tobytes()
    ).decode()
    assert (tiles(given | {"pixels": text}).pixels == tiles(given).pixels).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixels": [0.5] * 10}, "expected whole images"),
        ({"rows": 1}, "at most 2"),
        ({"pixels": []}, "no pixels"),
        ({"pixels": [2.0] * 36}, "from 2 to 2"),
        ({"channels": 2, "pixels": [0.0] * 18}, "1 or 3 channels"),
    ],
)
def test_pixels_that_fill_no_grid_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        tiles(entry() | changes)


def test_a_mosaic_is_one_image_inside_the_figure_with_labels_beside_it():
    figure = mosaic(entry(row_labels=["data", ""], column_labels=["-3", "3"], x_label="first"))
    (image,) = figure["layout"]["images"]
    assert image["source"].startswith("data:image/png;base64,") and image["sizing"] == "stretch"
    assert [note["text"] for note in figure["layout"]["annotations"]] == ["data", "-3", "3"]
    assert figure["layout"]["yaxis"]["scaleanchor"] == "x"
    assert mosaic(entry())["layout"]["margin"]["l"] < figure["layout"]["margin"]["l"]
    json.dumps(figure, allow_nan=False)


def test_groups_have_colours_then_shapes_and_a_legend_where_there_are_several():
    groups = [{"name": k, "x": [k], "y": [0.5]} for k in range(12)]
    figure = scatter({"title": "t", "x_label": "x", "y_label": "y", "groups": groups, "bare": True})
    marks = [(trace["marker"]["color"], trace["marker"]["symbol"]) for trace in figure["data"]]
    assert len(set(marks)) == 12 and marks[10] == (POINT_COLOURS[0], "diamond")
    assert figure["layout"]["showlegend"] and figure["layout"]["xaxis"]["showticklabels"] is False
    alone = scatter({"title": "t", "x_label": "x", "y_label": "y", "groups": groups[:1]})
    assert not alone["layout"]["showlegend"] and "showticklabels" not in alone["layout"]["xaxis"]


def test_both_have_a_place_and_a_heading_in_the_report():
    points = {
        "title": "p",
        "x_label": "x",
        "y_label": "y",
        "groups": [{"name": "a", "x": [0], "y": [1]}],
    }
    task = {
        "title": "T",
        "columns": [],
        "rows": [],
        "mosaic": [entry(caption="Two rows.")],
        "scatter": [points],
    }
    page = render({"title": "t", "tasks": [task]})
    assert "What does it look like?" in page and "Which of them lie together?" in page
    assert "<figcaption>Two rows.</figcaption>" in page
