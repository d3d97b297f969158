"""The two bounds on what a code says; z-tests as in ``zoo.stats``."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence
from zoo.stats import Z

import credo
from credo import BNN
from credo.core.errors import CredoError, DataError, SettingError
from credo.likelihoods import Gaussian
from credo.nets import Bottleneck
from credo.tasks import information as module
from credo.tasks.information import entropy, information

X = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()


def network(outputs=3, *, deep=False):
    torch.manual_seed(0)
    more = [Bottleneck(3, 3)] if deep else []
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Bottleneck(8, 3), *more, nn.Linear(3, outputs))


def fitted(net=None, y=Y, likelihood="categorical", method="vib", **how):
    return BNN(network() if net is None else net, likelihood).fit(
        (X, y), method, epochs=10, lr=0.02, progress=False, **how
    )


def inside(bnn, net):
    net.load_state_dict(bnn.posterior.mean())
    return net.eval()


def test_the_rate_is_the_mean_divergence_of_the_code():
    bnn = fitted()
    net = inside(bnn, network())
    with torch.no_grad():
        mean, std = net[2].encode(net[:2](X))
        each = kl_divergence(
            Independent(Normal(mean, std), 1), Independent(Normal(0 * mean, 1 + 0 * std), 1)
        )
    assert information(bnn, (X, Y), samples=3)["rate"] == pytest.approx(
        float(each.mean()), rel=1e-5
    )


def test_the_distortion_is_the_expected_nll_over_codes():
    bnn, draws = fitted(), 4000
    net = inside(bnn, network())
    net[2].training = True
    with torch.no_grad():
        nll = torch.stack([nn.functional.cross_entropy(net(X), Y) for _ in range(draws)])
    ours = information(bnn, (X, Y), samples=draws)
    error = float(nll.std()) * math.sqrt(2 / draws)
    assert abs(ours["distortion"] - float(nll.mean())) < Z * error
    assert ours["lower"] == pytest.approx(entropy(Y) - ours["distortion"])
    assert ours["distortion"] >= bnn.evaluate((X, Y), 400)["nll"] - Z * error  # Jensen
    assert ours["lower"] <= ours["rate"] + Z * error  # nothing is told that is not kept


def test_rows_come_in_slices_without_changing_the_rate(monkeypatch):
    bnn = fitted()
    whole = information(bnn, (X, Y), samples=50)
    monkeypatch.setattr(module, "ROWS", 7)
    parts = information(bnn, (X, Y), samples=50)
    assert (
        parts["rate"] == pytest.approx(whole["rate"], rel=1e-6)
        and parts["distortion"] != whole["distortion"]
    )
    assert (
        parts
        == information(bnn, (X, Y), samples=50)
        != information(bnn, (X, Y), samples=50, seed=1)
    )


def test_rates_of_several_bottlenecks_add_up():
    """The second's code depends on what the first has drawn: an average over draws, too."""
    bnn, draws = fitted(network(deep=True)), 3000
    net = inside(bnn, network(deep=True))
    net[2].training = net[3].training = True
    totals = []
    with torch.no_grad():
        for _ in range(draws):
            net(X)
            totals.append((net[2].kl + net[3].kl).mean())
    totals = torch.stack(totals)
    ours = information(bnn, (X, Y), samples=draws)["rate"]
    assert abs(ours - float(totals.mean())) < Z * float(totals.std()) * math.sqrt(2 / draws)


def test_several_labels_are_one_of_a_larger_set():
    labels = torch.stack([Y > 0, Y > 1], 1).float()
    bnn = fitted(network(2), labels, "bernoulli")
    found = information(bnn, (X, labels))
    assert found["lower"] == pytest.approx(entropy(labels) - found["distortion"]) and entropy(
        labels
    ) == pytest.approx(entropy(Y))


def test_values_have_no_lower_bound():
    values = X[:, :1] + 0.1
    assert set(information(fitted(network(1), values, Gaussian(std=0.5)), (X, values))) == {
        "rate",
        "distortion",
    }
    from credo.likelihoods import Bernoulli

    grey = torch.sigmoid(values)
    assert set(information(fitted(network(1), grey, Bernoulli(grey=True)), (X, grey))) == {
        "rate",
        "distortion",
    }


def test_entropy_of_shares():
    assert entropy(torch.tensor([0, 1, 2, 3])) == pytest.approx(math.log(4))
    assert entropy(torch.tensor([1, 1, 1])) == 0.0
    assert entropy(torch.tensor([0, 0, 0, 1])) == pytest.approx(
        -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    )


def test_any_method_that_draws_the_code_will_do():
    assert information(fitted(method="stochastic"), (X, Y))["rate"] > 0


def test_models_without_a_noisy_code_are_refused():
    with pytest.raises(
        CredoError, match="a network with a credo.nets.Bottleneck.*this one has none"
    ):
        information(fitted(credo.nets.mlp(4, (5,), 3), method="mle"), (X, Y))
    with pytest.raises(
        CredoError, match="draw no code at the Bottleneck '2' .fitted with mle.; fit with 'vib'"
    ):
        information(fitted(method="mle"), (X, Y))
    with pytest.raises(CredoError, match="no posterior yet"):
        information(BNN(network()), (X, Y))


def test_bad_arguments_are_named():
    bnn = fitted()
    with pytest.raises(SettingError, match="samples=0"):
        information(bnn, (X, Y), samples=0)
    with pytest.raises(SettingError, match="seed=0.5"):
        information(bnn, (X, Y), seed=0.5)
    with pytest.raises(DataError):
        information(bnn, (X, Y[:-1]))
