"""Data without targets, of every kind, as sources of pairs."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)
from zoo.latent import QUICK, STILL, binary, real, vae

from credo.core.errors import DataError
from credo.generative.unlabelled_data import (
    DataCheck,
    UnlabelledBatches,
    UnlabelledExamples,
    UnlabelledStream,
    first_data,
    source_of,
)
from credo.likelihoods import Bernoulli, ContinuousBernoulli, Gaussian, Pixels, Poisson


class Listed(Dataset):
    """Whatever stands in a list, one by one."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        return self.rows[place]


class Endless(IterableDataset):
    """The same without a length."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def datum(likelihood=None, dtype=torch.float32, binarise=False, shape=None):
    return DataCheck(likelihood or Gaussian(), dtype, binarise, shape)


def passed(source, batch_size=16):
    """One pass: data, what stands beside them, and the sizes of batches."""
    pairs = list(source(None, batch_size))
    return (
        torch.cat([x for x, _ in pairs]),
        torch.cat([y for _, y in pairs]),
        [len(x) for x, _ in pairs],
    )


# --- a datum --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x,
        lambda x: x.double(),
        lambda x: x.numpy(),
        lambda x: x.tolist(),
        lambda x: pd.DataFrame(x.numpy()),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_of_every_kind_become_the_models(form, dtype):
    out = datum(dtype=dtype)(form(real()))
    assert out.dtype == dtype and torch.equal(out, real().to(dtype))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_whole_numbers_stay_whole_unless_they_are_drawn_from(dtype):
    x = binary().to(dtype)
    assert datum(Pixels(2))(x).dtype == dtype
    assert datum(Bernoulli(), binarise=True)(x).dtype == torch.float32
    assert datum(Bernoulli())(binary().bool()).dtype == torch.float32


def test_single_numbers_become_columns():
    assert datum()(torch.randn(5)).shape == (5, 1) and datum()(torch.randn(5, 1)).shape == (5, 1)
    assert datum()(torch.randn(5, 1, 3, 4)).shape == (5, 1, 3, 4)


def test_the_first_shape_that_is_seen_holds():
    one = datum()
    one(real(3, 6))
    with pytest.raises(DataError, match=r"shape \(5,\) each.*\(6,\)"):
        one(real(3, 5))
    with pytest.raises(DataError, match=r"shape \(6,\) each.*\(2, 3\)"):
        datum(shape=(2, 3))(real(3, 6))
    assert datum(shape=(6,))(real(3, 6)).shape == (3, 6)


BAD = {
    "nan": (Gaussian(), torch.tensor([[0.0, 1.0], [torch.nan, 1.0]]), "NaN at row 1, column 0"),
    "infinite": (Gaussian(), torch.tensor([[0.0, torch.inf]]), "infinite value at row 0, column 1"),
    "grey as binary": (
        Bernoulli(),
        torch.tensor([[0.0, 1.0], [1.0, 0.5]]),
        "row 1, column 1 is 0.5; expected 0 or 1",
    ),
    "beyond grey": (
        ContinuousBernoulli(),
        torch.tensor([[0.0, 1.5]]),
        "row 0, column 1 is 1.5; expected a number from 0 to 1",
    ),
    "below grey": (Bernoulli(grey=True), torch.tensor([[-0.5, 1.0]]), "row 0, column 0 is -0.5"),
    "no level": (Pixels(4), torch.tensor([[0, 4]]), "4"),
    "between levels": (Pixels(4), torch.tensor([[0.5, 1.0]]), "0.5"),
    "no count": (Poisson(), torch.tensor([[1.5, 1.0]]), "1.5; expected a count"),
    "empty": (Gaussian(), torch.zeros(0, 3), "empty"),
    "a number": (Gaussian(), torch.tensor(1.0), "single number"),
    "complex": (Gaussian(), torch.zeros(2, 2, dtype=torch.complex64), "complex"),
    "text": (Gaussian(), "abc", "a str"),
    "texts": (Gaussian(), np.array([["a"], ["b"]]), "expected numbers"),
    "ragged": (Gaussian(), [[1.0], [1.0, 2.0]], "different lengths"),
    "nothing": (Gaussian(), None, "NoneType"),
    "a pair": (Gaussian(), (real(), real()), "a tuple; expected one tensor"),
    "a dictionary": (Gaussian(), {"image": real()}, "a dict; expected one tensor"),
    "batches": (Gaussian(), (x for x in [real()]), "a generator"),
}


@pytest.mark.parametrize("name", BAD)
def test_refusals(name):
    likelihood, x, words = BAD[name]
    with pytest.raises(DataError, match=words):
        datum(likelihood)(x)
    with pytest.raises(DataError, match=words):
        source_of(x, datum(likelihood))


@pytest.mark.parametrize("value", [-0.1, 1.1, 2.0])
def test_what_is_drawn_from_must_be_a_probability(value):
    with pytest.raises(DataError, match=f"binarise=True.*row 1, column 0 is {value}"):
        datum(Bernoulli(), binarise=True)(torch.tensor([[0.3], [value]]))


def test_targets_are_flat():
    assert datum().targets(torch.randn(3, 2, 4)).shape == (3, 8)


# --- sources --------------------------------------------------------------------------------------

X = real()
KINDS = {
    "tensor": X,
    "array": X.numpy(),
    "tensors": TensorDataset(X),
    "pairs of tensors": TensorDataset(X, torch.arange(40)),
    "triples of tensors": TensorDataset(X, torch.arange(40), X * 2),
    "rows": Listed(list(X)),
    "rows as arrays": Listed(list(X.numpy())),
    "rows with labels": Listed([(x, "a label") for x in X]),
    "rows in lists": Listed([[x, None] for x in X]),
    "part": Subset(TensorDataset(torch.cat([X * 0 - 1, X])), range(40, 80)),
    "parts": ConcatDataset([TensorDataset(X[:15]), TensorDataset(X[15:])]),
    "loader": DataLoader(TensorDataset(X), batch_size=16),
    "loader of pairs": DataLoader(TensorDataset(X, torch.arange(40)), batch_size=16, num_workers=0),
    "loader of rows": DataLoader(Listed(list(X)), batch_size=16),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_all_data_in_order_with_nothing_beside_them(kind):
    source = source_of(KINDS[kind], datum())
    assert source.num_data == 40
    for _ in range(2):
        x, y, sizes = passed(source)
        assert torch.equal(x, X) and torch.equal(y, torch.zeros(40)) and sizes == [16, 16, 8]


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_is_shuffled_or_keeps_the_loaders_order(kind):
    source = source_of(KINDS[kind], datum())
    one, two = (
        torch.cat([x for x, _ in source(torch.Generator().manual_seed(1), 16)]) for _ in range(2)
    )
    assert torch.equal(one, two) and torch.equal(one.sort(0).values, X.sort(0).values)
    assert torch.equal(one, X) == ("loader" in kind)


@pytest.mark.parametrize(
    "data",
    [Endless(list(X)), Endless([(x, 3) for x in X]), DataLoader(Endless(list(X)), batch_size=16)],
)
def test_data_without_a_length_need_one(data):
    with pytest.raises(DataError, match="num_data="):
        source_of(data, datum())
    source = source_of(data, datum(), 40)
    for _ in range(2):
        x, y, sizes = passed(source)
        assert (
            source.num_data == 40
            and torch.equal(x, X)
            and sizes == [16, 16, 8]
            and torch.equal(y, torch.zeros(40))
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_a_larger_data_set(kind):
    assert source_of(KINDS[kind], datum(), 400).num_data == 400
    for bad in (0, -1, 1.5, True):
        with pytest.raises(DataError, match="num_data="):
            source_of(KINDS[kind], datum(), bad)


def test_fits_of_streams_equal_fits_of_loaders():
    """A stream has no order of its own, so its batches are those of a loader without shuffling."""
    one = vae().fit(Endless(list(X)), num_data=40, **QUICK)
    two = vae().fit(DataLoader(TensorDataset(X), batch_size=16), **QUICK)
    assert torch.equal(one.elbo(X), two.elbo(X)) and one.shape == (6,)


def test_fits_of_rows_equal_fits_of_tensors():
    assert torch.equal(vae().fit(Listed(list(X)), **QUICK).elbo(X), vae().fit(X, **QUICK).elbo(X))


def test_images_row_by_row():
    x = torch.rand(10, 1, 4, 4)
    for data in (Listed([(image, 0) for image in x]), DataLoader(TensorDataset(x), batch_size=4)):
        found, _, _ = passed(source_of(data, datum(ContinuousBernoulli())))
        assert torch.equal(found, x)


def test_empty_data_are_refused():
    for data in (Listed([]), DataLoader(Listed([]))):
        with pytest.raises(DataError, match="empty"):
            source_of(data, datum())
    with pytest.raises(DataError, match="no batches"):
        passed(source_of(Endless([]), datum(), 5))


def test_lengths_of_wrappers():
    assert len(UnlabelledExamples(Listed(list(X)), datum())) == 40
    x, nothing = UnlabelledExamples(TensorDataset(X, X), datum())[3]
    assert torch.equal(x, X[3]) and nothing.shape == ()
    assert len(list(UnlabelledStream(Endless(list(X)), datum()))) == 40
    assert [len(x) for x, _ in UnlabelledBatches([X[:3], [X[3:5], "beside"]], datum())] == [3, 2]


# --- bad values somewhere -------------------------------------------------------------------------


def spoiled(row=33):
    x = X.clone()
    x[row, 2] = torch.nan
    return x


def test_a_bad_value_in_a_tensor_is_named():
    with pytest.raises(DataError, match="row 33, column 2"):
        source_of(spoiled(), datum())


def test_a_bad_value_in_a_data_set_is_named_by_its_place_there():
    with pytest.raises(DataError, match="33|Batch 2.*row 1,"):
        passed(source_of(Listed(list(spoiled())), datum()))


@pytest.mark.parametrize(
    "data",
    [
        DataLoader(TensorDataset(spoiled()), batch_size=16),
        DataLoader(Endless(list(spoiled())), batch_size=16),
    ],
)
def test_a_bad_value_in_a_loader_is_named_with_its_batch(data):
    with pytest.raises(DataError, match=r"Batch 2.*row 1, column 2"):
        passed(source_of(data, datum(), 40))


def test_a_bad_value_in_a_stream_is_named_by_its_place_there():
    with pytest.raises(DataError, match="33|Batch 2.*row 1,"):
        passed(source_of(Endless(list(spoiled())), datum(), 40))


def test_shapes_that_change_are_refused():
    """Before any fit there is no model that was fitted to something."""
    for data in (
        Listed([torch.zeros(3), torch.zeros(4)]),
        DataLoader(Listed([torch.zeros(3), torch.zeros(4)]), batch_size=1),
    ):
        with pytest.raises(DataError, match=r"\(4,\).*\(3,\)"):
            passed(source_of(data, datum()))


@pytest.mark.parametrize(
    "row",
    [{"image": torch.zeros(3)}, "text", None, {"image": 1.0}],
    ids=["dict", "text", "None", "numbers in a dict"],
)
@pytest.mark.parametrize("make", [Listed, Endless])
def test_rows_that_are_no_arrays_are_refused(row, make):
    with pytest.raises(DataError):
        passed(source_of(make([row] * 3), datum(), 3))


@pytest.mark.parametrize("make", [Listed, Endless])
def test_rows_that_are_lists_of_numbers_keep_all_of_them(make):
    """The first number alone is no datum: all of them, or a refusal."""
    try:
        x, _, _ = passed(source_of(make(X.tolist()), datum(), 40))
    except DataError:
        return
    assert torch.equal(x, X)


# --- the first data -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("count", "found"), [(1, 1), (2, 2), (16, 16), (17, 17), (40, 40), (99, 40)]
)
def test_the_first_data(kind, count, found):
    assert torch.equal(first_data(source_of(KINDS[kind], datum()), count), X[:found])


def test_the_first_data_do_not_read_the_rest():
    def rows():
        yield from X[:20]
        raise AssertionError("read on")

    class Once(IterableDataset):
        def __iter__(self):
            return rows()

    assert torch.equal(
        first_data(source_of(DataLoader(Once(), batch_size=10), datum(), 40), 15), X[:15]
    )


def test_a_shuffled_loader_is_shuffled_anew():
    """Every epoch in another order, the same one for the same seed."""
    source = source_of(DataLoader(TensorDataset(X), batch_size=40, shuffle=True), datum())
    one, two, three = (
        next(iter(source(torch.Generator().manual_seed(seed), 40)))[0] for seed in (0, 0, 1)
    )
    assert torch.equal(one, two) and not torch.equal(one, three)
    assert vae().fit(DataLoader(TensorDataset(X), batch_size=16, shuffle=True), **STILL).shape == (
        6,
    )
