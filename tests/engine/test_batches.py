import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, TensorDataset
from zoo.models import make_model
from zoo.networks import make

from credo.core.errors import DataError
from credo.core.seeds import generator
from credo.data import intake
from credo.engine.batches import own_batches


def pair(bad=False):
    net, x = make("mlp")
    y = (torch.arange(len(x)) % 2).double()  # labels as a table gives them
    return make_model(net, likelihood="categorical"), x, y - 3 if bad else y


@pytest.mark.parametrize("loader", [False, True])
def test_targets_come_as_the_likelihood_wants_them(loader):
    model, x, y = pair()
    data = DataLoader(TensorDataset(x, y), batch_size=2) if loader else (x, y)
    source = model.on_device(intake(data))
    batches = list(source(None, 2))
    assert source.num_data == len(x) and all(b.dtype == torch.int64 for _, b in batches)
    assert torch.equal(torch.cat([b for _, b in batches]), y.long())
    assert (source.arrays() is None) == loader


@pytest.mark.parametrize("loader", [False, True])
def test_bad_targets_are_refused(loader):
    model, x, y = pair(bad=True)
    data = DataLoader(TensorDataset(x, y), batch_size=2) if loader else (x, y)
    with pytest.raises(DataError):
        list(model.on_device(intake(data))(None, 2))


# --- an order for each ----------------------------------------------------------------------------


class Rows(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        return {key: value[row] for key, value in self.x.items()}, self.y[row]


X = {"a": torch.arange(20.0).reshape(10, 2), "b": torch.arange(10)}
Y = torch.arange(10.0).unsqueeze(1)
SOURCES = {
    "arrays": lambda: (X, Y),
    "dataset": lambda: Rows(X, Y),
    "loader": lambda: DataLoader(Rows(X, Y), batch_size=4, shuffle=True),
    "fixed loader": lambda: DataLoader(Rows(X, Y), batch_size=3),
    "batches": lambda: [
        ({k: v[:5] for k, v in X.items()}, Y[:5]),
        ({k: v[5:] for k, v in X.items()}, Y[5:]),
    ],
}


def orders(epoch=0):
    return [generator(seed, "order", epoch) for seed in (3, 4, 5)]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("batch_size", [4, 10, None])
def test_row_k_is_what_the_kth_order_alone_gives(kind, batch_size):
    source = intake(SOURCES[kind](), num_data=10)
    state = torch.get_rng_state()
    stacked = list(own_batches(source, orders(), batch_size))
    assert torch.equal(state, torch.get_rng_state())
    for k, order in enumerate(orders()):
        alone = list(source(order, batch_size))
        assert len(alone) == len(stacked)
        for one, many in zip(alone, stacked, strict=True):
            leaves = zip(pytree.tree_leaves(one), pytree.tree_leaves(many), strict=True)
            assert all(
                torch.equal(a, b[k]) and b.shape[0] == 3 and a.dtype == b.dtype for a, b in leaves
            )


class Ragged:
    """Batches of sizes drawn anew in every pass."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        sizes = (
            torch.randint(1, 5, (self.count,)).tolist()
            if self.count
            else [1] * int(torch.randint(2, 9, (1,)))
        )
        for size in sizes:
            yield torch.randn(size, 2), torch.randn(size, 1)


class Padded:
    """Sequences as long as the longest of their batch."""

    def __iter__(self):
        for _ in range(3):
            yield torch.randn(4, int(torch.randint(2, 9, (1,)))), torch.randn(4, 1)


@pytest.mark.parametrize("loader", [Ragged(4), Ragged(0), Padded()])
def test_passes_that_do_not_match_are_refused_with_their_shapes(loader):
    source = intake(loader, num_data=10)
    with pytest.raises(
        DataError,
        match=r"take a batch of the same shape each, and here one has \[.* and another \[",
    ):
        list(own_batches(source, [generator(seed, "order", 0) for seed in range(6)], None))
