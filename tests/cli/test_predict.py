import errno
import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def new(shell, table):
    path = shell.folder / "new.csv"
    table(20, seed=1).drop(columns=["price", "dear"]).to_csv(path, index=False)
    return path


def changed(shell, frame, column, value):
    frame = frame.astype({column: object})
    frame.loc[1, column] = value
    path = shell.folder / "changed.csv"
    frame.to_csv(path, index=False)
    return path


def test_regression_columns_in_original_units(runs, shell, new):
    result = shell("predict", runs / "price", new, "--out", "p.csv")
    assert result.exit_code == 0, result.stderr
    found = pd.read_csv(shell.folder / "p.csv")
    assert list(found.columns) == [
        "mean",
        "std",
        "lower",
        "upper",
        "total",
        "aleatoric",
        "epistemic",
    ]
    assert len(found) == 20
    assert found["mean"].between(1000, 1400).all()
    np.testing.assert_allclose(found["total"], found["aleatoric"] + found["epistemic"], rtol=1e-4)
    np.testing.assert_allclose(found["total"], found["std"] ** 2, rtol=1e-4)
    assert ((found["lower"] < found["mean"]) & (found["mean"] < found["upper"])).all()


def test_class_columns_and_parquet(runs, shell, new):
    assert shell("predict", runs / "dear", new, "--out", "p.parquet").exit_code == 0
    found = pd.read_parquet(shell.folder / "p.parquet")
    assert list(found.columns) == ["label", "p_no", "p_yes", "total", "aleatoric", "epistemic"]
    assert set(found["label"]) <= {"no", "yes"}
    np.testing.assert_allclose(found["p_no"] + found["p_yes"], 1, rtol=1e-5)


def test_without_out_the_table_goes_to_stdout_and_repeats(runs, shell, new):
    first, again = (shell("predict", runs / "price", new, "--samples", 5) for _ in range(2))
    assert first.stdout == again.stdout
    assert first.stdout.startswith("mean,std,")


def test_columns_in_another_order_with_extras_are_found_by_name(runs, shell, new):
    frame = pd.read_csv(new)
    other = shell.folder / "other.csv"
    frame[list(frame.columns)[::-1]].assign(extra=1).to_csv(other, index=False)
    assert (
        shell("predict", runs / "price", new).stdout
        == shell("predict", runs / "price", other).stdout
    )


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("size", "big", "Column 'size', row 2: 'big' is not a number"),
        ("town", "w", "row 2: value 'w' was not seen in training; known: u, v"),
        ("size", np.nan, "Column 'size', row 2 holds NaN"),
        ("size", -np.inf, "Column 'size', row 2 holds an infinite value"),
    ],
)
def test_rows_that_cannot_be_predicted(runs, shell, table, column, value, message):
    assert message in shell.refuses(
        "predict", runs / "price", changed(shell, table(4, seed=1), column, value), "--out", "p.csv"
    )


def test_missing_columns_are_named(runs, shell):
    pd.DataFrame({"age": [1]}).to_csv(shell.folder / "few.csv", index=False)
    assert "'size', 'town'" in shell.refuses(
        "predict", runs / "price", shell.folder / "few.csv", "--out", "p.csv"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "p.xlsx"], "expected .csv or .parquet"),
        (["--level", "1"], "--level 1.0"),
        (["--out", "none/p.csv"], "does not exist"),
    ],
)
def test_settings_that_cannot_be_used(runs, shell, new, words, message):
    assert message in shell.refuses("predict", runs / "price", new, *words)


def test_a_directory_that_is_no_run(shell, new):
    assert "has no table.json" in shell.refuses("predict", shell.folder, new)
    assert "does not exist" in shell.refuses("predict", shell.folder / "none", new)


def test_a_run_from_a_newer_version(runs, shell, new):
    shutil.copytree(runs / "price", shell.folder / "run")
    path = shell.folder / "run" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    assert "newer credo" in shell.refuses("predict", shell.folder / "run", new, "--out", "p.csv")


def test_a_truncated_posterior(runs, shell, new):
    shutil.copytree(runs / "price", shell.folder / "run")
    path = shell.folder / "run" / "posterior.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    assert "truncated or damaged" in shell.refuses(
        "predict", shell.folder / "run", new, "--out", "p.csv"
    )


def test_a_full_disk_leaves_the_old_file(runs, shell, new, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (shell.folder / "p.csv").write_text("old")
    monkeypatch.setattr("os.replace", full)
    assert "No space left on device" in shell.refuses(
        "predict", runs / "price", new, "--out", "p.csv"
    )


def test_images_of_the_wrong_shape_are_refused_in_python_too():
    import torch

    import credo

    net = credo.nets.lenet_300_100()
    bnn = credo.BNN(net, "categorical")
    with pytest.raises(credo.CredoError, match=r"27") as caught:
        bnn.fit((torch.zeros(4, 1, 27, 28), torch.tensor([0, 1, 2, 3])), epochs=1, progress=False)
    assert "\n" not in str(caught.value)


def test_inputs_far_from_those_of_the_fit_are_one_line(runs, shell, new):
    result = shell("predict", runs / "price", new, "--out", "p.csv")
    assert "out of range" not in result.stderr
    frame = pd.read_csv(new)
    numbers = frame.select_dtypes("number").columns
    frame[numbers] = 1000.0 * frame[numbers] + 1000.0
    frame.to_csv(new, index=False)
    result = shell("predict", runs / "price", new, "--out", "p.csv")
    assert result.exit_code == 0, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "out of range" in line]
    assert line.startswith("credo: inputs out of range (warning): column ")
