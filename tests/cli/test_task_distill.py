"""``credo task distill``: the student's directory serves the other commands, in the units of the
table.
"""

import itertools
import json
import math
from types import SimpleNamespace

import pandas as pd
import pytest

from credo.engine import run

QUICK = ["--epochs", 2, "--hidden", "4"]


def unlabelled(runs, shell, name):
    """The table of a run without its target."""
    path = shell.folder / f"{name}_inputs.csv"
    pd.read_csv(runs / f"{name}.csv").drop(columns=name).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("inputs", ["training", "perturbed"])
@pytest.mark.parametrize("name", ["price", "dear"])
def test_a_student_predicts_and_is_evaluated_like_its_teacher(shell, runs, name, inputs):
    table = unlabelled(runs, shell, name)
    words = [
        "task",
        "distill",
        runs / name,
        table,
        "--out",
        "s",
        "--inputs",
        inputs,
        "--hidden",
        "16",
        "--lr",
        0.02,
        "--epochs",
        300,
    ]
    result = shell(*words)
    assert result.exit_code == 0, result.stderr
    assert "rank_correlation" in result.stdout and "credo predict s" in result.stderr
    ours, theirs = (pd.read_csv(_predicted(shell, folder, table)) for folder in ("s", runs / name))
    assert list(ours.columns) == list(theirs.columns)
    scores = [_scores(shell, folder, runs / f"{name}.csv") for folder in ("s", runs / name)]
    key = "mean" if name == "price" else "p_yes"
    scale = theirs["std"].mean() if name == "price" else 1.0
    assert (
        ours[key] - theirs[key]
    ).abs().mean() < 0.2 * scale  # table units: 1,000 of them if the schema were another
    assert abs(scores[0]["nll"] - scores[1]["nll"]) < 0.2
    assert (ours["epistemic"].abs() < 1e-6 * ours["total"]).all() and theirs["epistemic"].mean() > 0


def _predicted(shell, folder, table):
    out = shell.folder / "p.csv"
    result = shell("predict", folder, table, "--out", out)
    assert result.exit_code == 0, result.stderr
    return out


def _scores(shell, folder, table):
    result = shell("evaluate", folder, table, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_fidelity_is_in_the_units_of_the_table(shell, runs):
    path = runs / "price.csv"
    result = shell(
        "task", "distill", runs / "price", path, "--out", "s", "--test", path, "--json", *QUICK
    )
    assert result.exit_code == 0, result.stderr
    found, teacher, student = (
        json.loads(result.stdout),
        _scores(shell, runs / "price", path),
        _scores(shell, "s", path),
    )
    for key in ("nll", "rmse"):
        assert found[f"{key}_teacher"] == pytest.approx(teacher[key], rel=1e-4)
        assert found[f"{key}_student"] == pytest.approx(student[key], rel=1e-4)
    spread = pd.read_csv(_predicted(shell, runs / "price", path))["total"]
    assert found["total_teacher"] == pytest.approx(spread.mean(), rel=1e-4)
    assert 0 <= found["total_variation"] <= 1


def test_labels_in_the_table_play_no_part(shell, runs):
    frame = pd.read_csv(runs / "dear.csv")
    tables = {
        "a": frame,
        "b": frame.assign(dear=frame["dear"].iloc[::-1].to_numpy()),
        "c": frame.drop(columns="dear"),
    }
    for name, table in tables.items():
        table.to_csv(shell.folder / f"{name}.csv", index=False)
        assert (
            shell("task", "distill", runs / "dear", f"{name}.csv", "--out", name, *QUICK).exit_code
            == 0
        )
    first, *others = (
        (shell.folder / name / "posterior.safetensors").read_bytes() for name in tables
    )
    assert all(first == other for other in others)


def test_without_the_target_a_test_table_has_no_scores(shell, runs):
    table = unlabelled(runs, shell, "dear")
    result = shell(
        "task", "distill", runs / "dear", table, "--out", "s", "--test", table, "--json", *QUICK
    )
    assert result.exit_code == 0 and "nll_student" not in json.loads(result.stdout)


def test_a_run_stopped_on_the_way_resumes_to_the_same_student(shell, runs, monkeypatch):
    words = [
        "task",
        "distill",
        runs / "price",
        runs / "price.csv",
        "--inputs",
        "perturbed",
        "--epochs",
        6,
        "--hidden",
        "4",
    ]
    assert shell(*words, "--out", "whole").exit_code == 0
    clock = itertools.count(
        step=3600
    )  # an hour between looks at the clock: every epoch is worth a checkpoint
    monkeypatch.setattr(
        "credo.engine.training_loop.time",
        SimpleNamespace(monotonic=lambda: next(clock), perf_counter=lambda: 0.0),
    )
    record, count = run.Run.record, [0]

    def stop(self, row):
        count[0] += 1
        if count[0] == 4:
            raise KeyboardInterrupt
        record(self, row)

    monkeypatch.setattr(run.Run, "record", stop)
    assert shell(*words, "--out", "part").exit_code != 0
    monkeypatch.setattr(run.Run, "record", record)
    assert "pass --resume" in shell.refuses(*words, "--out", "part")
    assert "noise: there 0.1, now 0.3" in shell.refuses(
        *words, "--out", "part", "--resume", "--noise", 0.3
    )
    assert shell(*words, "--out", "part", "--resume").exit_code == 0
    first, second = (
        (shell.folder / name / "posterior.safetensors").read_bytes() for name in ("whole", "part")
    )
    assert first == second


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--inputs", "perturbd"], "inputs='perturbd' is not valid. Did you mean 'perturbed'"),
        (["--noise", "-1"], "noise=-1.0"),
        (["--method", "mlee"], "Did you mean 'mle'"),
        (["--set", "init=5", "--set", "lr_schedul=constant"], "no setting 'lr_schedul'"),
        (["--hidden", "5,x"], "--hidden '5,x'"),
        (["--lr", "-1"], "lr=-1.0"),
        (["--test", "none.csv"], "none.csv does not exist"),
        (["--resume"], "holds no run to resume"),
    ],
)
def test_settings_that_cannot_be_used(shell, runs, words, message):
    assert message in shell.refuses(
        "task", "distill", runs / "price", runs / "price.csv", "--out", "s", *words
    )


def test_runs_and_tables_that_cannot_be_used(shell, runs):
    assert "does not exist" in shell.refuses(
        "task", "distill", "nowhere", runs / "price.csv", "--out", "s"
    )
    assert "does not exist" in shell.refuses(
        "task", "distill", runs / "price", "none.csv", "--out", "s"
    )
    pd.DataFrame({"size": [1.0]}).to_csv(shell.folder / "t.csv", index=False)
    assert "lacks 2 of 3 columns" in shell.refuses(
        "task", "distill", runs / "price", "t.csv", "--out", "s"
    )
    shell.folder.joinpath("file").write_text("")
    assert "is a file" in shell.refuses(
        "task", "distill", runs / "price", runs / "price.csv", "--out", "file"
    )
    assert shell("task", "distill", runs / "price").exit_code == 2


def test_a_measure_that_does_not_exist_is_null_in_json(shell, runs):
    """One row has no ranks."""
    pd.read_csv(runs / "price.csv").head(1).to_csv(shell.folder / "one.csv", index=False)
    result = shell("task", "distill", runs / "price", "one.csv", "--out", "s", "--json", *QUICK)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["rank_correlation"] is None and math.isfinite(found["kl"])
