"""The bound and where it starts."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.models import make_model, shaken

from credo import BNN
from credo.core.errors import DataError, NetworkError, SettingError
from credo.core.seeds import generator, isolated
from credo.data.intake import intake
from credo.engine.fit_job import FitJob
from credo.likelihoods import Gaussian
from credo.methods.exact.parts.process_fit import (
    MAX_EXAMPLES,
    ProcessElbo,
    first_inputs,
    last_layer,
    num_outputs,
)
from credo.nets import mlp, small_cnn
from credo.posteriors import DeepGP, Delta, Posterior, SparseGP
from credo.priors import Learned

pytest.importorskip("gpytorch", reason="the gp extra is not installed")
X = torch.randn(24, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.sin(X[:, :1]) + 0.1 * X[:, 1:]


def fit_job(x=X, y=Y, batch_size=None):
    return FitJob(intake((x, y)), 1, batch_size, 1e-2)


def setup(prior=None, likelihood=None):
    """A small perceptron whose last layer is a sparse process, with everything moved from where it
    starts.
    """
    with isolated(0):
        net = mlp(2, (4,), 1).double()
    model = make_model(
        net, likelihood=Gaussian(std=0.4) if likelihood is None else likelihood, prior=prior
    ).narrow("last")
    with isolated(1):
        process = shaken(
            SparseGP.start("2", torch.randn(20, 4).double(), 1, 6, generator(0)), size=0.1
        )
    points = Delta.start({n: v for n, v in model.values().items() if n in model.point})
    return model, ProcessElbo(model, Posterior([process, points]))


def test_the_objective_has_two_parts_and_the_first_is_scaled():
    """sum over batches of their nll is the nll of all data, so N / B times that of a random batch
    is unbiased, whatever the batches are.
    """
    _, learner = setup()
    whole, kl = learner(X, Y)
    parts = [
        learner(X[rows], Y[rows]) for rows in torch.randperm(24, generator=generator(0)).split(6)
    ]
    estimates = torch.stack([24 / 6 * nll for nll, _ in parts])
    assert (
        torch.allclose(estimates.mean(), whole, rtol=1e-10) and float(estimates.detach().std()) > 0
    )
    assert all(torch.equal(each, kl) for _, each in parts)


def test_the_first_part_is_the_expected_nll_by_hand():
    """E_q[-log N(y; f, s^2)] = log s + 1/2 log 2 pi + ((y - m)^2 + v) / (2 s^2)."""
    model, learner = setup()
    nll, _ = learner(X, Y)
    shell = model.shell()
    mean, var = learner.process.marginals_at(learner.process.read(shell, X))
    by_hand = (
        math.log(0.4) + 0.5 * math.log(2 * math.pi) + ((Y - mean).square() + var) / (2 * 0.4**2)
    )
    assert torch.allclose(nll, by_hand.sum(), rtol=1e-10)


def test_draws_of_hidden_layers_are_averaged():
    model = make_model(mlp(2, (), 1).double(), likelihood=Gaussian(std=0.4))
    process = shaken(DeepGP.start(X, 1, (2,), 6, generator(0)), size=0.1)
    with isolated(0):
        nll, kl = ProcessElbo(model, Posterior([process]), train_samples=5)(X, Y)
    with isolated(0):
        mean, var = process.conditionals(X, 5)
    assert torch.allclose(
        nll, -Gaussian(std=0.4).expected_log_prob(mean, var, Y).sum(1).mean(), rtol=1e-10
    )
    assert torch.equal(kl, process.own_kl())


def test_gradients_reach_all_but_the_last_layer():
    model, learner = setup()
    nll, kl = learner(X, Y)
    (nll + kl).backward()
    assert all(
        p.grad is not None and bool(p.grad.abs().sum() > 0)
        for p in learner.parameters()
        if p.requires_grad
    )
    assert all(p.grad is None for p in model.net.parameters())
    assert set(learner.posterior.names) == {"0.weight", "0.bias"}


def test_points_have_the_prior_that_is_named_or_one_as_wide_as_they_start():
    _, usual = setup()
    model, named = setup(prior={"0.weight": Normal(0.0, 0.5)})
    values = model.values()
    start = sum(Normal(0.0, 6**-0.5).log_prob(values[n]).sum() for n in ("0.weight", "0.bias"))
    known = Normal(0.0, 0.5).log_prob(values["0.weight"]).sum()
    for learner, density in ((usual, start), (named, known)):
        kl = learner(X, Y)[1].detach() - learner.process.own_kl().detach()
        assert float(kl) == pytest.approx(-float(density), rel=1e-6)
    held = ProcessElbo(model, usual.posterior, holds=True)
    assert torch.equal(held(X, Y)[1], held.process.own_kl())
    assert all(not p.requires_grad for f, _ in usual.points for p in f.parameters())


def test_a_learned_prior_has_nothing_to_learn_from():
    with pytest.raises(SettingError, match="leaves no weights to learn the prior"):
        BNN(mlp(2, (4,), 1).double(), "gaussian", prior=Learned(Normal(0.0, 1.0))).fit(
            (X, Y), "dkl", progress=False
        )


class Softened(nn.Sequential):
    """A last layer that is not the end."""

    def forward(self, x):
        return super().forward(x).softmax(-1)


def test_the_last_layer_is_found_or_refused():
    model = make_model(mlp(2, (4, 3), 2).double()).narrow("last")
    assert last_layer(model, X[:2]) == ("4", 2) and num_outputs(model, X[:2]) == 2
    alone = make_model(nn.Linear(2, 1).double()).narrow("last")
    assert last_layer(alone, X[:2]) == ("", 1)
    soft = make_model(Softened(nn.Linear(2, 3)).double()).narrow("last")
    with pytest.raises(
        NetworkError,
        match=r"The last layer, '0' \(Linear\), owns .* end the network with that layer",
    ):
        last_layer(soft, X[:2])
    with pytest.raises(NetworkError, match=r"takes the place of one layer, and 0, 2 were chosen"):
        last_layer(make_model(mlp(2, (4,), 1).double()), X[:2])


def test_rows_are_few_random_ones_as_training_sees_them():
    x = torch.arange(5000.0).unsqueeze(1)
    model = make_model(nn.Linear(1, 1))
    rows = first_inputs(model, fit_job(x, x, 128), {}, lambda shell, batch: batch)
    assert len(rows) == MAX_EXAMPLES == len(rows.unique()) and float(rows.mean()) == pytest.approx(
        2500, abs=5 * 1443 / MAX_EXAMPLES**0.5
    )
    seen = []
    first_inputs(
        model, fit_job(), {}, lambda shell, batch: seen.append(shell.module.training) or batch
    )
    assert seen == [True]


def test_a_batch_that_batchnorm_cannot_take_is_named():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    with pytest.raises(
        DataError, match="cannot train on a batch of 1: .* choose another batch_size"
    ):
        BNN(net, "gaussian").fit((X, Y), "dkl", batch_size=23, progress=False)


def test_buffers_follow_training_and_the_network_keeps_its_own():
    with isolated(0):
        net = small_cnn(1, 2, widths=(4, 4), batch_norm=True)
    before = {n: b.clone() for n, b in net.named_buffers()}
    x = 3 + torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    bnn = BNN(net, "categorical").fit(
        (x, torch.arange(16) % 2), "dkl", epochs=2, num_inducing=4, progress=False
    )
    assert bnn.is_fitted
    assert any(not torch.equal(b, before[n]) for n, b in bnn.buffers.items())
    assert all(torch.equal(b, before[n]) for n, b in net.named_buffers())
