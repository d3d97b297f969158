"""MC dropout as a user meets it: a network with dropout as it is, or one without.

z-tests as in ``zoo.stats``.
"""

import copy

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.dropout import NETWORKS, cross, make
from zoo.stats import same_mean, same_variance

import credo
from credo import BNN
from credo.core.errors import CredoError
from credo.likelihoods import Gaussian

DRAWS = 3000
Y = torch.tensor([[0.5, -1.0], [1.0, 0.3], [-0.7, 0.1]], dtype=torch.float64)


def fit(net, x, method="mc_dropout", **how):
    settings = {"epochs": 3, "lr": 0.01, "progress": False} | how
    return BNN(net, Gaussian(std=0.5), prior=Normal(0.0, 1.0)).fit((x, Y), method, **settings)


def in_torch(fitted, net, x, passes=DRAWS, mode=True):
    """Outputs ``(S, B, F)`` of the plain network with the fitted weights, pass by pass, in training
    or evaluation mode.
    """
    clone = copy.deepcopy(net)
    with torch.no_grad():
        for name, parameter in clone.named_parameters():
            parameter.copy_(fitted.posterior.mean()[name])
        clone.train(mode)
        return torch.stack([clone(x) for _ in range(passes)])


@pytest.mark.parametrize("name", ["dense", "image", "residual", "reused", "functional"])
def test_predictions_are_those_of_a_loop_in_training_mode(name):
    net, x = make(name)
    fitted = fit(net, x)
    ours, truth = fitted.predict(x, DRAWS).outputs, in_torch(fitted, net, x)
    same_mean(ours, truth)
    same_variance(ours, truth)
    same_mean(cross(ours), cross(truth))


