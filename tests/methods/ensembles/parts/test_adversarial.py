import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo.models import make_model
from zoo.networks import make

from credo import BNN
from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.data import intake
from credo.likelihoods import Gaussian
from credo.methods.ensembles.parts.adversarial import adversarial_steps, neighbours

DOUBLE = torch.float64


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def test_neighbours_are_a_step_along_the_sign_of_the_slope():
    x, slope = {"a": torch.zeros(3), "n": torch.arange(2)}, {"a": torch.tensor([2.0, -0.1, 0.0])}
    moved = neighbours(x, slope | {"n": x["n"]}, {"a": torch.full((3,), 0.5), "n": x["n"]})
    assert moved["a"].tolist() == [0.5, -0.5, 0.0] and torch.equal(moved["n"], x["n"])
    assert (
        adversarial_steps(make_model(make("mlp")[0]), intake((draw(4, 5), draw(4, 2))), 0) is None
    )


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Embedding(5, 2)

    def forward(self, left, words, mask):
        return self.a(left) + self.b(words) * mask.unsqueeze(-1)


def mixed():
    with isolated(0):
        net = Mixed().double()
    x = {"left": draw(12, 3), "words": torch.arange(12) % 5, "mask": torch.arange(12) % 2 == 0}
    return net, (x, draw(12, 2, seed=1))


def test_only_real_inputs_have_neighbours():
    net, (x, y) = mixed()
    far = adversarial_steps(make_model(net), intake((x, y)), 0.1)
    assert torch.allclose(far["left"], 0.1 * (x["left"].amax(0) - x["left"].amin(0)))
    fits = [
        BNN(net, Gaussian(std=1.0)).fit(
            (x, y),
            "deep_ensemble",
            num_members=2,
            adversarial=share,
            optimizer="sgd",
            epochs=5,
            lr=0.1,
            progress=False,
        )
        for share in (0.0, 0.2)
    ]
    weights = [each.posterior.realise([0], 0)["a.weight"] for each in fits]
    assert not torch.allclose(*weights) and torch.isfinite(weights[1]).all()


def test_whole_inputs_are_refused_by_name():
    net, _ = make("embedding")
    x = torch.arange(12).reshape(12, 1).expand(12, 6) % 7
    with pytest.raises(
        SettingError, match=r"adversarial=0\.1: neighbours of inputs need real numbers"
    ):
        BNN(net, Gaussian(std=1.0)).fit(
            (x, draw(12, 2)), "deep_ensemble", num_members=2, adversarial=0.1, progress=False
        )


def test_the_range_of_every_feature_is_that_of_the_data():
    model = make_model(make("mlp")[0], likelihood=Gaussian(std=0.5))
    x = torch.cat(
        [draw(9000, 2), 100 * draw(9000, 1, seed=1)], 1
    )  # more than are looked at in one go
    wanted = 0.01 * (x.amax(0) - x.amin(0))
    assert torch.allclose(adversarial_steps(model, intake((x, x[:, :1])), 0.01), wanted)
    loader = DataLoader(TensorDataset(x, x[:, :1]), batch_size=1000)
    assert torch.allclose(adversarial_steps(model, intake(loader), 0.01), wanted)
    pair = adversarial_steps(model, intake(((x, x[:, 0]), x[:, :1])), 0.5)
    assert pair[0].shape == (3,) and pair[1].shape == ()


def test_neighbours_make_predictions_smoother():
    """The slope of a fitted curve at its data, with neighbours a tenth of the range away and
    without.
    """
    x = torch.linspace(-1, 1, 12, dtype=DOUBLE).unsqueeze(1)
    y = torch.sin(6 * x) + 0.3 * draw(12, 1)
    slopes = []
    for share in (0.0, 0.2):
        with isolated(0):
            net = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1)).double()
        how = {"epochs": 300, "lr": 0.02, "batch_size": 12, "progress": False}
        fitted = BNN(net, Gaussian(std=0.1)).fit(
            (x, y), "deep_ensemble", num_members=3, adversarial=share, **how
        )
        grid = torch.linspace(-1, 1, 200, dtype=DOUBLE).unsqueeze(1)
        slopes.append(float(fitted.predict(grid).mean.diff(dim=0).abs().sum()))
    assert slopes[1] < 0.9 * slopes[0]
