import errno
import json
import os

import numpy as np
import pandas as pd
import pytest
from cli_tables import table

QUICK = ["--epochs", 2, "--hidden", "4"]


def write(shell, frame, name="t.csv"):
    path = shell.folder / name
    frame.to_csv(path, index=False)
    return path


def with_value(column, value):
    frame = table().drop(columns="dear").astype({column: object})
    frame.loc[2, column] = value
    return frame


def test_a_run_directory_holds_the_schema_and_the_network(shell):
    result = shell("fit", write(shell, table()), "--target", "price", "--out", "run", "--set", "estimator=weights", *QUICK)
    assert result.exit_code == 0, result.stderr
    network = json.loads((shell.folder / "run" / "network.json").read_text())
    assert network == {"name": "mlp", "args": {"in_features": 6, "hidden": [4], "out_features": 1}}
    assert json.loads((shell.folder / "run" / "table.json").read_text())["target"]["name"] == "price"


def test_the_same_seed_gives_the_same_posterior(shell):
    path = write(shell, table())
    for out in ("a", "b"):
        assert shell("fit", path, "--target", "dear", "--out", out, *QUICK).exit_code == 0
    assert (shell.folder / "a" / "posterior.safetensors").read_bytes() == (
        shell.folder / "b" / "posterior.safetensors"
    ).read_bytes()


def test_validation_and_method_settings_are_passed_on(shell):
    path = write(shell, table())
    result = shell(
        "fit", path, "--target", "dear", "--method", "map", "--validation", 0.2, "--batch-size", 16, "--lr", 0.01, *QUICK
    )
    assert result.exit_code == 0, result.stderr
    assert "validation_nll" in (shell.folder / "run" / "history.jsonl").read_text()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (with_value("size", np.nan), "Column 'size', row 3 holds NaN"),
        (with_value("size", np.inf), "Column 'size', row 3 holds an infinite value"),
        (with_value("town", None), "Column 'town', row 3 is NaN"),
        (with_value("price", np.nan), "Column 'price', row 3 holds NaN"),
        (table().assign(price=1.5), "Target 'price' is 1.5 in all 60 rows"),
        (table().assign(price="a"), "Target 'price' has one class, 'a', in all 60 rows"),
        (table().drop(columns="price"), "no target column 'price'"),
        (table().rename(columns={"price": "prices"}), "Did you mean 'prices'"),
        (table()[["price"]], "no column besides the target"),
        (table().iloc[:0], "has a header but no rows"),
        (pd.concat([table(), table()[["age"]]], axis=1), "more than one column named 'age'"),
    ],
)
def test_tables_that_cannot_be_learned_from(shell, frame, message):
    assert message in shell.refuses("fit", write(shell, frame), "--target", "price", "--out", "run")


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("a,price\n1,2\n3\n", "line 3 has 1 values; the header names 2"), (None, "does not exist")],
)
def test_files_that_are_no_tables(shell, text, message):
    if text is not None:
        (shell.folder / "t.csv").write_text(text)
    assert message in shell.refuses("fit", shell.folder / "t.csv", "--target", "price", "--out", "run")


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
        (["--lr", "-1"], "lr=-1.0"),
        (["--task", "regresion"], "Did you mean 'regression'"),
        (["--resume"], "holds no run to resume"),
    ],
)
def test_settings_that_cannot_be_used(shell, words, message):
    assert message in shell.refuses("fit", write(shell, table()), "--target", "price", "--out", "run", *words)


def test_usage_errors_exit_with_2(shell):
    assert shell("fit", "t.csv").exit_code == 2
    assert shell("fit", "t.csv", "--target", "y", "--epochs", "0").exit_code == 2


def test_a_used_directory_is_only_continued_when_asked_and_unchanged(shell):
    path = write(shell, table())
    words = ["fit", path, "--target", "price", "--out", "run", *QUICK]
    assert shell(*words).exit_code == 0
    assert "pass --resume" in shell.refuses(*words)
    assert shell(*words, "--resume").exit_code == 0
    assert "another table or target" in shell.refuses("fit", path, "--target", "size", "--out", "run", "--resume", *QUICK)
    assert "same --hidden" in shell.refuses(*words[:-1], "5", "--resume")
    (shell.folder / "file").write_text("")
    assert "is a file" in shell.refuses("fit", path, "--target", "price", "--out", "file")


def test_a_full_disk_is_one_sentence_and_leaves_nothing(shell, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = write(shell, table())
    monkeypatch.setattr("os.replace", full)
    assert "No space left on device" in shell.refuses("fit", path, "--target", "price", "--out", "run", *QUICK)
