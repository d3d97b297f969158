"""One pass over the data: roots of the information, derivatives of examples, and the sum that is
checked.
"""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset
from zoo.curvature import ALL, OUTPUT, dense, ggn, make, make_sweep, targets
from zoo.models import make_model
from zoo.networks import B, mlp
from zoo.stats import has_mean

from credo.core.errors import SettingError
from credo.curvature import structures
from credo.curvature import sweep as module
from credo.curvature.sweep import Sweep, example_jacobians, jacobian_chunks, observe
from credo.curvature.taps import untapped
from credo.data.intake import intake
from credo.engine.fit_job import FitJob
from credo.likelihoods import Gaussian

SLOW = {"checkpointed", "lstm", "gru", "custom_function"}  # networks that vmap cannot run


@pytest.mark.parametrize("name", ALL)
@pytest.mark.filterwarnings("ignore:Using padding='same'", "ignore:There is a performance drop")
def test_derivatives_of_every_example_by_every_parameter(name):
    """By vmap or one by one, whatever the network is made of, against one backward pass per
    output.
    """
    net, x = make(name)
    model = make_model(net, output=OUTPUT.get(name))
    truth, out = dense(net, x, model, OUTPUT.get(name))
    root = torch.randn(B, 2, 3).double()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rows = example_jacobians(model, model.values(), model.buffers(), model.random, x, root)
    told = [str(w.message) for w in said if "example by example" in str(w.message)]
    assert bool(told) == (name in SLOW)
    assert not any(
        "oneDNN" in str(w.message) for w in said
    )  # a context of torch's that warns about what it leaves alone
    expected = torch.einsum("nfk,nfp->nkp", root, truth)
    torch.testing.assert_close(torch.cat([rows[n] for n in model.random], -1), expected)


def test_inputs_that_are_no_examples_are_the_same_for_all():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 2))

        def forward(self, x, basis, power):
            return torch.tanh(x @ basis @ self.weight) ** power

    net = Mixed().double()
    x = {"x": torch.randn(3, 4).double(), "basis": torch.randn(4, 5).double(), "power": 2}
    model = make_model(net)
    truth, _ = dense(net, x, model)
    rows = example_jacobians(
        model, model.values(), {}, model.random, x, torch.eye(2).double().expand(3, 2, 2)
    )
    torch.testing.assert_close(rows["weight"], truth)


class Lone(nn.Module):
    """Something vmap cannot run, and a parameter that reaches nothing."""

    def __init__(self):
        super().__init__()
        self.layer, self.lost = nn.Linear(5, 2), nn.Parameter(torch.randn(3))

    def forward(self, x):
        return self.layer(x) if float(x.sum()) > -1e9 else x[:, :2]


def test_one_by_one_also_where_nothing_reaches_the_output():
    net = Lone().double()
    model = make_model(net)
    with pytest.warns(
        UserWarning, match="Derivatives of lost example by example: vmap cannot run this network"
    ):
        rows = example_jacobians(
            model,
            model.values(),
            {},
            {"lost": model.random["lost"]},
            torch.randn(3, 5).double(),
            torch.ones(3, 2, 1).double(),
        )
    assert torch.equal(rows["lost"], torch.zeros(3, 1, 3).double())


def test_examples_in_parts(monkeypatch):
    net, x = make("layer_norm")
    sweep = make_sweep(net, x, targets())
    sites = untapped(sweep.model, sweep.taps())
    assert set(sites) == {"1.weight", "1.bias"}
    root = torch.randn(3, 2, 2).double()
    ((_, whole),) = jacobian_chunks(sweep, sites, x, root)
    monkeypatch.setattr(module, "BUDGET", 1)
    parts = list(jacobian_chunks(sweep, sites, x, root))
    assert [rows for rows, _ in parts] == [slice(0, 1), slice(1, 2), slice(2, 3)]
    for name in sites:
        torch.testing.assert_close(torch.cat([found[name] for _, found in parts]), whole[name])


