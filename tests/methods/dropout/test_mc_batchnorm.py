"""Statistics of training batches as posterior, as a user meets them."""

import itertools

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset
from zoo.classification import classes

import credo
from credo import BNN
from credo.core.errors import CredoError, NetworkError
from credo.likelihoods import Gaussian


def network(**how):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 4), nn.BatchNorm1d(4, **how), nn.Tanh(), nn.Linear(4, 1)
    ).double()


def data(n=6):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return x, torch.sin(x[:, :1])


def fit(net, batch, batch_size=3, **how):
    settings = {"epochs": 2, "lr": 0.01, "num_batches": 30, "progress": False} | how
    return BNN(net, Gaussian(std=0.3), prior=Normal(0.0, 1.0)).fit(
        batch, "mc_batchnorm", batch_size=batch_size, **settings
    )


def subsets(fitted, x, size):
    """Mean and biased variance of the normalised layer's inputs over every batch of ``size``
    examples ``(C, 8)``.
    """
    w = fitted.posterior.mean()
    h = (x @ w["0.weight"].T + w["0.bias"]).detach()
    rows = [h[list(c)] for c in itertools.combinations(range(len(x)), size)]
    return torch.stack([torch.cat([r.mean(0), r.var(0, correction=0)]) for r in rows])


def test_draws_are_statistics_of_batches_as_training_computes_them():
    """Every one is that of one of the 20 batches of three among six examples, with the variance
    divided by three, not by two.
    """
    x, y = data()
    fitted = fit(network(), (x, y))
    assert fitted.posterior.atoms == 30
    draws = fitted.posterior.realise(range(30), 0)
    found = torch.cat([draws["1.running_mean"], draws["1.running_var"]], 1)
    known = subsets(fitted, x, 3)
    distance = (found.unsqueeze(1) - known).abs().amax(-1)
    assert float(distance.amin(1).max()) < 1e-10
    assert len(distance.argmin(1).unique()) > 8, "batches differ from epoch to epoch"


def test_a_draw_is_the_network_normalised_by_one_batch():
    x, y = data()
    fitted = fit(network(), (x, y))
    outputs, w = fitted.predict(x, 30).outputs, fitted.posterior.mean()
    draws = fitted.posterior.realise(range(30), 0)
    h = x @ w["0.weight"].T + w["0.bias"]
    scaled = (h - draws["1.running_mean"].unsqueeze(1)) / (
        draws["1.running_var"].unsqueeze(1) + 1e-5
    ).sqrt()
    expected = torch.tanh(scaled * w["1.weight"] + w["1.bias"]) @ w["3.weight"].T + w["3.bias"]
    assert torch.allclose(outputs, expected, atol=1e-10)
    assert torch.equal(fitted.predict(x, 10).outputs, outputs[::3]), "fewer draws are spread evenly"


def test_deeper_layers_see_what_the_batch_made_of_the_layers_before():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(2, 3),
        nn.BatchNorm1d(3),
        nn.ReLU(),
        nn.Linear(3, 3),
        nn.BatchNorm1d(3),
        nn.Linear(3, 1),
    ).double()
    x, y = data()
    fitted = fit(net, (x, y), batch_size=6, num_batches=2)  # one batch: all the data
    w = fitted.posterior.mean()
    h = x @ w["0.weight"].T + w["0.bias"]
    h = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt() * w["1.weight"] + w["1.bias"]
    h = torch.relu(h) @ w["3.weight"].T + w["3.bias"]
    assert torch.allclose(
        fitted.posterior.realise([0], 0)["4.running_mean"][0], h.mean(0), atol=1e-10
    )
    assert torch.allclose(
        fitted.posterior.realise([0], 0)["4.running_var"][0], h.var(0, correction=0), atol=1e-10
    )


def test_images_are_normalised_over_their_pixels():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 1)
    ).double()
    x, y = torch.randn(6, 1, 4, 4, dtype=torch.float64), data()[1]
    fitted = fit(net, (x, y), batch_size=6, num_batches=2)
    w = fitted.posterior.mean()
    h = torch.nn.functional.conv2d(x, w["0.weight"], w["0.bias"]).transpose(0, 1).flatten(1)
    assert torch.allclose(
        fitted.posterior.realise([0], 0)["1.running_var"][0], h.var(1, correction=0), atol=1e-10
    )


