import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from credo.core.errors import DataError
from credo.data import intake

X, Y = torch.arange(20.0).reshape(10, 2), torch.arange(10)
SET = TensorDataset(X, Y)


class Endless(IterableDataset):
    """Single examples without a length."""

    def __iter__(self):
        yield from ((x, y) for x, y in zip(X, Y, strict=True))


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        (pd.DataFrame(X.numpy()), pd.Series(Y.numpy())),
        SET,
        Subset(SET, range(10)),
        DataLoader(SET, batch_size=4),
        DataLoader(SET, batch_size=4, shuffle=True),
        DataLoader(SET, sampler=SubsetRandomSampler(range(10))),
        [(X[:4], Y[:4]), (X[4:], Y[4:])],
    ],
    ids=[
        "tensors",
        "list",
        "arrays",
        "frames",
        "tensor_dataset",
        "subset",
        "loader",
        "shuffled",
        "subset_sampler",
        "batches",
    ],
)
def test_every_kind_gives_the_same_rows(data):
    source = intake(data)
    assert source.num_data == 10
    pairs = list(source(None, 3))
    x, y = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    order = y.argsort()
    assert torch.equal(x[order], X)
    assert torch.equal(y[order], Y)
    assert sorted(source.targets().tolist()) == Y.tolist()
    assert source.example(1).shape == (1, 2)


def test_arrays_are_whole_only_in_memory():
    x, y = intake(SET).arrays() or (None, None)
    assert torch.equal(x, X) and torch.equal(y, Y)
    assert intake(DataLoader(SET)).arrays() is None


def test_a_loader_keeps_its_batches_and_the_global_generator_is_left_alone():
    source = intake(DataLoader(SET, batch_size=4, shuffle=True))
    before = torch.get_rng_state()
    first = [y.tolist() for _, y in source(torch.Generator().manual_seed(0), 2)]
    again = [y.tolist() for _, y in source(torch.Generator().manual_seed(0), 2)]
    assert [len(y) for y in first] == [4, 4, 2]
    assert first == again
    assert torch.equal(before, torch.get_rng_state())


def test_several_inputs_survive_collation_as_a_tuple():
    data = [((X[i], X[i] + 1), Y[i]) for i in range(10)]
    x, _ = next(intake(DataLoader(data, batch_size=5))())  # type: ignore[arg-type]
    assert isinstance(x, tuple) and x[0].shape == x[1].shape == (5, 2)


def uncounted():
    return [
        Endless(),
        DataLoader(Endless(), batch_size=4),
        DataLoader(SET, sampler=WeightedRandomSampler([1.0] * 10, 5)),
        DataLoader(SET, sampler=RandomSampler(SET, num_samples=3)),
        DataLoader(SET, batch_size=None),
        (pair for pair in [(X, Y)]),
    ]


@pytest.mark.parametrize("place", range(6))
def test_the_number_of_data_is_never_guessed(place):
    with pytest.raises(DataError, match="pass num_data="):
        intake(uncounted()[place])
    assert intake(uncounted()[place], num_data=10).num_data == 10


def test_a_one_shot_iterator_lasts_more_than_one_epoch():
    source = intake(((X[i : i + 5], Y[i : i + 5]) for i in (0, 5)), num_data=10)
    assert source.example().shape == (2, 2)
    assert [sum(len(y) for _, y in source()) for _ in range(2)] == [10, 10]


def test_an_iterable_dataset_is_batched():
    assert [len(y) for _, y in intake(Endless(), num_data=10)(None, 4)] == [4, 4, 2]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (X, "is a Tensor"),
        ((X, Y, Y), "is a tuple of 3"),
        (pd.DataFrame({"a": [1]}), "is a DataFrame"),
        ("data.csv", "is a str"),
        (3, "is a int"),
        ([], "is empty"),
        (Subset(SET, []), "is empty"),
        ((X, Y[:3]), "x has 10 rows and y has 3"),
        ((np.array([["a"]]), Y[:1]), "dtype <U1"),
        ((X, {"a": Y}), "y is a dict"),
    ],
)
def test_what_is_not_data_is_refused_in_one_sentence(data, words):
    with pytest.raises(DataError, match=words) as caught:
        intake(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("n", [0, -1, 2.0, True])
def test_bad_num_data(n):
    with pytest.raises(DataError, match="num_data="):
        intake((X, Y), num_data=n)


def test_dtype_casts_floating_values_and_leaves_labels():
    x, y = next(intake(DataLoader(SET), dtype=torch.float64)())
    assert (x.dtype, y.dtype) == (torch.float64, torch.int64)


def test_importing_needs_no_table_libraries():
    code = (
        "import sys, credo.data, credo.nets; print([m for m in ('pandas', 'sklearn', 'plotly', "
        "'rich') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