def test_batches_are_as_small_as_what_is_caught_demands(monkeypatch):
    """A convolution's patches are many times its input."""
    net, _ = make("conv")
    x = torch.randn(7, 2, 6, 6).double()
    sweep = make_sweep(net, x, targets(7))
    taps = sweep.taps()
    assert [seen.examples for _, seen in observe(sweep, taps)] == [7]
    monkeypatch.setattr(module, "BUDGET", 3 * (36 * 18 + 16 * 54 + 6))
    assert [seen.examples for _, seen in observe(sweep, taps)] == [3, 3, 1]
    assert [seen.examples for _, seen in observe(sweep, taps, size=2)] == [2, 2, 2, 1]


def test_the_negative_log_likelihood_comes_with_it():
    net, x = make("mlp")
    sweep = make_sweep(net, x, targets())
    total = sum(seen.nll for _, seen in observe(sweep, sweep.taps(), size=2))
    expected = nn.functional.cross_entropy(net(x).detach(), targets(), reduction="sum")
    assert math.isclose(total, float(expected), rel_tol=1e-12)


def test_every_example_must_be_seen_once():
    net, x = make("mlp")
    model = make_model(net, likelihood="categorical")
    loader = DataLoader(TensorDataset(x, targets()), batch_size=2, drop_last=True)
    fit_job = FitJob(intake(loader, num_data=3), 1, None, 1e-3)
    with pytest.raises(
        SettingError,
        match="one pass saw 2 examples and num_data is 3; give a loader that shows every example",
    ):
        list(Sweep(model, model.values(), {}, fit_job).batches())


def small(n=6):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    return net, torch.randn(n, 2).double(), targets(n)


def test_the_empirical_matrix_is_of_the_scores_of_the_data():
    net, x, y = small()
    sweep = make_sweep(net, x, y, kind="empirical")
    total = structures.full(sweep).blocks[0].matrix
    rows = []
    for n in range(len(x)):
        loss = nn.functional.cross_entropy(net(x[n : n + 1]), y[n : n + 1])
        rows.append(
            torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(net.parameters()))])
        )
    expected = torch.stack(rows).T @ torch.stack(rows)
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("likelihood", ["categorical", "heteroscedastic"])
@pytest.mark.parametrize("mc_samples", [1, 3])
def test_drawn_targets_are_unbiased(likelihood, mc_samples):
    """z-tests of every entry of the mean over 300 seeds against the matrix itself."""
    net, x, y = small(4)
    y = y if likelihood == "categorical" else torch.randn(4, 1).double()
    sweep = make_sweep(net, x, y, likelihood, kind="mc", mc_samples=mc_samples)
    found = []
    for seed in range(300):
        sweep.fit_job.seed = seed
        found.append(structures.full(sweep).blocks[0].matrix)
    has_mean(torch.stack(found), ggn(net, x, sweep.model))
    assert torch.equal(structures.full(sweep).blocks[0].matrix, found[-1])  # a seed decides it


def test_batches_of_drawn_targets_are_independent():
    """Equal examples in two batches get draws of their own."""
    net = mlp().double()
    x = torch.randn(1, 5).double().expand(64, 5)
    sweep = make_sweep(net, x, targets(64), kind="mc")
    first, second = (sweep.root(net(x).detach(), targets(64), number) for number in (0, 1))
    assert first.shape == (64, 2, 1) and not torch.equal(first, second)


def test_what_the_likelihood_knows_is_the_default():
    net = mlp().double()
    x = torch.randn(3, 5).double()
    sweep = make_sweep(
        net, x, torch.randn(3, 2).double(), Gaussian(std=[0.5, 2.0]), prior=Normal(0.0, 1.0)
    )
    root = sweep.root(net(x), None, 0)
    torch.testing.assert_close(
        root @ root.mT, torch.diag(torch.tensor([4.0, 0.25])).double().expand(3, 2, 2)
    )
