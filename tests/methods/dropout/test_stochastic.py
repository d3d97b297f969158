"""The network's own noise as posterior, as a user meets it; z-tests as in ``zoo.stats``."""

import copy

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.dropout import NETWORKS, make
from zoo.stats import same_mean, same_variance

import credo
from credo import BNN
from credo.core.errors import CredoError, NetworkError, SettingError
from credo.likelihoods import Gaussian

DRAWS = 1500
Y = torch.tensor([[0.5, -1.0], [1.0, 0.3], [-0.7, 0.1]], dtype=torch.float64)


class Depth(nn.Module):
    """A residual block that is left out at random, for the whole batch."""

    def __init__(self, p=0.4):
        super().__init__()
        self.inner, self.p = nn.Linear(6, 6), p

    def forward(self, x):
        if self.training and float(torch.rand(())) < self.p:
            return x
        return x + torch.tanh(self.inner(x)) * (1.0 if self.training else 1 - self.p)


class Shift(nn.Module):
    """Augmentation inside the network: inputs moved a little in training mode."""

    def forward(self, x):
        return x + 0.3 * torch.randn_like(x) if self.training else x


def deep():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), Depth(), Depth(), nn.Linear(6, 2)).double()


def augmented():
    return nn.Sequential(
        Shift(), nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)
    ).double()


def inputs():
    return torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def fit(net, x, **how):
    settings = {"epochs": 3, "lr": 0.01, "progress": False} | how
    return BNN(net, Gaussian(std=0.5), prior=Normal(0.0, 1.0)).fit((x, Y), "stochastic", **settings)


def in_torch(fitted, net, x, noisy_modules):
    clone = copy.deepcopy(net)
    with torch.no_grad():
        for name, parameter in clone.named_parameters():
            parameter.copy_(fitted.posterior.mean()[name])
        for name, buffer in clone.named_buffers():
            buffer.copy_(fitted.buffers[name])
        clone.eval()
        for path, module in clone.named_modules():
            module.training = noisy_modules(path, module)
        return torch.stack([clone(x) for _ in range(DRAWS)])


def noisy(path, module):
    return not isinstance(module, nn.BatchNorm1d)


@pytest.mark.parametrize("make_net", [deep, augmented])
def test_draws_are_passes_in_training_mode(make_net):
    """But for batch statistics, which are those that training has left."""
    net, x = make_net(), inputs()
    fitted = fit(net, x)
    ours, truth = fitted.predict(x, DRAWS).outputs, in_torch(fitted, net, x, noisy)
    same_mean(ours, truth)
    same_variance(ours, truth)


@pytest.mark.parametrize("name", ["dense", "encoder", "recurrent", "functional"])
def test_dropout_of_any_kind_is_noise_as_it_is(name):
    net, x = make(name)
    fitted = fit(net, x)
    ours, truth = fitted.predict(x, DRAWS).outputs, in_torch(fitted, net, x, noisy)
    same_mean(ours, truth)
    same_variance(ours, truth)


def test_chosen_modules_alone_are_noisy():
    net, x = make("residual")
    fitted = fit(net, x, modules="after")
    ours = fitted.predict(x, DRAWS).outputs
    truth = in_torch(fitted, net, x, lambda path, module: path == "after")
    same_mean(ours, truth)
    same_variance(ours, truth)
    assert fitted.posterior.noisy_modules == {"after"} and fit(
        net, x, modules=("be*", "after")
    ).posterior.noisy_modules == {"before", "after"}


def test_what_is_inside_a_chosen_module_belongs_to_it():
    net = nn.Sequential(nn.Linear(5, 6), nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 2))).double()
    assert fit(net, inputs(), modules="1").posterior.noisy_modules == {"1", "1.0", "1.1"}


def test_a_network_without_noise_is_refused():
    net, x = make("dense", p=0.0)
    with pytest.raises(
        NetworkError,
        match="gives the same outputs every time in training mode.*use 'mc_dropout', which brings "
        "its own",
    ):
        fit(net, x)
    net, x = make("dense")
    with pytest.raises(NetworkError, match="gives the same outputs every time"):
        fit(net, x, modules="0")
    normed = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).double()
    with pytest.raises(NetworkError, match="gives the same outputs every time"):
        fit(normed, x)


def test_what_an_error_recommends_exists():
    net, x = make("dense", p=0.0)
    with pytest.raises(NetworkError) as caught:
        fit(net, x)
    if "credo.nets.Augmented" in str(caught.value):
        assert hasattr(credo.nets, "Augmented")


def test_patterns_that_match_nothing_bring_the_nearest():
    net, x = make("residual")
    with pytest.raises(
        SettingError, match="modules='aftr' matches no module. Did you mean 'after'"
    ):
        fit(net, x, modules="aftr")
    with pytest.raises(SettingError, match="modules="):
        fit(net, x, modules=3)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_network_predicts_with_spread_and_saves_and_loads(name, tmp_path):
    net, x = make(name)
    fitted = fit(net, x)
    outputs = fitted.predict(x, 10).outputs
    assert float(outputs.std(0).min()) > 0 and torch.equal(outputs, fitted.predict(x, 10).outputs)
    assert not torch.equal(outputs, fitted.predict(x, 10, seed=1).outputs)
    fitted.save(tmp_path / "model")
    assert torch.equal(credo.load(tmp_path / "model", net).predict(x, 10).outputs, outputs)


def test_the_mean_shortcut_is_evaluation_mode():
    net, x = deep(), inputs()
    fitted = fit(net, x)
    expected = in_torch(fitted, net, x, lambda path, module: False)[:1]
    assert torch.allclose(fitted.predict(x, shortcut="mean").outputs, expected)


def test_weights_are_fitted_under_the_prior_as_map_fits_them():
    """history: the KL is minus the log prior of a point."""
    net, x = deep(), inputs()
    fitted = fit(net, x, epochs=60)
    expected = -sum(Normal(0.0, 1.0).log_prob(v).sum() for v in fitted.posterior.mean().values())
    assert (
        fitted.history[-1]["kl"] == pytest.approx(float(expected), rel=1e-2)
        and fitted.history[-1]["elbo"] > fitted.history[0]["elbo"]
    )


def test_points_beside_the_random_parameters_are_free():
    net, x = deep(), inputs()
    model = BNN(net, Gaussian(std=0.5), prior=Normal(0.0, 1.0), random="last").fit(
        (x, Y), "stochastic", epochs=2, progress=False
    )
    assert [family.name for family in model.posterior.members] == [
        "stochastic",
        "delta",
    ] and model.posterior.atoms is None


def test_more_data_cannot_be_learned_from_this_posterior():
    with pytest.raises(CredoError, match="stochastic"):
        fit(deep(), inputs()).update((inputs(), Y), epochs=1, progress=False)
