import json

from credo.report.curve_figures import bars, curves, rates
from credo.report.style import GREY, LINE_COLOURS

LINES = [{"name": "a", "x": [1, 10, 100], "y": [1.0, 10.0, 1000.0]}]


def entry(**changes):
    return {"title": "t", "x_label": "x", "y_label": "y", "lines": LINES} | changes


def test_bands_lie_below_lines_and_points_on_top():
    band = {"name": "b", "x": [0, 1], "lower": [-1, -2], "upper": [1, 2]}
    figure = curves(entry(bands=[band], points=[{"name": "p", "x": [0], "y": [0], "colour": -1}]))
    area, line, points = figure["data"]
    assert (area["x"], area["y"], area["fill"]) == ([0, 1, 1, 0], [1, 2, -2, -1], "toself")
    assert (
        line["mode"] == "lines"
        and points["mode"] == "markers"
        and points["marker"]["color"] == GREY
    )
    json.dumps(figure, allow_nan=False)


def test_faint_lines_stay_out_of_the_legend_and_theory_is_dashed():
    figure = curves(
        entry(
            lines=[
                LINES[0] | {"faint": True},
                LINES[0] | {"dash": True, "marks": True, "colour": 2},
            ]
        )
    )
    faint, theory = figure["data"]
    assert not faint["showlegend"] and theory["showlegend"]
    assert (
        theory["line"] == {"color": LINE_COLOURS[2], "width": 2, "dash": "dash"}
        and theory["mode"] == "lines+markers"
    )


def test_axes_are_logarithmic_where_asked_with_ticks_that_suit_the_range():
    layout = curves(entry(log_x=True, log_y=True, y_range=[0, 3]))["layout"]
    assert layout["xaxis"]["dtick"] == "D2" and layout["yaxis"]["dtick"] == 1
    assert layout["yaxis"]["range"] == [0, 3]
    assert "type" not in curves(entry())["layout"]["xaxis"]


def test_long_names_get_more_room_above_the_plot():
    many = [LINES[0] | {"name": "a name that is rather long to read"} for _ in range(5)]
    assert (
        curves(entry(lines=many))["layout"]["margin"]["t"]
        > curves(entry())["layout"]["margin"]["t"]
    )


def test_bars_are_named_from_the_top_and_may_have_errors():
    figure = bars(
        {
            "title": "t",
            "names": ["a", "b"],
            "values": [1.0, 2.0],
            "x_label": "x",
            "errors": [0.1, 0.2],
        }
    )
    (trace,) = figure["data"]
    assert trace["y"] == ["a", "b"] and trace["error_x"]["array"] == [0.1, 0.2]
    assert figure["layout"]["yaxis"]["autorange"] == "reversed"


def test_learned_rates_of_a_history_are_a_line_per_place():
    rows = [
        {"epoch": k, "nll": 1.0, "rate/2.weight": 0.1 * k, "rate/4.weight": 0.2} for k in range(3)
    ]
    entry = rates("concrete dropout", rows)
    assert entry is not None and [line["name"] for line in entry["lines"]] == [
        "2.weight",
        "4.weight",
    ]
    assert entry["lines"][0]["x"] == [1, 2, 3] and entry["lines"][0]["y"] == [0.0, 0.1, 0.2]
    assert len(curves(entry)["data"]) == 2
    assert rates("vi", [{"epoch": 0, "nll": 1.0}]) is None and rates("nothing", []) is None
