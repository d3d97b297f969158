import json

import numpy as np
import pytest

from credo.report import figures


def test_empty_bins_are_left_out_of_a_reliability_diagram():
    figure = figures.reliability(
        {
            "method": "m",
            "confidence": [0.1, 0.5, 0.9],
            "accuracy": [0.0, 0.5, 1.0],
            "count": [0, 4, 16],
        }
    )
    marks = figure["data"][1]
    assert marks["x"] == [0.5, 0.9]
    assert marks["marker"]["size"][0] < marks["marker"]["size"][1]


def test_histograms_share_bins_and_each_sums_to_one():
    groups = [{"name": "in", "values": [0.1, 0.2, 0.3]}, {"name": "out", "values": [0.9, 1.4]}]
    inside, outside = figures.uncertainty({"method": "m", "measure": "nats", "groups": groups})[
        "data"
    ]
    assert inside["x"] == outside["x"]
    assert sum(inside["y"]) == pytest.approx(1) and sum(outside["y"]) == pytest.approx(1)


def test_a_point_estimate_has_all_its_mass_in_the_first_bin():
    groups = [{"name": "in", "values": np.zeros(5).tolist()}]
    (bars,) = figures.uncertainty({"method": "m", "measure": "nats", "groups": groups})["data"]
    assert bars["y"][0] == 1.0


def test_a_band_goes_out_along_the_top_and_back_along_the_bottom():
    entry = {
        "method": "m",
        "x": [0, 1],
        "mean": [0, 0],
        "lower": [-1, -2],
        "upper": [1, 2],
        "data_x": [0.5],
        "data_y": [0.1],
    }
    area = figures.band(entry | {"x_label": "x", "y_label": "y", "level": 0.9})["data"][0]
    assert (area["x"], area["y"]) == ([0, 1, 1, 0], [1, 2, -2, -1])


def test_epochs_count_from_one_and_every_figure_is_json():
    figure = figures.objective({"method": "m", "parts": [{"name": "kl", "values": [3.0, 2.0]}]})
    assert figure["data"][0]["x"] == [1, 2]
    json.dumps(figure, allow_nan=False)


def test_the_objective_is_on_a_log_axis_only_where_it_is_positive():
    def axis(values):
        return figures.objective({"method": "m", "parts": [{"name": "kl", "values": values}]})[
            "layout"
        ]["yaxis"]

    assert axis([3.0, 2.0])["type"] == "log"
    assert "type" not in axis([3.0, -2.0])
