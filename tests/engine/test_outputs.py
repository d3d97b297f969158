import warnings

import pytest
import torch
from torch import nn
from zoo.dropout import METHODS, begin
from zoo.dropout import make as make_dropout
from zoo.models import make_model, make_posterior
from zoo.networks import ZOO, make

from credo.engine import outputs as module
from credo.engine.outputs import Draws, prior_draws, sampled_outputs
from credo.posteriors import Start

OUTPUT = {"dicts": "logits"}


def predict(model, posterior, x, numbers=range(7), **how):
    draws = Draws(
        numbers, lambda n: posterior.realise(n, 3), posterior.fixed, posterior.noisy_modules
    )
    return sampled_outputs(model, draws, x, model.buffers(), 3, **how)[0]


@pytest.mark.parametrize("name", sorted(ZOO))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_loop_batches_and_vmap_give_the_same_outputs(name):
    """Exactly for batches of a loop over rows; to rounding for vmap, which multiplies in another
    order.
    """
    net, x = make(name)
    model = make_model(net, output=OUTPUT.get(name))
    posterior = make_posterior("mean_field", model)
    looped = predict(model, posterior, x, vectorise=False)
    assert looped.shape == (7, 3, 2)
    assert torch.allclose(
        predict(model, posterior, x, vectorise=False, batch_size=2), looped, rtol=1e-12, atol=1e-12
    )
    assert torch.allclose(
        predict(model, posterior, x, vectorise=True), looped, rtol=1e-12, atol=1e-12
    )
    assert torch.allclose(
        predict(model, posterior, x, vectorise=True, batch_size=2), looped, rtol=1e-12, atol=1e-12
    )
    assert torch.equal(predict(model, posterior, x, [4], vectorise=False)[0], looped[4])


def test_single_precision_agrees_to_its_rounding(monkeypatch):
    net, x = make("mlp", dtype=torch.float32)
    model = make_model(net)
    posterior = make_posterior("mean_field", model)
    looped = predict(model, posterior, x, vectorise=False)
    assert torch.allclose(
        predict(model, posterior, x, vectorise=True), looped, rtol=1e-6, atol=1e-6
    )
    numel = sum(site.numel for site in model.random.values())
    monkeypatch.setitem(module._BUDGET, "cpu", 3 * numel)  # chunks of three draws
    assert torch.allclose(
        predict(model, posterior, x, vectorise=True), looped, rtol=1e-6, atol=1e-6
    )


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        out = self.layer(x)
        return out if out.sum() > 0 else -out


def test_a_network_vmap_cannot_run_is_looped_over_and_said_once():
    model = make_model(Branching().double())
    posterior = make_posterior("mean_field", model)
    x = torch.randn(3, 5).double()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = predict(model, posterior, x, vectorise=True)
    assert torch.equal(out, predict(model, posterior, x, vectorise=False))
    assert [
        str(w.message).startswith("Predicting draw by draw: vmap cannot run this network")
        for w in caught
    ] == [True]


