import errno
import itertools
import json
import os
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from credo.engine import run

QUICK = ["--epochs", 2, "--hidden", "4"]


def write(shell, frame, name="t.csv"):
    path = shell.folder / name
    frame.to_csv(path, index=False)
    return path


def with_value(column, value):
    """A change to a table: one bad cell in the third row."""

    def change(frame):
        frame = frame.drop(columns="dear").astype({column: object})
        frame.loc[2, column] = value
        return frame

    return change


def test_a_run_directory_holds_the_schema_and_the_network(shell, table):
    result = shell(
        "fit",
        write(shell, table()),
        "--target",
        "price",
        "--out",
        "run",
        "--set",
        "estimator=weights",
        *QUICK,
    )
    assert result.exit_code == 0, result.stderr
    network = json.loads((shell.folder / "run" / "network.json").read_text())
    assert network == {"name": "mlp", "args": {"in_features": 6, "hidden": [4], "out_features": 1}}
    assert (
        json.loads((shell.folder / "run" / "table.json").read_text())["target"]["name"] == "price"
    )


def test_the_same_seed_gives_the_same_posterior(shell, table):
    path = write(shell, table())
    for out in ("a", "b"):
        assert shell("fit", path, "--target", "dear", "--out", out, *QUICK).exit_code == 0
    assert (shell.folder / "a" / "posterior.safetensors").read_bytes() == (
        shell.folder / "b" / "posterior.safetensors"
    ).read_bytes()


def test_validation_and_method_settings_are_passed_on(shell, table):
    path = write(shell, table())
    result = shell(
        "fit",
        path,
        "--target",
        "dear",
        "--method",
        "map",
        "--validation",
        0.2,
        "--batch-size",
        16,
        "--lr",
        0.01,
        *QUICK,
    )
    assert result.exit_code == 0, result.stderr
    assert "validation_nll" in (shell.folder / "run" / "history.jsonl").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_value("size", np.nan), "Column 'size', row 3 holds NaN"),
        (with_value("size", np.inf), "Column 'size', row 3 holds an infinite value"),
        (with_value("town", None), "Column 'town', row 3 is NaN"),
        (with_value("price", np.nan), "Column 'price', row 3 holds NaN"),
        (lambda t: t.assign(price=1.5), "Target 'price' is 1.5 in all 60 rows"),
        (lambda t: t.assign(price="a"), "Target 'price' has one class, 'a', in all 60 rows"),
        (lambda t: t.drop(columns="price"), "no target column 'price'"),
        (lambda t: t.rename(columns={"price": "prices"}), "Did you mean 'prices'"),
        (lambda t: t[["price"]], "no column besides the target"),
        (lambda t: t.iloc[:0], "has a header but no rows"),
        (lambda t: pd.concat([t, t[["age"]]], axis=1), "more than one column named 'age'"),
    ],
)
def test_tables_that_cannot_be_learned_from(shell, table, change, message):
    assert message in shell.refuses(
        "fit", write(shell, change(table())), "--target", "price", "--out", "run"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,price\n1,2\n3\n", "line 3 has 1 values; the header names 2"),
        (None, "does not exist"),
    ],
)
def test_files_that_are_no_tables(shell, text, message):
    if text is not None:
        (shell.folder / "t.csv").write_text(text)
    assert message in shell.refuses(
        "fit", shell.folder / "t.csv", "--target", "price", "--out", "run"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "vii"], "Unknown method 'vii'. Did you mean 'vi'"),
        (["--set", "estimatr=local"], "no setting 'estimatr'. Did you mean 'estimator'"),
        (["--set", "estimator=locl"], "Did you mean 'local'"),
        (["--set", "init_std=-1"], "init_std=-1"),
        (["--set", "init_std"], "name=value"),
        (["--hidden", "5,a"], "--hidden '5,a'"),
        (["--validation", "1.5"], "--validation 1.5"),
        (["--validation", "0.001"], "--validation 0.001 of 60 rows is 0"),
        (["--lr", "-1"], "lr=-1.0"),
        (["--task", "regresion"], "Did you mean 'regression'"),
        (["--resume"], "holds no run to resume"),
    ],
)
def test_settings_that_cannot_be_used(shell, words, message, table):
    assert message in shell.refuses(
        "fit", write(shell, table()), "--target", "price", "--out", "run", *words
    )


