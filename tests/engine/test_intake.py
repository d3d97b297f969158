import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from zoo.models import make_model
from zoo.networks import make

from credo.core.errors import DataError
from credo.data import intake
from credo.engine.intake import on_device


def pair(bad=False):
    net, x = make("mlp")
    y = (torch.arange(len(x)) % 2).double()  # labels as a table gives them
    return make_model(net, likelihood="categorical"), x, y - 3 if bad else y


@pytest.mark.parametrize("loader", [False, True])
def test_targets_come_as_the_likelihood_wants_them(loader):
    model, x, y = pair()
    data = DataLoader(TensorDataset(x, y), batch_size=2) if loader else (x, y)
    source = on_device(intake(data), model)
    batches = list(source(None, 2))
    assert source.num_data == len(x) and all(b.dtype == torch.int64 for _, b in batches)
    assert torch.equal(torch.cat([b for _, b in batches]), y.long())
    assert (source.arrays() is None) == loader


@pytest.mark.parametrize("loader", [False, True])
def test_bad_targets_are_refused(loader):
    model, x, y = pair(bad=True)
    data = DataLoader(TensorDataset(x, y), batch_size=2) if loader else (x, y)
    with pytest.raises(DataError):
        list(on_device(intake(data), model)(None, 2))
