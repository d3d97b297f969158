import json

from credo.cli import demo, demo_tasks


def test_tables_are_printed_and_the_report_written(shell, monkeypatch):
    def task(fast, report):
        report("working")
        columns = [{"key": "nll", "label": "NLL", "digits": 3}]
        return {
            "title": "A task",
            "columns": columns,
            "rows": [{"method": "m", "nll": 0.12345 if fast else 1.0}],
        }

    for name in ("digits", "diabetes"):
        monkeypatch.setattr(demo_tasks, name, task)
    result = shell("demo", "--fast", "--out", "d")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("A task") == 2 and "0.123" in result.stdout
    assert "report.html" in result.stdout and "working" in result.stderr
    saved = json.loads((shell.folder / "d" / "results.json").read_text())
    assert saved["tasks"][0]["rows"][0]["nll"] == 0.12345
    assert (shell.folder / "d" / "report.html").is_file()


def test_progress_is_plain_lines_without_a_terminal(capsys):
    with demo._reporting(1) as report:
        report("step")
    assert capsys.readouterr().err == "step\n"


def test_progress_is_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(demo, "is_terminal", lambda: True)
    with demo._reporting(2) as report:
        report("first")
        report("second")
    assert capsys.readouterr().out == ""


def test_a_file_in_the_way_is_refused_before_any_work(shell):
    (shell.folder / "d").write_text("")
    assert "is a file" in shell.refuses("demo", "--out", "d")
