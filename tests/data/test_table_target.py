import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from credo.core.errors import DataError, SettingError
from credo.data.table_target import ClassTarget, NumericTarget, fit_target


def series(values, **kind):
    return pd.Series(values, name="y", **kind)


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (["a", "b"], "classification"),
        ([True, False], "classification"),
        (list(range(20)), "classification"),
        (list(range(21)), "regression"),
        ([0.0, 1.0, 2.0], "regression"),
    ],
)
def test_the_task_follows_the_values(values, task):
    assert fit_target(series(values)).task == task


def test_the_task_can_be_said():
    assert fit_target(series([0, 1, 2]), "regression") == NumericTarget("y", 1.0, math.sqrt(2 / 3))
    assert fit_target(series([1.0, 10.0, 2.0]), "classification") == ClassTarget(
        "y", ("1", "2", "10")
    )
    with pytest.raises(SettingError, match=r"'regresion'.*Did you mean 'regression'"):
        fit_target(series([0, 1]), "regresion")
    with pytest.raises(DataError, match="row 1: 'a' is not a number"):
        fit_target(series(["a", "b"]), "regression")


def test_nothing_to_learn():
    with pytest.raises(DataError, match=r"is 0.3 in all 4 rows"):
        fit_target(series([0.3] * 4))
    with pytest.raises(DataError, match="one class, 'a', in all 3 rows"):
        fit_target(series(["a"] * 3))
    with pytest.raises(DataError, match="row 2 holds NaN"):
        fit_target(series([0.3, np.nan]))


def test_regression_goes_to_standard_units_and_back():
    target = NumericTarget("y", 10.0, 4.0)
    z = target.encode(series([2.0, 14.0]))
    assert z.tolist() == [[-2.0], [1.0]]
    assert target.decode_mean(z).tolist() == [[2.0], [14.0]]
    assert target.decode_std(z[1]).tolist() == [4.0]
    assert target.decode_var(z[1]).tolist() == [16.0]


def test_regression_columns_keep_total_as_the_sum_and_std_as_its_root():
    one = torch.ones(2, 1)
    predicted = SimpleNamespace(
        mean=0 * one,
        std=2 * one,
        total=4 * one,
        aleatoric=3 * one,
        epistemic=one,
        interval=lambda level: (-level * one, level * one),
    )
    columns = NumericTarget("y", 10.0, 3.0).columns(predicted, 0.9)
    assert list(columns) == ["mean", "std", "lower", "upper", "total", "aleatoric", "epistemic"]
    np.testing.assert_allclose(columns["total"], columns["aleatoric"] + columns["epistemic"])
    np.testing.assert_allclose(columns["total"], columns["std"] ** 2)
    np.testing.assert_allclose(
        [columns["lower"], columns["upper"]], [[7.3] * 2, [12.7] * 2], rtol=1e-6
    )


def test_metrics_in_original_units_match_a_direct_computation():
    target = NumericTarget("y", 5.0, 2.0)
    y, guess = np.array([4.0, 9.0]), np.array([5.0, 7.0])
    z, z_guess = (y - 5) / 2, (guess - 5) / 2
    normal = torch.distributions.Normal
    nll = -normal(torch.tensor(z_guess), 1.0).log_prob(torch.tensor(z)).mean().item()
    moved = target.metrics(
        {
            "rmse": float(np.sqrt(((z - z_guess) ** 2).mean())),
            "nll": nll,
            "coverage": 0.9,
            "std": 1.5,
        }
    )
    assert moved["rmse"] == pytest.approx(np.sqrt(((y - guess) ** 2).mean()))
    assert moved["nll"] == pytest.approx(
        -normal(torch.tensor(guess), 2.0).log_prob(torch.tensor(y)).mean().item()
    )
    assert (moved["coverage"], moved["std"]) == (0.9, 3.0)


def test_class_columns_name_labels_and_probabilities():
    target = ClassTarget("y", ("no", "yes"))
    mean = torch.tensor([[0.2, 0.8], [0.7, 0.3]])
    part = torch.tensor([0.1, 0.2])
    columns = target.columns(
        SimpleNamespace(mean=mean, total=part, aleatoric=part, epistemic=part), 0.9
    )  # type: ignore[arg-type]
    assert columns["label"].tolist() == ["yes", "no"]
    np.testing.assert_allclose(columns["p_no"] + columns["p_yes"], 1.0)


def test_an_unseen_class_is_named():
    with pytest.raises(DataError, match="class 'maybe' was not seen in training; known: no, yes"):
        ClassTarget("y", ("no", "yes")).encode(series(["no", "maybe"]))
