import json

import numpy as np
import pandas as pd
import pytest
import torch

from credo.core.errors import DataError
from credo.data.table import TableSchema, read_table

FRAME = pd.DataFrame(
    {"age": [20, 30, 40, 50], "town": ["u", "v", "u", "v"], "y": [0.5, 1.5, 2.0, 4.0]}
)


def write(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_columns_are_found_by_name_in_any_order_and_extras_ignored():
    schema = TableSchema.fit(FRAME, "y")
    x = schema.encode(FRAME)
    assert x.shape == (4, schema.num_features) == (4, 3)
    assert x.dtype == torch.float32
    shuffled = FRAME[["y", "town", "age"]].assign(extra=1)
    assert torch.equal(schema.encode(shuffled), x)
    assert torch.equal(schema.encode(shuffled.drop(columns="y")), x)


def test_json_round_trip():
    schema = TableSchema.fit(FRAME, "y")
    again = TableSchema.from_json(schema.to_json())
    assert again == schema
    classes = TableSchema.fit(FRAME, "town")
    assert TableSchema.from_json(classes.to_json()) == classes


def test_json_that_is_no_schema_or_newer():
    newer = json.loads(TableSchema.fit(FRAME, "y").to_json()) | {"format": 99}
    with pytest.raises(DataError, match=r"format 99.*upgrade"):
        TableSchema.from_json(json.dumps(newer))
    for text in ("{", "{}", "[]"):
        with pytest.raises(DataError, match="cannot be read"):
            TableSchema.from_json(text)


def test_missing_columns_are_all_named():
    schema = TableSchema.fit(FRAME, "y")
    with pytest.raises(
        DataError, match="lacks 2 of 2 columns used in training: 'age', 'town'; it has 'other'"
    ):
        schema.encode(pd.DataFrame({"other": [1]}))
    with pytest.raises(DataError, match="no target column 'y'"):
        schema.encode_target(FRAME.drop(columns="y"))


def test_fit_refuses():
    with pytest.raises(DataError, match=r"no target column 'agee'. Did you mean 'age'"):
        TableSchema.fit(FRAME, "agee")
    with pytest.raises(DataError, match="no column besides the target"):
        TableSchema.fit(FRAME[["y"]], "y")
    with pytest.raises(DataError, match="no rows"):
        TableSchema.fit(FRAME.iloc[:0], "y")
    with pytest.raises(DataError, match="more than one column named 'age'"):
        TableSchema.fit(pd.concat([FRAME, FRAME[["age"]]], axis=1), "y")


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet"])
def test_files_round_trip(tmp_path, name):
    path = tmp_path / name
    FRAME.to_parquet(path) if name.endswith("parquet") else FRAME.to_csv(
        path, index=False, sep="\t" if name.endswith("tsv") else ","
    )
    pd.testing.assert_frame_equal(read_table(path), FRAME)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", "is empty"),
        ("t.csv", "\n\n", "is empty"),
        ("t.parquet", "", "is empty"),
        ("t.csv", "a,b\n", "no rows"),
        ("t.csv", "a,b,a\n1,2,3\n", "more than one column named 'a'"),
        ("t.csv", "a,b\n1,2\n3\n", "line 3 has 1 values; the header names 2"),
        ("t.csv", "a,b\n1,2,3\n", "line 2 has 3 values"),
        ("t.csv", b"a,b\n\xff\xfe,2\n", "cannot be read as a csv table"),
        ("t.parquet", "not parquet at all", "cannot be read as a parquet table"),
        ("t.xlsx", "x", "expected a .csv, .tsv or .parquet file"),
    ],
)
def test_unusable_files_are_refused_in_one_sentence(tmp_path, name, text, message):
    with pytest.raises(DataError, match=message) as caught:
        read_table(write(tmp_path, text, name))
    assert "\n" not in str(caught.value)


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(DataError, match="is a directory"):
        read_table(tmp_path / "d.csv")


def test_an_index_written_by_accident_is_left_out_with_a_warning(tmp_path):
    path = tmp_path / "t.csv"
    FRAME.to_csv(path)
    with pytest.warns(UserWarning, match="without a name"):
        assert list(read_table(path).columns) == ["age", "town", "y"]


def test_byte_order_mark_spaces_and_quotes(tmp_path):
    frame = read_table(write(tmp_path, '\ufeffa, b\n1,"x, y"\n2,z\n'))
    assert list(frame.columns) == ["a", "b"]
    assert frame["b"].tolist() == ["x, y", "z"]


def test_targets_have_the_shape_their_likelihood_takes():
    regression, classes = TableSchema.fit(FRAME, "y"), TableSchema.fit(FRAME, "town")
    z = regression.encode_target(FRAME)
    assert z.shape == (4, 1)
    np.testing.assert_allclose([z.mean().item(), z.std(correction=0).item()], [0, 1], atol=1e-6)
    assert classes.encode_target(FRAME).tolist() == [0, 1, 0, 1]


def test_features_are_named_column_by_column():
    frame = pd.DataFrame(
        {"size": [1.0, 2.0, 3.0], "colour": ["red", "blue", "red"], "y": [1.0, 2.0, 3.5]}
    )
    schema = TableSchema.fit(frame, "y", "regression")
    assert (
        schema.feature_names == ["size", "colour = blue", "colour = red"]
        and len(schema.feature_names) == schema.num_features
    )
