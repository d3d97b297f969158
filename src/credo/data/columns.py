"""The kinds of table column, each with how it becomes numbers.

Rows in messages are data rows counted from 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from credo.core.errors import DataError, nearest

Series = Any
"""A pandas Series, whose published types do not say what one column of a frame is."""

MAX_CATEGORIES = 1000
# a text column with more distinct numbers than this, and hardly any words, is a numeric one with a
# typo
_LOOKS_NUMERIC = 20


@final
@dataclass(frozen=True)
class NumericColumn:
    """Numbers, standardised: ``(value - mean) / std``; a constant column has std 1 and so becomes
    zeros.
    """

    name: str
    mean: float
    std: float
    kind: str = "numeric"

    @staticmethod
    def fit(values: Series) -> NumericColumn:
        """Mean and population standard deviation of the training rows."""
        mean, std = moments(numbers(values))
        return NumericColumn(str(values.name), mean, std or 1.0)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its encoded features."""
        return (self.name,)

    @property
    def width(self) -> int:
        """Always 1."""
        return 1

    def encode(self, values: Series) -> np.ndarray:
        """``(N, 1)``; refuses text, NaN and infinite values."""
        return ((numbers(values) - self.mean) / self.std)[:, None]


@final
@dataclass(frozen=True)
class CategoryColumn:
    """Text, booleans or categories, one feature of 0 or 1 for each value seen in training."""

    name: str
    categories: tuple[str, ...]
    kind: str = "category"

    @staticmethod
    def fit(values: Series) -> CategoryColumn:
        """The distinct values of the training rows, sorted."""
        found = words(values)
        distinct = sorted(set(found.tolist()))
        _refuse_typo(values, distinct)
        if len(distinct) > MAX_CATEGORIES:
            raise DataError(
                f"Column {values.name!r} has {len(distinct)} different text values, more than "
                f"{MAX_CATEGORIES}; "
                "drop it if it is an identifier, or group its values."
            )
        return CategoryColumn(str(values.name), tuple(distinct))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its encoded features."""
        return tuple(f"{self.name} = {category}" for category in self.categories)

    @property
    def width(self) -> int:
        """One feature per category."""
        return len(self.categories)

    def encode(self, values: Series) -> np.ndarray:
        """``(N, width)`` of zeros and ones; refuses missing and unseen values."""
        return np.eye(len(self.categories))[codes(values, self.categories, "value")]


Column = NumericColumn | CategoryColumn
"""One input column of a fitted table."""


def fit_column(values: Series) -> Column:
    """The kind of column these values call for, fitted; dates and other kinds are refused."""
    return NumericColumn.fit(values) if is_numeric(values) else CategoryColumn.fit(values)


def column_from(entry: dict[str, Any]) -> Column:
    """A column from its JSON form."""
    kinds: dict[str, type[Any]] = {"numeric": NumericColumn, "category": CategoryColumn}
    if entry.get("kind") not in kinds:
        raise DataError(
            "The table schema has a column of kind "
            f"{entry.get('kind')!r}.{nearest(str(entry.get('kind')), kinds)}"
        )
    return kinds[entry["kind"]](
        **{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    )


def is_numeric(values: Series) -> bool:
    """Whether the values are numbers; booleans and text are not, and anything else is refused."""
    import pandas as pd

    kind = values.dtype
    if pd.api.types.is_bool_dtype(kind) or isinstance(kind, pd.CategoricalDtype):
        return False
    if pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_complex_dtype(kind):
        return True
    if pd.api.types.is_string_dtype(kind) or pd.api.types.is_object_dtype(kind):
        return False
    raise DataError(
        f"Column {values.name!r} holds {kind} values; expected numbers, text or booleans, so "
        "convert or drop it first."
    )


def numbers(values: Series) -> np.ndarray:
    """``(N,)`` float64; the first text, missing or infinite value is refused with its row."""
    import pandas as pd

    if not is_numeric(values):
        parsed: Any = pd.to_numeric(values.astype(object), errors="coerce")
        words = np.flatnonzero(
            (parsed.isna() & values.notna()).to_numpy()
            | values.map(lambda v: isinstance(v, (bool, np.bool_)))
        )
        if words.size:
            raise DataError(
                f"Column {values.name!r}, row {words[0] + 1}: "
                f"{values.astype(object).iloc[words[0]]!r} is not a number; "
                "expected a number there, as in the rest of the column."
            )
        values = parsed
    array = values.to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        what = "NaN (an empty cell)" if np.isnan(array[bad[0]]) else "an infinite value"
        raise DataError(
            f"Column {values.name!r}, row {bad[0] + 1} holds {what}; remove the row or fill in a "
            "number."
        )
    return array


def words(values: Series) -> np.ndarray:
    """``(N,)`` of text: whole numbers lose a trailing ``.0``, so that 1, 1.0 and "1" are one
    category.
    """
    missing = np.flatnonzero(values.isna().to_numpy())
    if missing.size:
        raise DataError(
            f"Column {values.name!r}, row {missing[0] + 1} is NaN (an empty cell); remove the row "
            "or fill in a value."
        )
    return np.array([_word(value) for value in values.astype(object)], dtype=object)


def codes(values: Series, known: tuple[str, ...], noun: str) -> np.ndarray:
    """``(N,)`` places of the values in ``known``; an unseen one is refused with its row and the
    known ones.
    """
    place = {word: i for i, word in enumerate(known)}
    found = words(values)
    for row, word in enumerate(found):
        if word not in place:
            shown = ", ".join(known[:10]) + (
                f", ... ({len(known)} in all)" if len(known) > 10 else ""
            )
            raise DataError(
                f"Column {values.name!r}, row {row + 1}: {noun} {word!r} was not seen in "
                f"training; known: {shown}."
            )
    return np.array([place[word] for word in found], dtype=np.int64)


def moments(array: np.ndarray) -> tuple[float, float]:
    """Mean and population standard deviation; the latter is exactly 0 where only rounding separates
    the values.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(array.mean()), float(array.std())
    if not np.isfinite(std):
        raise DataError(
            f"Values up to {np.abs(array).max():g} are too large to standardise; divide them by a "
            "constant first."
        )
    return mean, 0.0 if array.min() == array.max() or std <= 1e-14 * abs(mean) else std


def _word(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _refuse_typo(values: Series, distinct: list[str]) -> None:
    import pandas as pd

    found: Any = pd.to_numeric(pd.Series(distinct, dtype=object), errors="coerce")
    parsed = found.notna()
    if parsed.sum() > _LOOKS_NUMERIC and parsed.mean() > 0.9:
        word = (
            distinct[int(np.flatnonzero(~parsed.to_numpy())[0])]
            if not parsed.all()
            else distinct[0]
        )
        row = words(values).tolist().index(word) + 1
        raise DataError(
            f"Column {values.name!r} holds numbers, but row {row} has the text {word!r}; mend "
            "that cell "
            "(or put a letter before every code if these are categories)."
        )
