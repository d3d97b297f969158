import numpy as np
import pandas as pd
import pytest

from credo.core.errors import DataError
from credo.data.columns import CategoryColumn, NumericColumn, column_from, fit_column, moments


def series(values, name="a", **kind):
    return pd.Series(values, name=name, **kind)


def test_numbers_are_standardised_and_constants_become_zero():
    column = fit_column(series([1.0, 2.0, 3.0]))
    encoded = column.encode(series([1.0, 2.0, 3.0]))
    np.testing.assert_allclose([encoded.mean(), encoded.std()], [0, 1], atol=1e-12)
    assert fit_column(series([7, 7])).encode(series([7, 8])).tolist() == [[0.0], [1.0]]


def test_a_constant_that_is_not_a_binary_fraction_is_constant():
    assert moments(np.full(10, 0.1))[1] == 0.0


@pytest.mark.parametrize(
    "values", [["u", "v", "u"], [True, False, True], pd.Categorical(["u", "v", "u"])]
)
def test_text_booleans_and_categories_become_zeros_and_ones(values):
    column = fit_column(series(values))
    encoded = column.encode(series(values))
    assert column.width == 2
    assert (encoded.sum(1) == 1).all()
    assert (encoded[0] == encoded[2]).all() and (encoded[0] != encoded[1]).all()


def test_a_category_of_digits_survives_a_table_that_reads_them_as_numbers():
    column = CategoryColumn.fit(series(["1", "2", "x"]))
    assert (
        column.encode(series([2, 1])).argmax(1).tolist()
        == column.encode(series([2.0, 1.0])).argmax(1).tolist()
        == [1, 0]
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["1", "two"], "row 2: 'two' is not a number"),
        ([1.0, np.nan], "row 2 holds NaN"),
        ([1.0, -np.inf], "row 2 holds an infinite value"),
        ([True, False], "row 1: True is not a number"),
    ],
)
def test_numeric_columns_refuse_with_row_and_value(values, message):
    with pytest.raises(DataError, match=f"Column 'a', {message}"):
        NumericColumn("a", 0.0, 1.0).encode(series(values))


def test_numbers_given_as_text_are_numbers():
    assert NumericColumn("a", 0.0, 1.0).encode(series(["1", "2.5"])).tolist() == [[1.0], [2.5]]


def test_unseen_and_missing_categories():
    column = CategoryColumn("a", ("u", "v"))
    with pytest.raises(DataError, match="row 2: value 'w' was not seen in training; known: u, v"):
        column.encode(series(["u", "w"]))
    with pytest.raises(DataError, match="row 1 is NaN"):
        column.encode(series([None, "u"]))


def test_a_typo_in_a_numeric_column_is_found_at_fit_time():
    values = [str(v) for v in range(30)]
    values[7] = "7a"
    with pytest.raises(DataError, match="row 8 has the text '7a'"):
        fit_column(series(values))


def test_identifiers_and_dates_are_refused():
    with pytest.raises(DataError, match="1001 different text values"):
        fit_column(series([f"id{i}" for i in range(1001)]))
    with pytest.raises(DataError, match="datetime64"):
        fit_column(series(pd.to_datetime(["2020-01-01"])))


def test_values_too_large_to_square():
    with pytest.raises(DataError, match="too large to standardise"):
        fit_column(series([1e300, -1e300]))


def test_unknown_kind_in_json():
    with pytest.raises(DataError, match="kind 'text'"):
        column_from({"kind": "text"})