@pytest.mark.parametrize("name", ["sequence", "recurrent", "encoder"])
def test_sequences_too_where_positions_have_masks_of_their_own(name):
    net, x = make(name)
    fitted = fit(net, x, shared=False)
    ours, truth = fitted.predict(x, 1500).outputs, in_torch(fitted, net, x, 1500)
    same_mean(ours, truth)
    same_variance(ours, truth)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_mean_shortcut_is_the_network_in_evaluation_mode(name):
    net, x = make(name)
    fitted = fit(net, x)
    assert torch.allclose(
        fitted.predict(x, shortcut="mean").outputs,
        in_torch(fitted, net, x, 1, mode=False),
        atol=1e-10,
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_predicts_with_spread_and_saves_and_loads(name, tmp_path):
    net, x = make(name)
    fitted = fit(net, x)
    outputs = fitted.predict(x, 20).outputs
    assert float(outputs.std(0).min()) > 0 and torch.equal(outputs, fitted.predict(x, 20).outputs)
    fitted.save(tmp_path / "model")
    again = credo.load(tmp_path / "model", net)
    assert torch.equal(again.predict(x, 20).outputs, outputs)


def placed_masks(fitted, path, x, samples=30):
    """Factors that the module at ``path`` multiplies by in draws of a prediction ``(S, *shape of
    its input)``.
    """
    seen = []
    fitted.predict(x, 1)
    module = dict(fitted.model.shell().module.named_modules())[path]
    handle = module.register_forward_hook(lambda m, args, out: seen.append(out / args[0]))
    fitted.predict(x, samples, vectorise=False)
    handle.remove()
    return torch.stack(seen)


def test_shared_masks_are_the_same_at_all_positions_and_for_all_inputs_of_a_draw():
    net, x = make("sequence")
    factors = placed_masks(fit(net, x), "drop", x)
    assert factors.shape == (30, 3, 6, 6) and torch.allclose(
        factors, factors[:, :1, :1].expand_as(factors)
    )
    assert float(factors.min()) == 0 and not torch.allclose(factors[0], factors[1])
    net, x = make("sequence")
    own = placed_masks(fit(net, x, shared=False), "drop", x)
    assert not torch.allclose(own, own[:, :, :1].expand_as(own))


def test_a_draw_is_one_function_for_all_inputs():
    net, x = make("dense")
    fitted = fit(net, x)
    twice = fitted.predict(torch.cat([x, x]), 10).outputs
    assert torch.allclose(twice[:, :3], twice[:, 3:]) and torch.allclose(
        twice[:, :3], fitted.predict(x, 10).outputs
    )


@pytest.mark.parametrize("estimator", ["local", "weights", "per_example"])
def test_dropout_put_into_a_plain_network_is_that_of_a_module(estimator):
    """Chosen input units of a network without dropout, against nn.Dropout in their place."""
    net, x = make("dense", p=0.0)
    plain = nn.Sequential(net[0], net[1], net[3])
    fitted = fit(plain, x, p=0.4, estimator=estimator)
    ours = fitted.predict(x, DRAWS).outputs
    with_module = nn.Sequential(plain[0], plain[1], nn.Dropout(0.4), plain[2])
    renamed = {
        "0.weight": "0.weight",
        "0.bias": "0.bias",
        "3.weight": "2.weight",
        "3.bias": "2.bias",
    }
    with torch.no_grad():
        clone = copy.deepcopy(with_module)
        for name, parameter in clone.named_parameters():
            parameter.copy_(fitted.posterior.mean()[renamed[name]])
        truth = torch.stack([clone.train()(x) for _ in range(DRAWS)])
    same_mean(ours, truth)
    same_variance(ours, truth)


def test_a_rate_takes_the_place_of_the_networks():
    net, x = make("dense", p=0.3)
    fitted = fit(net, x, p=0.6)
    with torch.no_grad():
        clone = copy.deepcopy(net)
        clone[2].p = 0.6
        truth = in_torch(fitted, clone, x)
    ours = fitted.predict(x, DRAWS).outputs
    same_variance(ours, truth)
    assert net[2].p == 0.3


@pytest.mark.parametrize("estimator", ["local", "weights", "per_example"])
def test_all_estimators_descend(estimator):
    net, x = make("dense")
    before, after = (
        fit(net, x, epochs=epochs, estimator=estimator, lr=0.02).objective((x, Y), 500)
        for epochs in (1, 100)
    )
    assert after["elbo"] - before["elbo"] > 5 * (after["error"] + before["error"])


def test_longer_length_scales_hold_weights_back():
    """N(0, l^-2): a large l is a strong pull to zero."""
    net, x = make("dense")
    sizes = []
    for length in (0.3, 10.0):
        mean = fit(net, x, epochs=200, lr=0.02, length_scale=length).posterior.mean()
        sizes.append(float(sum(v.square().sum() for n, v in mean.items() if "mask" not in n)))
    assert sizes[1] < 0.1 * sizes[0]


def test_batch_statistics_are_those_of_training():
    net = nn.Sequential(
        nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 2)
    ).double()
    x = torch.randn(3, 5, dtype=torch.float64)
    fitted = fit(net, x, epochs=20)
    assert not torch.equal(fitted.buffers["1.running_mean"], net[1].running_mean)
    assert (
        torch.isfinite(fitted.predict(x, 5).outputs).all() and int(net[1].num_batches_tracked) == 0
    )


def test_learning_from_more_data_says_that_masks_are_no_prior():
    net, x = make("dense")
    for network in (net, nn.Sequential(net[0], net[1], net[3])):
        with pytest.raises(CredoError, match="dropout"):
            fit(network, x).update((x, Y), epochs=1, progress=False)


def test_a_draw_has_no_density():
    net, x = make("dense")
    fitted = fit(net, x)
    with pytest.raises(CredoError, match="no density over weights"):
        fitted.posterior.log_prob(fitted.posterior.mean())


@pytest.mark.slow
def test_compiled_steps_are_the_same_fit():
    net, x = make("dense")
    one, two = (fit(net.float(), x.float(), epochs=3, compile=flag) for flag in (False, True))
    for name, value in one.posterior.mean().items():
        assert torch.allclose(value, two.posterior.mean()[name], atol=0.1), name
    assert torch.isfinite(two.predict(x.float(), 3).outputs).all()


def test_a_checkpointed_network_sees_the_same_masks_again():
    class Saved(nn.Module):
        def __init__(self, use):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 2))
            self.use = use

        def forward(self, x):
            return (
                torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)
                if self.use
                else self.inner(x)
            )

    torch.manual_seed(0)
    nets = [Saved(use).double() for use in (True, False)]
    nets[1].load_state_dict(nets[0].state_dict())
    x = torch.randn(3, 5, dtype=torch.float64)
    for estimator in ("local", "weights"):
        one, two = (fit(net, x, epochs=5, estimator=estimator).posterior.mean() for net in nets)
        assert all(torch.allclose(one[n], two[n], atol=1e-10) for n in one)
