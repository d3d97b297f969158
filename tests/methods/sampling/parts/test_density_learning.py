"""What a density learns beside the chains: point parameters, noise, priors."""

import pytest
import torch
from torch.distributions import Normal
from torch.func import functional_call
from zoo.chains import density, split, weights
from zoo.models import make_model
from zoo.networks import make

from credo.likelihoods import Gaussian
from credo.methods.sampling.parts.full_batch import FullBatch
from credo.priors import Learned

DOUBLE = torch.float64


def noise(f):
    return Normal(f, torch.tensor(0.5, dtype=DOUBLE))


def step(target, w, optimizer):
    target.density.fit_alongside(w, target.batches, optimizer, target.weight)


def last_only(prior=None, likelihood=None):
    net, x = make("mlp")
    return (
        make_model(net, "last", likelihood or Gaussian(std=0.5), prior),
        x,
        torch.randn(len(x), 2, generator=torch.Generator().manual_seed(0)).double(),
    )


def test_point_parameters_are_not_tracked_and_learned_by_the_gradient_of_the_mean_log_joint():
    model, x, y = last_only()
    own = density(model)
    assert set(own.points) == {"0.weight", "0.bias"} and not any(
        t.requires_grad for t in own.fitted_alongside
    )
    target, w = FullBatch(own, [(x, y)]), weights(model)
    start = {n: t.clone() for n, t in own.points.items()}
    optimizer = torch.optim.SGD(own.fitted_alongside, lr=1e-3)
    step(target, w, optimizer)
    net = model.net
    for name in start:
        leaf = start[name].clone().requires_grad_()
        joint = [
            noise(functional_call(net, split(model, row) | start | {name: leaf}, (x,)))
            .log_prob(y)
            .sum()
            for row in w
        ]
        (slope,) = torch.autograd.grad(torch.stack(joint).mean(), leaf)
        assert torch.allclose(own.points[name], start[name] + 1e-3 * slope)
    assert not any(t.requires_grad or t.grad is not None for t in own.fitted_alongside)
    assert torch.equal(
        start["0.weight"], model.net[0].weight
    )  # the caller's network is not touched


def test_a_point_parameter_whose_prior_the_user_named_feels_it():
    """Naming a prior for a point parameter makes it MAP, here as in every other method."""
    prior = {"2.*": Normal(0.0, 1.0), "0.*": Normal(0.0, 0.1)}
    model, x, y = last_only(prior)
    own = density(model)
    target, w = FullBatch(own, [(x, y)]), weights(model)
    without = density(last_only(Normal(0.0, 1.0))[0])
    steps = []
    for each, at in ((own, target), (without, FullBatch(without, [(x, y)]))):
        before = each.points["0.weight"].clone()
        step(at, w, torch.optim.SGD(each.fitted_alongside, lr=1.0))
        steps.append(each.points["0.weight"] - before)
    assert torch.allclose(steps[0] - steps[1], -model.net[0].weight.detach() / 0.01)


def test_learned_noise_and_learned_priors_are_fitted_alongside_and_released():
    net, x = make("mlp")
    likelihood = Gaussian()
    model = make_model(net, likelihood=likelihood, prior=Normal(0.0, 1.0))
    model.prior = Learned(Normal(0.0, 1.0), learn=("scale",)).fresh(model.sites)
    own = density(model)
    assert len(own.fitted_alongside) == 2 and not likelihood.log_std.requires_grad
    y = torch.randn(len(x), 2).double()
    target, w = FullBatch(own, [(x, y)]), weights(model)
    started, (raw,) = float(likelihood.log_std), list(model.prior.parameters())
    before = raw.detach().clone()
    step(target, w, torch.optim.SGD(own.fitted_alongside, lr=1e-3))
    assert float(likelihood.log_std) != started and not torch.equal(raw, before)
    # the prior in the density follows
    scale = (
        model.prior.values()["global"]["scale"]
        if "global" in model.prior.values()
        else next(iter(model.prior.values().values()))["scale"]
    )
    wanted = Normal(0.0, scale.double()).log_prob(w).sum(-1)
    assert torch.allclose(own.log_prior(w), wanted)
    own.release()
    assert all(t.requires_grad and t.grad is None for t in own.fitted_alongside)


def test_a_failed_step_leaves_nothing_tracked():
    model, x, y = last_only()
    own = density(model)
    with pytest.raises((RuntimeError, IndexError)):
        own.fit_alongside(
            weights(model), [(x[:, :2], y)], torch.optim.SGD(own.fitted_alongside, lr=1.0)
        )  # inputs of another width
    assert not any(t.requires_grad for t in own.fitted_alongside)
