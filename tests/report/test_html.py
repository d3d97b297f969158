import errno
import json
import re

import pytest

from credo.core.errors import DataError, RunError, SettingError
from credo.report import write
from credo.report.html import best_value, format_value, render, require


def results(**task):
    columns = [
        {"key": "accuracy", "label": "accuracy", "better": "high", "help": "Share that is right."},
        {"key": "seconds", "label": "s", "digits": 1},
    ]
    rows = [
        {"method": "a", "accuracy": 0.5, "seconds": 1.0},
        {"method": "<b>", "accuracy": 0.9, "seconds": None},
    ]
    objective = [
        {"method": "a", "parts": [{"name": "</script><script>alert(1)</script>", "values": [1.0]}]}
    ]
    return {
        "title": "T & t",
        "tasks": [
            {"title": "Task", "columns": columns, "rows": rows, "objective": objective} | task
        ],
    }


def test_the_page_and_its_results_are_written_side_by_side(tmp_path):
    path = write(results(), tmp_path / "deep" / "report.html")
    assert sorted(p.name for p in path.parent.iterdir()) == ["report.html", "results.json"]
    assert json.loads((path.parent / "results.json").read_text()) == results()


def test_nothing_is_requested_and_plotly_is_inside_once():
    page = render(results())
    assert not re.search(r"<(?:script|link|img|iframe)[^>]*\s(?:src|href)=", page)
    assert len(re.findall(r"plotly\.js v\d", page)) == 1


def test_text_from_results_is_escaped_in_html_and_in_figures():
    page = render(results())
    assert "T &amp; t" in page
    assert "<td>&lt;b&gt;</td>" in page
    assert "alert(1)</script>" not in page


def test_the_best_value_is_marked_and_missing_values_are_dashes():
    page = render(results())
    assert '<td class="best">0.900</td>' in page
    assert "<td>–</td>" in page
    assert best_value([0.1234, 0.1231], "high", 3) is None
    assert best_value([1.0, None, 3.0], "low", 1) == 1.0
    assert format_value(1234.5, 1) == "1,234.5"


def test_sections_without_entries_are_left_out():
    page = render(results(objective=[]))
    assert "What moved during training?" not in page


def test_a_nan_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(DataError, match="cannot be written as JSON"):
        write(results(rows=[{"method": "a", "accuracy": float("nan")}]), tmp_path / "r.html")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(RunError, match="No space left on device"):
        write(results(), tmp_path / "r.html")
    assert not list(tmp_path.iterdir())


def test_missing_packages_are_named_before_any_work(monkeypatch):
    require()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"'jinja2': pip install 'credo-bayes\[report\]'"):
        require()


def test_a_task_may_be_figures_alone_with_captions_of_their_own():
    line = {"name": "l", "x": [0], "y": [1]}
    curve = {
        "title": "c",
        "x_label": "x",
        "y_label": "y",
        "lines": [line],
        "caption": "How to <read> it.",
    }
    page = render(
        {
            "title": "t",
            "tasks": [{"title": "Figures", "columns": [], "rows": [], "curves": [curve]}],
        }
    )
    assert "<table>" not in page and "set in colour" not in page
    assert "<figcaption>How to &lt;read&gt; it.</figcaption>" in page
    assert 'class="grid wide"' in page


def test_columns_of_prose_are_set_to_the_left_and_the_first_column_has_its_label():
    columns = [{"key": "a", "label": "what"}, {"key": "b", "label": "number"}]
    task = {
        "title": "t",
        "label": "check",
        "columns": columns,
        "rows": [{"method": "m", "a": "a sentence of some length", "b": 1}],
    }
    page = render({"title": "t", "tasks": [task]})
    assert '<th scope="col">check</th>' in page
    assert (
        '<th scope="col" class="text">what</th>' in page and '<td class="text">a sentence' in page
    )
    assert '<th scope="col">number</th>' in page
