import json

import torch

from credo_reproduce.outcome import (
    Check,
    Outcome,
    Result,
    Row,
    Table,
    machine,
    mean_and_std,
    plain,
    shown,
    verdict,
)


def result(quick=False, **parts):
    settings = {"quick": quick, "rate": float("nan")}
    return Result(
        "toy",
        "A toy",
        "Someone 2000.",
        quick,
        settings,
        3,
        1.5,
        machine(torch.device("cpu")),
        Outcome(**parts),
    )


def table():
    rows = [
        Row("ours", {"error": 1.234, "size": 7}, {"error": 1.3}),
        Row("theirs", {"error": 2e-5, "size": None}),
    ]
    return Table("T", ["error", "size"], rows, "A note.")


def test_the_papers_value_stands_in_brackets_beside_the_measured_one():
    assert table().cells(table().rows[0]) == ["1.23 (1.30)", "7"]
    assert table().cells(table().rows[1]) == ["2.00e-05", "–"]
    assert table().caption() == "In brackets: the source. A note."
    assert Table("T", ["a"], [Row("r", {"a": 1})]).caption() == ""


def test_numbers_keep_their_significant_digits():
    assert [
        shown(v, 3)
        for v in (0.0123456, 123456.0, 12345678.0, 12345678, 0, 99.95, float("inf"), "text")
    ] == ["0.0123", "123456", "1.23e+07", "12345678", "0", "100.0", "–", "text"]


def test_a_record_is_json_and_holds_what_is_needed_to_repeat_it():
    record = result(tables=[table()], checks=[Check("c", "1", "2", False)], notes=["n"]).to_json()
    json.dumps(record, allow_nan=False)
    assert record["settings"] == {"quick": False, "rate": None}
    assert record["outcome"]["tables"][0]["rows"][0]["paper"] == {"error": 1.3}
    assert record["outcome"]["checks"][0]["holds"] is False
    assert {"torch", "threads", "platform", "gpu"} <= set(record["machine"])
    assert (record["seed"], record["seconds"]) == (3, 1.5)


def test_the_page_has_checks_first_and_figures_last_and_stores_figures_once():
    figure = {
        "kind": "curves",
        "title": "f",
        "x_label": "x",
        "y_label": "y",
        "lines": [{"name": "l", "x": [1], "y": [2]}],
    }
    page = result(tables=[table()], figures=[figure], checks=[Check("c", "1", "2", True)]).page()
    assert [task["title"] for task in page["tasks"]] == ["Checks", "T", "Figures"]
    assert page["tasks"][2]["curves"] == [figure]
    assert all(column["prose"] for column in page["tasks"][0]["columns"])
    assert "figures" not in page["record"]["outcome"]
    json.dumps(page, allow_nan=False)


def test_a_quick_run_says_so():
    assert result(quick=True).subtitle().startswith("QUICK RUN")
    assert "QUICK" not in result().subtitle()


def test_verdicts_and_plain_values():
    assert (
        verdict(Check("c", "", "", True)) == "holds"
        and verdict(Check("c", "", "", False)) == "does not hold"
    )
    assert plain({"a": (1.0, float("nan")), 2: "x"}) == {"a": [1.0, None], "2": "x"}


def test_the_deviation_is_that_of_a_sample_and_zero_for_one_value():
    assert mean_and_std([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert mean_and_std([5.0]) == (5.0, 0.0)