def test_the_last_smaller_batch_is_left_out():
    """Eight examples in batches of three: statistics of the last two have another spread."""
    x, y = data(8)
    fitted = fit(network(), (x, y), num_batches=15)
    found = torch.cat(
        [fitted.posterior.realise(range(15), 0)[k] for k in ("1.running_mean", "1.running_var")], 1
    )
    known = subsets(fitted, x, 3)
    assert float((found.unsqueeze(1) - known).abs().amax(-1).amin(1).max()) < 1e-10


def test_larger_batches_have_less_spread():
    x, y = data(200)
    spread = [
        float(
            fit(network(), (x, y), batch_size=size, epochs=1).predict(x, 30).outputs.std(0).mean()
        )
        for size in (4, 100)
    ]
    assert spread[1] < 0.5 * spread[0]


@pytest.mark.timeout(10)
@pytest.mark.parametrize(("size", "batch_size"), [(2, None), (4, None), (2, 4)])
def test_a_loader_with_batches_of_its_own(size, batch_size):
    """Whatever ``batch_size`` says, a loader's batches are those that the network was trained
    on.
    """
    x, y = data(8)
    fitted = fit(
        network(),
        DataLoader(TensorDataset(x, y), size, shuffle=True),
        batch_size=batch_size,
        num_batches=10,
    )
    found = torch.cat(
        [fitted.posterior.realise(range(10), 0)[k] for k in ("1.running_mean", "1.running_var")], 1
    )
    assert (
        float((found.unsqueeze(1) - subsets(fitted, x, size)).abs().amax(-1).amin(1).max()) < 1e-10
    )


def test_a_network_without_statistics_is_refused():
    x, y = data()
    for net in (nn.Linear(2, 1).double(), network(track_running_stats=False)):
        with pytest.raises(
            NetworkError,
            match="needs a network with BatchNorm layers that keep running statistics; this one "
            "has none",
        ):
            fit(net, (x, y))


def test_the_mean_shortcut_normalises_by_average_statistics_and_models_are_saved(tmp_path):
    x, y = data()
    net = network()
    fitted = fit(net, (x, y))
    mean = fitted.predict(x, shortcut="mean").outputs
    assert mean.shape == (1, 6, 1) and torch.isfinite(mean).all()
    fitted.save(tmp_path / "model")
    again = credo.load(tmp_path / "model", net)
    assert torch.equal(again.predict(x, 30).outputs, fitted.predict(x, 30).outputs)
    assert int(net[1].num_batches_tracked) == 0, "the user's network is as it was"


def test_other_noise_is_off_while_statistics_are_recorded():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(2, 4), nn.Dropout(0.9), nn.BatchNorm1d(4), nn.Linear(4, 1)
    ).double()
    x, y = data()
    draws = fit(net, (x, y), batch_size=6, num_batches=5).posterior.realise(range(5), 0)[
        "2.running_mean"
    ]
    assert torch.allclose(draws, draws[:1].expand_as(draws))


def test_labels_and_epochs_that_end_early():
    x, y = classes()
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    model = BNN(net).fit(
        (x, y),
        "mc_batchnorm",
        epochs=3,
        batch_size=16,
        num_batches=8,
        progress=False,
        callbacks=[lambda row: True],
    )
    assert (
        len(model.history) == 1
        and model.predict(x).probs.shape == (8, 60, 3)
        and model.posterior.atoms == 8
    )


def test_more_data_cannot_be_learned_from_this_posterior():
    x, y = data()
    with pytest.raises(CredoError):
        fit(network(), (x, y)).update((x, y), epochs=1, progress=False)


def test_a_layer_used_twice_is_refused():
    """Its two uses have statistics of their own, of which the network can hold one."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)

        def forward(self, x):
            return self.norm(self.layer(self.norm(x)))[:, :1]

    x, y = data()
    with pytest.raises(NetworkError, match="norm"):
        fit(Twice().double(), (x, y), num_batches=4)
