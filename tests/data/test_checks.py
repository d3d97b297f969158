import numpy as np
import pandas as pd
import pytest
import torch

from credo.core.errors import DataError
from credo.data import check_inputs
from credo.data.checks import check_pair


def refuse(match, x, y=None):
    with pytest.raises(DataError, match=match) as caught:
        check_inputs(x) if y is None else check_pair(x, y)
    assert "\n" not in str(caught.value)


def test_float64_stays_unless_a_dtype_is_asked_for():
    x = np.random.default_rng(0).normal(size=(3, 2))
    assert check_inputs(x).dtype == torch.float64
    assert check_inputs(x, dtype=torch.float32).dtype == torch.float32
    assert check_inputs(np.arange(3), dtype=torch.float32).dtype == torch.int64


@pytest.mark.parametrize(
    "kind", [np.uint8, np.uint16, np.uint32, np.uint64, np.bool_, np.float16, ">f4"]
)
def test_unusual_dtypes_keep_their_values(kind):
    array = np.array([0, 1, 1], dtype=kind)
    assert check_inputs(array).tolist() == array.tolist()


def test_read_only_and_reversed_arrays_are_taken():
    array = np.arange(4.0)
    array.flags.writeable = False
    assert check_inputs(array[::-1]).tolist() == [3, 2, 1, 0]


def test_frames_and_nullable_columns():
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
    assert check_inputs(frame).tolist() == [[1, 0.5], [2, 1.5]]
    assert check_inputs(frame["a"]).tolist() == [1, 2]
    refuse("NaN at row 1, column 'a'", pd.DataFrame({"a": pd.array([1, None], dtype="Int64")}))


def test_not_finite_names_row_and_column():
    refuse("NaN at row 1, column 2", np.array([[0, 0, 0], [0, 0, np.nan]]))
    refuse("infinite value at row 0, column 'b'", pd.DataFrame({"a": [1.0], "b": [np.inf]}))
    image = torch.zeros(2, 1, 4)
    image[1, 0, 2:] = torch.nan
    refuse(r"row 1, position \(0, 2\) \(2 such values\)", image)
    refuse("y has NaN at row 0", torch.zeros(2, 1), torch.tensor([torch.nan, 0]))


def test_large_finite_values_whose_sum_overflows_are_taken():
    assert check_inputs(torch.full((4,), 3e38)).shape == (4,)


def test_empty_scalar_text_ragged_and_foreign():
    refuse(r"x is empty: its shape is \(0, 3\)", np.zeros((0, 3)))
    refuse("single number", torch.tensor(1.0))
    refuse("dtype <U1.*'a'", np.array(["a", "b"]))
    refuse("column 's' holds", pd.DataFrame({"s": ["u", "v"]}))
    refuse("y: column 0 holds", torch.zeros(2, 1), pd.Series(["u", "v"]))
    refuse("different lengths", [[1.0], [1.0, 2.0]])
    refuse("x is a object", object())
    refuse("no tensors", {})
    refuse("complex64", torch.zeros(2, dtype=torch.complex64))


def test_lengths_that_differ_give_both():
    refuse("x has 3 rows and y has 2", torch.zeros(3, 1), torch.zeros(2))
    refuse(r"x\['a'\] has 3 rows and x\['b'\] has 2", {"a": torch.zeros(3), "b": torch.zeros(2)})


def test_shapes_must_match_the_example_from_training():
    example = torch.zeros(2, 1, 28, 28)
    assert check_inputs(torch.zeros(5, 1, 28, 28), like=example).shape[0] == 5
    with pytest.raises(DataError, match=r"\(1, 27, 28\) per example; expected \(1, 28, 28\)"):
        check_inputs(torch.zeros(5, 1, 27, 28), like=example)
    with pytest.raises(DataError, match=r"expected the structure of training: x\."):
        check_inputs({"a": torch.zeros(1)}, like=example)


def test_inputs_are_cut_from_any_graph():
    assert not check_inputs(torch.zeros(2, requires_grad=True)).requires_grad
