import json

import pytest

from credo.cli import demo_tasks
from credo.report.html import render


@pytest.fixture(scope="module")
def tasks():
    said = []
    found = {
        task.__name__: task(True, said.append) for task in (demo_tasks.digits, demo_tasks.diabetes)
    }
    assert len(said) == 2 * len(demo_tasks.ENTRIES) + 1
    return found


def test_every_method_has_a_row_with_every_column(tasks):
    for task in tasks.values():
        labels = [entry.label for entry in demo_tasks.ENTRIES]
        assert [row["method"] for row in task["rows"]][: len(labels)] == labels
        for row in task["rows"]:
            assert {column["key"] for column in task["columns"]} <= row.keys()


def test_even_a_short_run_learns(tasks):
    assert all(row["accuracy"] > 0.5 for row in tasks["digits"]["rows"])
    # The target's standard deviation is 77; a model that has learned nothing scores that.
    assert all(row["rmse"] < 77 for row in tasks["diabetes"]["rows"])


def test_point_estimates_have_no_epistemic_ranking_and_posteriors_do(tasks):
    ranked = {row["method"]: row["letters_epistemic"] for row in tasks["digits"]["rows"]}
    assert ranked["MLE"] is None and ranked["MAP"] is None
    assert all(
        ranked[name] is not None
        for name in ("VI, local", "VI, flipout", "MC dropout", "concrete dropout")
    )


def test_the_ard_fit_shows_the_relevance_of_every_input(tasks):
    (entry,) = tasks["diabetes"]["bars"]
    assert (
        tasks["diabetes"]["rows"][-1]["method"] == demo_tasks.ARD.label
        and tasks["digits"]["bars"] == []
    )
    assert set(entry["names"]) >= {"bmi", "age"} and entry["values"] == sorted(
        entry["values"], reverse=True
    )


def test_the_results_are_json_and_make_a_page(tasks):
    page = render(
        json.loads(json.dumps({"title": "t", "tasks": list(tasks.values())}, allow_nan=False))
    )
    for heading in (
        "Can the stated confidence",
        "Does it know",
        "What does it predict",
        "What moved",
    ):
        assert heading in page