class Noisy(nn.Module):
    """Random by itself, in evaluation mode too."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        return nn.functional.dropout(self.layer(x), 0.5, training=True)


def test_a_network_random_by_itself_gets_a_stream_per_draw():
    model = make_model(Noisy().double())
    posterior = make_posterior("delta", model)
    x, state = torch.randn(3, 5).double(), torch.get_rng_state()
    out = predict(model, posterior, x, vectorise=False)
    assert torch.equal(
        out[5], predict(model, posterior, x, [5], vectorise=False)[0]
    ) and not torch.equal(out[0], out[1])
    assert torch.equal(state, torch.get_rng_state())


def test_a_deterministic_first_part_is_shared(monkeypatch):
    net, x = make("mlp")
    model = make_model(net, "last")
    posterior = make_posterior("mean_field", model)
    calls = []
    original = module._Runner.vectorised
    monkeypatch.setattr(
        module._Runner, "vectorised", lambda self, *args: calls.append(1) or original(self, *args)
    )
    out = predict(model, posterior, x)
    assert calls == [1] and torch.allclose(
        out, predict(model, posterior, x, vectorise=False), rtol=1e-12
    )


def test_drawn_likelihood_parameters_come_apart():
    from credo.posteriors import NormalInverseGamma, Posterior

    net = nn.Linear(5, 1)
    model = make_model(net)
    family = NormalInverseGamma({n: s.shape for n, s in model.random.items()})
    posterior = Posterior([family])
    for vectorise in (False, True):
        out, extra = sampled_outputs(
            model, Draws.of(posterior, 4, 0), torch.zeros(3, 5), {}, 0, vectorise=vectorise
        )
        assert (
            out.shape == (4, 3, 1)
            and out.dtype == torch.float32
            and set(extra) == {"log_std"}
            and extra["log_std"].shape == (4,)
        )


def test_prediction_runs_in_evaluation_mode_without_gradients():
    net, x = make("batchnorm")
    model = make_model(net)
    model.shell().train(True)
    out = predict(model, make_posterior("delta", model), x, [0])
    assert torch.allclose(out[0], net.eval()(x)) and not out.requires_grad


def test_the_prior_of_a_discrete_posterior_is_drawn_on_its_levels():

    net, _ = make("mlp")
    model = make_model(net, "weights")
    posterior = model.posterior("discrete", model.values(), Start(levels=(-1.0, 2.0)))
    drawn = prior_draws(model, posterior.mean(), range(4), 0, posterior.factors)
    assert set(drawn["0.weight"].unique().tolist()) == {-1.0, 2.0} and drawn["0.bias"].shape == (
        4,
        6,
    )
    free = prior_draws(model, posterior.mean(), range(4), 0)
    assert len(free["0.weight"].unique()) == free["0.weight"].numel()


def vectorised_calls(monkeypatch):
    calls = []
    original = module._Runner.vectorised
    monkeypatch.setattr(
        module._Runner, "vectorised", lambda self, *args: calls.append(1) or original(self, *args)
    )
    return calls


@pytest.mark.parametrize("name", ["dense", "image", "residual", "reused", "sequence", "attention"])
@pytest.mark.parametrize("method", METHODS)
def test_masks_give_the_same_outputs_by_loop_batches_and_vmap(method, name):
    net, x = make_dropout(name)
    model, posterior = begin(method, net, x, p=0.3)
    looped = predict(model, posterior, x, vectorise=False)
    assert float(looped.std(0).min()) > 0
    for how in (
        {"vectorise": False, "batch_size": 2},
        {"vectorise": True},
        {"vectorise": True, "batch_size": 2},
        {},
    ):
        assert torch.allclose(
            predict(model, posterior, x, **how), looped, rtol=1e-12, atol=1e-12
        ), how
    assert torch.equal(predict(model, posterior, x, [4], vectorise=False)[0], looped[4])


def test_what_draws_leave_alone_is_shared_when_it_is_a_good_part_and_comes_first(monkeypatch):
    calls = vectorised_calls(monkeypatch)
    first, last = nn.Linear(5, 40), nn.Linear(40, 2)
    x = torch.randn(3, 5)
    for net, shared in (
        (nn.Sequential(first, nn.Dropout(0.3), last), True),
        (nn.Sequential(nn.Dropout(0.3), first, last), False),
        (nn.Sequential(nn.Linear(5, 1), nn.Dropout(0.3), nn.Linear(1, 40), last), False),
    ):
        calls.clear()
        model, posterior = begin("mc_dropout", net, x)
        predict(model, posterior, x)
        assert calls == [1] * shared, net


def test_the_shared_part_runs_once_for_all_draws():
    """A hook counts the calls of the first layer: one chunk of draws, one call; and the loop calls
    it for every draw.
    """
    net, x = make_dropout("dense")
    model, posterior = begin("mc_dropout", net, x)
    predict(model, posterior, x, vectorise=True)  # remembers the width
    shapes = []
    model.shell().module[0].register_forward_hook(lambda m, args, out: shapes.append(out.shape))
    predict(model, posterior, x, vectorise=True)
    assert shapes == [(3, 6)]
    predict(model, posterior, x, vectorise=False)
    assert len(shapes) == 1 + 7


def test_networks_with_live_noise_are_always_looped_over(monkeypatch):
    calls = vectorised_calls(monkeypatch)
    net, x = make_dropout("functional")
    model, posterior = begin("mc_dropout", net, x)
    state = torch.get_rng_state()
    out = predict(model, posterior, x, vectorise=True)
    assert calls == [] and posterior.noisy_modules and float(out.std(0).min()) > 0
    assert torch.equal(out[5], predict(model, posterior, x, [5])[0]), (
        "a draw is the same alone and together"
    )
    assert torch.equal(state, torch.get_rng_state())
    predict(model, make_posterior("delta", model), x, [0])
    assert not any(m.training for m in model.shell().module.modules()), (
        "the next prediction is in evaluation mode again"
    )


def test_chunks_by_the_width_of_activations_give_the_same_numbers(monkeypatch):
    net, x = make_dropout("image")
    model, posterior = begin("mc_dropout", net, x)
    whole = predict(model, posterior, x, vectorise=True)
    (width,) = model.widths.values()
    assert width == 6 * 4 * 4, "of one example, from the first mask on"
    sizes = []

    def spy(numbers):
        sizes.append(len(numbers))
        return posterior.realise(numbers, 3)

    monkeypatch.setitem(module._BUDGET, "cpu", 2 * 3 * width)
    draws = Draws(range(7), spy, posterior.fixed, posterior.noisy_modules)
    chunked, _ = sampled_outputs(model, draws, x, model.buffers(), 3, vectorise=True)
    assert sizes == [2, 2, 2, 1] and torch.allclose(chunked, whole, rtol=1e-12, atol=1e-12)


def test_measuring_the_width_draws_no_random_numbers():
    """Of a network that is random by itself, which vmap then refuses."""
    model = make_model(Noisy().double())
    posterior = make_posterior("mean_field", model)
    x, state = torch.randn(3, 5).double(), torch.get_rng_state()
    with pytest.warns(UserWarning, match="Predicting draw by draw"):
        predict(model, posterior, x, vectorise=True)
    assert torch.equal(state, torch.get_rng_state())


def test_nobody_is_told_of_a_loop_that_nobody_asked_to_avoid():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.layer = nn.Linear(5, 5), Branching()

        def forward(self, x):
            return self.layer(self.first(x))

    model = make_model(Half().double(), "last")
    posterior = make_posterior("mean_field", model)
    x = torch.randn(3, 5).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = predict(model, posterior, x)
    assert torch.equal(out, predict(model, posterior, x, vectorise=False))
