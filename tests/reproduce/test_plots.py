"""Specifications of figures are what the report draws."""

from credo.report.curve_figures import bars as drawn_bars
from credo.report.curve_figures import curves as drawn_curves
from credo_reproduce.plots import band, bars, curves, line


def test_specifications_are_drawn_by_the_report():
    lines = [line("a", range(3), (1.0, 2.0, 4.0), marks=True)]
    figure = curves("t", "x", "y", lines, bands=[band("b", [0, 1], [0.0, 0.0], [1.0, 1.0])])
    assert figure["kind"] == "curves" and figure["lines"][0]["x"] == [0, 1, 2]
    assert [trace["name"] for trace in drawn_curves(figure)["data"]] == ["b", "a"]
    figure = bars("t", ["one", "two"], [1.0, 2.0], "x", caption="c")
    assert figure["kind"] == "bars" and drawn_bars(figure)["data"][0]["x"] == [1.0, 2.0]