def test_usage_errors_exit_with_2(shell):
    assert shell("fit", "t.csv").exit_code == 2
    assert shell("fit", "t.csv", "--target", "y", "--epochs", "0").exit_code == 2


def test_a_used_directory_is_only_continued_when_asked_and_unchanged(shell, table):
    path = write(shell, table())
    words = ["fit", path, "--target", "price", "--out", "run", *QUICK]
    assert shell(*words).exit_code == 0
    assert "pass --resume" in shell.refuses(*words)
    assert shell(*words, "--resume").exit_code == 0
    assert "another table or target" in shell.refuses(
        "fit", path, "--target", "size", "--out", "run", "--resume", *QUICK
    )
    assert "same --hidden" in shell.refuses(*words[:-1], "5", "--resume")
    (shell.folder / "file").write_text("")
    assert "is a file" in shell.refuses("fit", path, "--target", "price", "--out", "file")


def test_a_full_disk_is_one_sentence_and_leaves_nothing(shell, monkeypatch, table):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = write(shell, table())
    monkeypatch.setattr("os.replace", full)
    assert "No space left on device" in shell.refuses(
        "fit", path, "--target", "price", "--out", "run", *QUICK
    )


def unfinished(folder):
    """Make a finished run look like one that was killed after its first checkpoint."""
    config = json.loads((folder / "config.json").read_text())
    config.pop("complete")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "posterior.safetensors").rename(folder / "checkpoint.safetensors")


def test_a_truncated_checkpoint_is_one_sentence_and_stays_as_it_was(shell, table):
    words = ["fit", write(shell, table()), "--target", "price", "--out", "run", *QUICK]
    assert shell(*words).exit_code == 0
    unfinished(shell.folder / "run")
    checkpoint = shell.folder / "run" / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:50])
    assert "truncated or damaged" in shell.refuses(*words, "--resume")


def test_a_run_from_a_newer_version_is_not_resumed(shell, table):
    words = ["fit", write(shell, table()), "--target", "price", "--out", "run", *QUICK]
    assert shell(*words).exit_code == 0
    path = shell.folder / "run" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    assert "newer credo" in shell.refuses(*words, "--resume")


def test_a_run_stopped_on_the_way_resumes_to_the_same_posterior(shell, monkeypatch, table):
    path = write(shell, table())
    words = ["fit", path, "--target", "price", "--epochs", 6, "--hidden", "4"]
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
    assert {"checkpoint.safetensors", "table.json"} <= {
        path.name for path in (shell.folder / "part").iterdir()
    }
    assert shell(*words, "--out", "part", "--resume").exit_code == 0
    first, second = (
        (shell.folder / name / "posterior.safetensors").read_bytes() for name in ("whole", "part")
    )
    assert first == second


def test_a_prior_by_name_is_stored_and_ard_prints_the_relevance_of_every_input(tmp_path):
    from typer.testing import CliRunner

    from credo.cli.app import app

    table = tmp_path / "t.csv"
    table.write_text(
        "a,b,y\n" + "\n".join(f"{i % 7},{(3 * i) % 5},{2.0 * (i % 7)}" for i in range(40)) + "\n"
    )
    options = ["--target", "y", "--task", "regression", "--epochs", "3", "--hidden", "4"]
    out = tmp_path / "run"
    result = CliRunner().invoke(
        app, ["fit", str(table), *options, "--prior", "ard", "--out", str(out)]
    )
    assert result.exit_code == 0 and "Input relevance" in result.output
    assert json.loads((out / "config.json").read_text())["prior"]["per"] == "input"
    wrong = CliRunner().invoke(
        app, ["fit", str(table), *options, "--prior", "horsesho", "--out", str(tmp_path / "no")]
    )
    assert wrong.exit_code == 2 and not (tmp_path / "no").exists()
