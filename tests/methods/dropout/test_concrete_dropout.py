"""Learned drop rates as a user meets them."""

import json

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.dropout import NETWORKS, make

import credo
from credo import BNN
from credo.core.errors import SettingError
from credo.core.seeds import generator
from credo.likelihoods import Gaussian

GRADIENTS = ["concrete", "reinforce", "arm"]


def regression(n, outputs=2):
    x = torch.randn(n, 5, generator=generator("x"), dtype=torch.float64)
    y = torch.tanh(x[:, :outputs] - x[:, 2 : 2 + outputs]) + 0.1 * torch.randn(
        n, outputs, generator=generator("y"), dtype=torch.float64
    )
    return x, y


def fit(net, data, std=0.3, **how):
    settings = {"epochs": 3, "lr": 0.01, "progress": False} | how
    return BNN(net, Gaussian(std=std), prior=Normal(0.0, 1.0)).fit(
        data, "concrete_dropout", **settings
    )


def rates(fitted):
    return {
        key.removeprefix("rate/"): value
        for key, value in fitted.history[-1].items()
        if key.startswith("rate/")
    }


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_more_data_make_the_rate_smaller(gradient):
    """Every rate starts at 0.3: with hardly any data the masks' entropy wins, with many the data
    do.
    """
    found = []
    for n in (4, 2000):
        net, _ = make("dense")
        fitted = fit(
            net,
            regression(n),
            epochs=200 if n == 4 else 20,
            batch_size=100,
            gradient=gradient,
            std=1.0 if n == 4 else 0.3,
        )
        found.append(rates(fitted)["2.mask0"])
    assert found[0] > 0.3 > found[1], found


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("per", ["layer", "unit"])
@pytest.mark.parametrize("estimator", ["local", "weights"])
def test_all_settings_go_together_and_are_saved(estimator, per, gradient, tmp_path):
    net, _ = make("image")
    x, y = torch.randn(8, 2, 6, 6, dtype=torch.float64), regression(8)[1]
    fitted = fit(net, (x, y), per=per, gradient=gradient, estimator=estimator, temperature=0.2)
    assert set(rates(fitted)) == {"2.mask0", "5.mask0"} and all(
        value != 0.3 for value in rates(fitted).values()
    )
    outputs = fitted.predict(x, 10).outputs
    fitted.save(tmp_path / "model")
    again = credo.load(tmp_path / "model", net)
    assert torch.equal(again.predict(x, 10).outputs, outputs) and again.history == json.loads(
        json.dumps(fitted.history)
    )
    assert again.method.per == per and again.method.temperature == 0.2
    shapes = [tuple(dial.shape) for dial in again.posterior.factors[0].rate_params()]
    assert shapes == ([(1, 6, 1, 1), (1, 4, 1, 1)] if per == "unit" else [(), ()])


@pytest.mark.parametrize("name", sorted(NETWORKS.keys() - {"functional"}))
def test_every_network_fits_and_predicts_with_spread(name):
    net, x = make(name)
    fitted = fit(net, (x, regression(3)[1]))
    assert rates(fitted) and float(fitted.predict(x, 20).outputs.std(0).min()) > 0


def test_predictions_use_hard_masks():
    net, x = make("dense")
    fitted = fit(net, (x, regression(3)[1]), temperature=2.0)
    keep = 1 - rates(fitted)["2.mask0"]
    seen = []
    fitted.predict(x, 1)
    fitted.model.shell().module[2].register_forward_hook(
        lambda m, args, out: seen.append(out / args[0])
    )
    fitted.predict(x, 40, vectorise=False)
    kept = torch.stack(seen) * keep
    assert torch.allclose(kept, kept.round(), atol=1e-5) and set(
        kept.round().unique().tolist()
    ) == {0.0, 1.0}


def test_rates_that_are_given_are_where_learning_starts():
    net, x = make("image")
    fitted = fit(net, (x, regression(3)[1]), epochs=1, lr=1e-9, p={"2": 0.05})
    assert rates(fitted) == {
        "2.mask0": pytest.approx(0.05, abs=1e-4),
        "5.mask0": pytest.approx(0.3, abs=1e-4),
    }


def test_rates_of_a_plain_network_are_watched_by_weight():
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    assert set(rates(fit(net, regression(8)))) == {"2.weight"}
    assert set(rates(fit(net, regression(8), layers="all"))) == {"0.weight", "2.weight"}


def test_irrelevant_inputs_are_dropped_more_often():
    """One rate per input unit of a linear layer: y depends on the first of five."""
    x = torch.randn(300, 5, generator=generator("x"), dtype=torch.float64)
    y = 2 * x[:, :1] + 0.1 * torch.randn(300, 1, generator=generator("y"), dtype=torch.float64)
    net = nn.Linear(5, 1).double()
    fitted = fit(
        net,
        (x, y),
        per="unit",
        layers="all",
        epochs=150,
        lr=0.02,
        batch_size=300,
        gradient="arm",
        std=0.3,
    )
    found = fitted.posterior.factors[0].rate("weight")
    assert float(found[0]) < 0.02 and float(found[1:].min()) > 5 * float(found[0])


def test_rates_move_at_their_own_pace():
    net, x = make("dense")
    moved = [
        abs(
            rates(fit(net, (x, regression(3)[1]), epochs=5, lr=1e-3, rate_lr=pace))["2.mask0"] - 0.3
        )
        for pace in (1.0, 10.0)
    ]
    assert moved[1] > 4 * moved[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"per": "weight"}, "per='weight'"),
        ({"gradient": "straight"}, "gradient='straight'"),
        ({"temperature": 0.0}, "temperature=0"),
        ({"estimator": "flipout"}, "estimator='flipout'"),
        (
            {"gradient": "arm", "estimator": "per_example"},
            "gradient='arm' goes with estimator='local' or 'weights'",
        ),
    ],
)
def test_refusals(settings, words):
    net, x = make("dense")
    with pytest.raises(SettingError, match=words):
        fit(net, (x, regression(3)[1]), **settings)
