import json

import pandas as pd
import pytest


@pytest.fixture
def test_table(shell, table):
    path = shell.folder / "test.csv"
    table(40, seed=2).to_csv(path, index=False)
    return path


def test_regression_metrics_are_in_original_units(runs, shell, test_table):
    result = shell("evaluate", runs / "price", test_table, "--json")
    assert result.exit_code == 0, result.stderr
    metrics = json.loads(result.stdout)
    predicted = shell("predict", runs / "price", test_table, "--out", "p.csv")
    assert predicted.exit_code == 0
    error = pd.read_csv(shell.folder / "p.csv")["mean"] - pd.read_csv(test_table)["price"]
    assert metrics["rmse"] == pytest.approx((error**2).mean() ** 0.5, rel=1e-3)


def test_class_metrics_as_a_table(runs, shell, test_table):
    result = shell("evaluate", runs / "dear", test_table)
    assert result.exit_code == 0, result.stderr
    assert "accuracy" in result.stdout and "nll" in result.stdout


def test_a_table_of_one_row_or_one_class_can_be_scored(runs, shell, table):
    table(1).to_csv(shell.folder / "one.csv", index=False)
    for name in ("price", "dear"):
        assert shell("evaluate", runs / name, shell.folder / "one.csv").exit_code == 0


def test_the_target_must_be_there_and_known(runs, shell, table):
    table(5).drop(columns="price").to_csv(shell.folder / "t.csv", index=False)
    assert "no target column 'price'" in shell.refuses(
        "evaluate", runs / "price", shell.folder / "t.csv"
    )
    table(5).assign(dear="perhaps").to_csv(shell.folder / "t.csv", index=False)
    assert "class 'perhaps' was not seen" in shell.refuses(
        "evaluate", runs / "dear", shell.folder / "t.csv"
    )
