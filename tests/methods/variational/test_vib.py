"""The variational information bottleneck, as a user meets it; z-tests as in ``zoo.stats``."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.stats import same_mean, same_variance

import credo
from credo import BNN
from credo.core.errors import CredoError, NetworkError, SettingError
from credo.likelihoods import Gaussian
from credo.nets import Bottleneck
from credo.priors import Flat
from credo.tasks.information import information

SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=SOURCE)
Y = (X[:, 0] > 0.4).long() + (X[:, 1] > 0.4).long()


def classifier(drop=0.0):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 16), nn.Tanh(), nn.Dropout(drop), Bottleneck(16, 3), nn.Linear(3, 3)
    )


def fit(net=None, **how):
    settings = {"epochs": 5, "lr": 0.01, "batch_size": 20, "progress": False} | how
    return BNN(classifier() if net is None else net).fit((X, Y), "vib", **settings)


def test_without_a_price_it_is_maximum_likelihood_with_noise():
    """The very numbers of a fit that knows the bottleneck as noise only."""
    ours = fit(beta=0.0)
    noisy = BNN(classifier(), prior=Flat()).fit(
        (X, Y), "stochastic", modules="3", epochs=5, lr=0.01, batch_size=20, progress=False
    )
    assert all(torch.equal(v, noisy.posterior.mean()[n]) for n, v in ours.posterior.mean().items())
    assert [row["nll"] for row in ours.history] == [row["nll"] for row in noisy.history]


def test_a_high_price_leaves_the_marginal_of_y():
    """Rate to zero, predictions to the labels' shares, up to what descent by a finite number of
    noisy steps leaves.
    """
    bnn = fit(beta=20.0, epochs=400, lr=0.02, batch_size=None)
    shares = Y.bincount() / len(Y)
    assert information(bnn, (X, Y))["rate"] < 1e-3
    assert (bnn.predict(X, 50).mean - shares).abs().max() < 0.03


def test_a_higher_price_buys_less():
    rates = [
        information(fit(beta=beta, epochs=150, lr=0.02), (X, Y))["rate"]
        for beta in (1e-4, 1e-2, 0.1, 1.0)
    ]
    assert rates == sorted(rates, reverse=True) and rates[0] > 4 * rates[2]


SLOPE, NOISE_STD = 1.0, 0.5


@pytest.mark.parametrize("beta", [0.02, 0.1, 0.5, 8.0])
def test_the_rate_of_a_linear_gaussian_code_is_the_optimum(beta):
    """y = a x with x standardised, answers of fixed noise s: the best share of x's variance that
    the code loses is u = min(1, beta s^2 / a^2).

    For a linear code z of x: expected nll = a^2 u / (2 s^2) + const with u = 1 - corr(x, z)^2, and
    I(X; Z) = -log(u) / 2, which the KL to N(0, 1) meets where z has variance 1. Tolerances: what
    noisy steps leave, 1 % of the objective and 0.03 nats.
    """
    x = torch.randn(500, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = (x - x.mean()) / x.std(correction=0)
    torch.manual_seed(0)
    net = nn.Sequential(Bottleneck(1, 1), nn.Linear(1, 1)).double()
    bnn = BNN(net, Gaussian(std=NOISE_STD)).fit(
        (x, SLOPE * x), "vib", beta=beta, epochs=300, lr=0.05, batch_size=None, progress=False
    )
    lost = min(1.0, beta * NOISE_STD**2 / SLOPE**2)
    best = -0.5 * math.log(lost)
    found = information(bnn, (x, SLOPE * x), samples=200)
    constant = 0.5 * math.log(2 * math.pi * NOISE_STD**2)
    objective = found["distortion"] - constant + beta * found["rate"]
    optimum = SLOPE**2 * lost / (2 * NOISE_STD**2) + beta * best
    assert abs(found["rate"] - best) < 0.03
    assert objective == pytest.approx(optimum, rel=0.01)
    with torch.no_grad():  # the code's true information, of Gaussian x: never above the rate
        clone = copy.deepcopy(net)
        clone.load_state_dict(bnn.posterior.mean())
        mean, std = clone[0].encode(x)
        exact = 0.5 * torch.log1p(mean.var(correction=0) / std.square().mean())
    assert found["rate"] >= float(exact) - 1e-3


def test_draws_are_draws_of_the_code_alone():
    """Dropout elsewhere trains the network and is off in predictions."""
    bnn = fit(classifier(drop=0.3), beta=0.01)
    assert bnn.posterior.noisy_modules == {"3"}
    clone = classifier(drop=0.3)
    clone.load_state_dict(bnn.posterior.mean())
    clone.eval()
    clone[3].training = True
    few = X[:3]
    ours = bnn.predict(few, 2000).outputs
    with torch.no_grad():
        truth = torch.stack([clone(few) for _ in range(2000)])
        clone.eval()
        middle = clone(few)
    same_mean(ours, truth)
    same_variance(ours, truth)
    torch.testing.assert_close(bnn.predict(few, shortcut="mean").outputs[0], middle)


def test_the_history_shows_the_rate_in_nats_per_example():
    bnn = fit(beta=0.05, epochs=3)
    for row in bnn.history:
        assert row["kl"] == pytest.approx(60 * row["rate"]) and row["elbo"] == pytest.approx(
            -row["nll"] - row["kl"]
        )


def test_weights_have_no_prior():
    net = classifier()
    means = [
        BNN(net, prior=prior).fit((X, Y), "vib", epochs=2, progress=False).posterior.mean()
        for prior in (None, Normal(0.0, 0.01))
    ]
    assert all(torch.equal(means[0][n], means[1][n]) for n in means[0])


def test_points_beside_the_random_parameters():
    bnn = BNN(classifier(), random="last").fit((X, Y), "vib", epochs=2, progress=False)
    assert [family.name for family in bnn.posterior.factors] == ["stochastic", "delta"]
    assert float(bnn.predict(X[:2], 10).outputs.std(0).min()) > 0


def test_a_network_without_a_bottleneck_is_refused():
    with pytest.raises(
        NetworkError,
        match=r"vib needs a credo.nets.Bottleneck\(in_features, latent_dim\).*this network has "
        r"none",
    ):
        fit(credo.nets.mlp(4, (5,), 3))


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"beta": -0.1}, "beta=-0.1"),
        ({"beta": "high"}, "beta='high'"),
        ({"train_samples": 0}, "train_samples=0"),
    ],
)
def test_bad_settings_are_named(bad, named):
    with pytest.raises(SettingError, match=f"vib: {named} is not valid"):
        fit(**bad)
    with pytest.raises(SettingError, match="no setting 'betta'.*Did you mean 'beta'"):
        fit(betta=1.0)


def test_a_used_network_can_be_started_anew():
    """Fresh values come from a copy, and a bottleneck that has run holds a tensor inside a
    graph.
    """
    net = classifier()
    net(X)
    assert math.isfinite(fit(net, init="random").history[-1]["nll"])


def test_it_saves_and_loads(tmp_path):
    bnn = fit(beta=0.01, train_samples=2)
    bnn.save(tmp_path / "model")
    again = credo.load(tmp_path / "model", classifier())
    assert torch.equal(again.predict(X, 7).outputs, bnn.predict(X, 7).outputs)
    assert again.method == credo.methods.VIB(beta=0.01, train_samples=2)
    assert information(again, (X, Y)) == information(bnn, (X, Y))


def test_a_stopped_run_goes_on_to_the_same_end(tmp_path):
    whole = fit(beta=0.01, epochs=6)

    def interrupt(row):
        if row["epoch"] == 2:
            raise KeyboardInterrupt

    from credo.engine import fit_job

    before, fit_job.CHECKPOINT_SECONDS = fit_job.CHECKPOINT_SECONDS, 0.0
    try:
        with pytest.raises(KeyboardInterrupt):
            fit(beta=0.01, epochs=6, run=tmp_path / "run", callbacks=[interrupt])
    finally:
        fit_job.CHECKPOINT_SECONDS = before
    resumed = fit(beta=0.01, epochs=6, run=tmp_path / "run")
    assert all(
        torch.equal(v, resumed.posterior.mean()[n]) for n, v in whole.posterior.mean().items()
    )
    assert [row["rate"] for row in whole.history] == [row["rate"] for row in resumed.history]


def test_more_data_cannot_be_learned_from_this_posterior():
    with pytest.raises(CredoError, match="'stochastic' has none"):
        fit().update((X, Y), epochs=1, progress=False)
