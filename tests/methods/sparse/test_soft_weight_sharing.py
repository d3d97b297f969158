"""Soft weight sharing as a user meets it: few values, many zeros, and the mixture that made
them.
"""

import pytest
import torch
from torch import nn

import credo
from credo import BNN
from credo.core.errors import SettingError
from credo.core.seeds import generator, isolated
from credo.likelihoods import Gaussian
from credo.methods import methods
from credo.posteriors import Delta
from credo.priors import ZeroMixture

TRUTH = torch.tensor(
    [[0.5, 0.5, -0.8, 0.0, 0.0, 0.0, 0.5, -0.8], [0.0, -0.8, 0.0, 0.5, 0.0, 0.5, 0.0, 0.0]]
).double()


@pytest.fixture(scope="module")
def data():
    """Sixteen weights of three values: half of them zero."""
    x = torch.randn(400, 8, generator=generator("x"), dtype=torch.float64)
    return x, x @ TRUTH.T + 0.3 * torch.randn(400, 2, generator=generator("y"), dtype=torch.float64)


def start(data):
    with isolated(0):
        net = nn.Linear(8, 2).double()
    return BNN(net, Gaussian(std=0.3)).fit(
        data, "mle", epochs=300, batch_size=400, lr=0.02, progress=False
    )


def share(data, **how):
    bnn = start(data)
    settings = {
        "epochs": 500,
        "batch_size": 400,
        "lr": 0.01,
        "num_components": 4,
        "share": 0.5,
        "progress": False,
    } | how
    return BNN(bnn.net, Gaussian(std=0.3)).fit(
        data, "soft_weight_sharing", init=bnn.posterior.mean(), **settings
    )


@pytest.fixture(scope="module")
def fitted(data):
    return share(data)


def test_weights_end_at_the_values_they_share_and_zeros_are_exact(fitted):
    """Each value is the average of several weights whose standard errors are 0.3 / sqrt(400): five
    of those.
    """
    weight = fitted.posterior.mean()["weight"]
    assert torch.equal(weight == 0, TRUTH == 0)
    assert len(weight.unique()) == 3
    assert float((weight - TRUTH).abs().max()) < 5 * 0.3 / 400**0.5
    assert all(isinstance(member, Delta) for member in fitted.posterior.factors)


def test_the_mixture_is_reachable_and_is_the_codebook(fitted):
    mixture = fitted.model.prior.at(fitted.model.random["weight"])
    assert isinstance(
        mixture, ZeroMixture
    ) and mixture.loc.shape == mixture.scale.shape == mixture.weights.shape == (5,)
    weight = fitted.posterior.mean()["weight"]
    assert set(weight.unique().tolist()) <= set(mixture.loc.tolist())
    assert torch.equal(mixture.collapse(weight), weight) and float(
        mixture.weights[0].detach()
    ) == pytest.approx(0.5)


def test_without_quantising_weights_are_near_their_values_and_not_on_them(data, fitted):
    loose = share(data, quantise=False)
    weight = loose.posterior.mean()["weight"]
    assert len(weight.unique()) == 16
    collapsed = loose.model.prior.at(loose.model.random["weight"]).collapse(weight).detach()
    assert torch.equal(collapsed, fitted.posterior.mean()["weight"])
    assert float((weight - collapsed).abs().max()) < 5 * 0.02, (
        "deviations of the components are near their hyperprior's, 0.02"
    )


def test_sharing_costs_little(data, fitted):
    ours, free = (float(bnn.evaluate(data)["rmse"]) for bnn in (fitted, start(data)))
    assert ours < free * (1 + 5 * 16 / (2 * 400)), (
        "sixteen free weights fit sixteen parts in eight hundred better, within five times"
    )


def test_saved_with_its_mixture(fitted, data, tmp_path):
    fitted.save(tmp_path / "model")
    with isolated(3):
        again = credo.load(tmp_path / "model", nn.Linear(8, 2).double())
    assert torch.equal(again.predict(data[0]).outputs, fitted.predict(data[0]).outputs)
    ours, theirs = (bnn.model.prior.at(bnn.model.random["weight"]) for bnn in (fitted, again))
    for name in ("loc", "scale", "weights"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize("per", ["global", "layer", "tensor"])
def test_mixtures_by_layer_and_networks_of_all_kinds(per):
    with isolated(0):
        nets = [
            (credo.nets.mlp(5, (6,), 2), torch.randn(8, 5)),
            (
                nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2)),
                torch.randn(8, 1, 3, 3),
            ),
            (
                credo.nets.lstm_classifier(vocab=5, hidden=4, outputs=2, width=3),
                torch.randint(0, 5, (8, 4)),
            ),
        ]
    for net, x in nets:
        bnn = BNN(net, "categorical").fit(
            (x, torch.arange(8) % 2), "soft_weight_sharing", epochs=2, per=per, progress=False
        )
        books = {
            name: set(bnn.model.prior.at(site).loc.tolist())
            for name, site in bnn.model.random.items()
        }
        assert all(
            set(bnn.posterior.mean()[name].unique().tolist()) <= books[name] for name in books
        )
        assert all(len(net.get_parameter(name).shape) > 1 for name in books), (
            "biases and scales are points"
        )


def test_a_network_of_zeros_has_a_range_too():
    net = nn.Linear(3, 2)
    nn.init.zeros_(net.weight)
    bnn = BNN(net).fit(
        (torch.eye(3), torch.tensor([0, 1, 0])), "soft_weight_sharing", epochs=1, progress=False
    )
    assert not bnn.posterior.mean()["weight"].any()


def test_the_mixture_learns_at_its_own_pace(data):
    slow, fast = (
        share(data, epochs=3, mixture_lr=pace).model.prior.values() for pace in (1e-6, 3.0)
    )
    (first,), (second,) = slow.values(), fast.values()
    begun = methods["soft_weight_sharing"](
        num_components=4, share=0.5, init=start(data).posterior.mean()
    )
    assert not torch.allclose(first["free"], second["free"], atol=1e-3) and begun.mixture_lr == 1.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"share": 1.0}, "share=1"),
        ({"num_components": 0}, "num_components=0"),
        ({"per": "unit"}, "per='unit'"),
    ],
)
def test_settings_out_of_range(settings, words):
    with pytest.raises(SettingError, match=f"soft_weight_sharing: {words}"):
        methods["soft_weight_sharing"](**settings)
