import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import credo
from credo.compress import Pruned, fine_tune, prune, pruned_of, quantise, score, shrink, tune_books
from credo.compress.quantised import Coded

X = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
Y = ((X[:, 0] + X[:, 1]) > 0).long()
DATA = (X, Y)


@pytest.fixture(scope="module")
def bnn():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    return credo.BNN(net, "categorical").fit(
        DATA, "vi", epochs=30, batch_size=50, lr=1e-2, progress=False
    )


def test_fine_tuning_keeps_zeros_and_lowers_the_nll(bnn):
    before = prune(bnn, share=0.7)
    after = fine_tune(before, bnn, DATA, epochs=10, batch_size=50)
    assert score(after.net, bnn, DATA)["nll"] < score(before.net, bnn, DATA)["nll"]
    for name, mask in before.masks.items():
        assert not dict(after.net.named_parameters())[name][~mask].any()
    assert not after.net.training and not torch.equal(
        after.net[1].running_mean, before.net[1].running_mean
    )
    assert torch.equal(before.net[3].weight, prune(bnn, share=0.7).net[3].weight), (
        "what was given is left alone"
    )


def test_the_same_seed_gives_the_same_network(bnn):
    before = prune(bnn, share=0.5)
    first, second = (fine_tune(before, bnn, DATA, epochs=2, seed=3) for _ in range(2))
    other = fine_tune(before, bnn, DATA, epochs=2, seed=4)
    weights = [n.net[0].weight for n in (first, second, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_no_epochs_change_nothing(bnn):
    before = prune(bnn, share=0.5)
    assert torch.equal(fine_tune(before, bnn, DATA, epochs=0).net[0].weight, before.net[0].weight)


def test_rounds_leave_as_many_weights_as_asked_for(bnn):
    start = prune(bnn, share=0.2)
    rounds = list(shrink(start, bnn, DATA, [30, 30, 12], epochs=2, batch_size=50))
    assert [sum(int(m.sum()) for m in found.masks.values()) for found in rounds] == [30, 30, 12]
    assert all(
        bool((~start.masks[n] & rounds[0].masks[n]).logical_not().all()) for n in start.masks
    ), "what is gone stays gone"
    assert [
        sum(int(dict(found.net.named_parameters())[n].count_nonzero()) for n in found.masks)
        for found in rounds
    ] == [30, 30, 12]
    assert score(rounds[1].net, bnn, DATA)["nll"] < score(rounds[0].net, bnn, DATA)["nll"], (
        "the second round trains on"
    )


def test_the_first_to_go_stand_out_least_from_the_noise():
    net = nn.Linear(4, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[4.0, -3.0, 2.0, 1.0]]))
    bnn, std = credo.BNN(net, "gaussian"), {"weight": torch.tensor([[8.0, 1.0, 1.0, 0.1]])}
    given = Pruned(net, {"weight": torch.tensor([[True, True, True, True]])}, std, "own", None)
    data = (torch.zeros(4, 4), torch.zeros(4, 1))
    assert [
        r.masks["weight"].int().tolist()[0] for r in shrink(given, bnn, data, [3, 1], epochs=0)
    ] == [[0, 1, 1, 1], [0, 0, 0, 1]]
    plain = Pruned(net, given.masks, {}, "own", None)
    assert [
        r.masks["weight"].int().tolist()[0] for r in shrink(plain, bnn, data, [3, 1], epochs=0)
    ] == [[1, 1, 1, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("counts", [[], [0], [2.5], "12", 5])
def test_counts_are_whole_numbers(bnn, counts):
    with pytest.raises(credo.CredoError, match="counts"):
        list(shrink(prune(bnn, share=0.5), bnn, DATA, counts))


def test_books_move_and_codes_do_not(bnn):
    pruned = prune(bnn, share=0.5)
    codes = quantise(pruned, levels=3)
    tuned = tune_books(codes, pruned.net, bnn, DATA, epochs=10, batch_size=50, lr=1e-2)
    assert (
        score(tuned.fill(pruned.net), bnn, DATA)["nll"]
        < score(codes.fill(pruned.net), bnn, DATA)["nll"]
    )
    for name in pruned.masks:
        old, new = codes[name], tuned[name]
        assert isinstance(old, Coded) and isinstance(new, Coded) and len(new.book) <= len(old.book)
        assert torch.equal(old.codes == 0, new.codes == 0)
        half = new.book.to(torch.float16)
        assert torch.equal(half.float(), new.book), "each is a number that few bits store"


def test_a_network_without_values_stays_as_it_is():
    net = nn.Linear(4, 2, bias=False)
    nn.init.zeros_(net.weight)
    codes = quantise(pruned_of(net), levels=3)
    assert tune_books(codes, net, credo.BNN(net), DATA) is codes


def test_networks_of_other_types_and_loaders():
    """Zeros stay and each step lowers the nll: of a double network with tied and frozen weights and
    several outputs, from a loader.
    """

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            self.two.weight = self.one.weight
            self.head.bias.requires_grad_(False)

        def forward(self, x):
            return {"y": self.head(self.two(torch.relu(self.one(x))))}

    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(X.double(), Y), batch_size=50)
    given = credo.BNN(Tied().double(), "categorical", output="y").fit(
        loader, "vi", epochs=5, lr=1e-2, progress=False
    )
    before = prune(given, share=0.5)
    after = fine_tune(before, given, loader, epochs=5, lr=1e-2)
    codes = quantise(after, levels=3)
    tuned = tune_books(codes, after.net, given, loader, epochs=5, lr=1e-2)
    nets = before.net, after.net, codes.fill(after.net), tuned.fill(after.net)
    nll = [score(net, given, loader)["nll"] for net in nets]
    assert nll[1] < nll[0] and nll[3] < nll[2]
    assert all(p.dtype == torch.float64 for net in nets for p in net.parameters())
    for name, mask in before.masks.items():
        assert not any(dict(net.named_parameters())[name][~mask].any() for net in nets)
