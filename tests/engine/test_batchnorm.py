import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo.models import make_model
from zoo.networks import make

from credo.core.seeds import generator, isolated
from credo.data import intake
from credo.engine.batchnorm import norms, statistics
from credo.engine.fit_job import FitJob
from credo.likelihoods import Gaussian

DOUBLE = torch.float64


def network(middle=None):
    with isolated(0):
        first = [
            nn.Linear(5, 4),
            *([] if middle is None else [middle]),
            nn.BatchNorm1d(4),
            nn.Tanh(),
        ]
        return nn.Sequential(*first, nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def data(n=22):
    made = torch.Generator().manual_seed(0)
    return torch.randn(n, 5, generator=made, dtype=DOUBLE), torch.randn(
        n, 2, generator=made, dtype=DOUBLE
    )


def fit_job(given, batch_size=5, seed=0):
    return FitJob(intake(given), 1, batch_size, 0.1, seed)


def by_hand(net, values, batches):
    """Plain averages over batches of mean and unbiased variance, layer by layer, written out with
    the network's own modules.
    """
    net = type(net)(*net)  # the same modules
    found = {
        f"{i}.{leaf}": []
        for i, m in enumerate(net)
        if isinstance(m, nn.BatchNorm1d)
        for leaf in ("running_mean", "running_var")
    }
    for x in batches:
        h = x
        for i, module in enumerate(net):
            own = {n.split(".", 1)[1]: v for n, v in values.items() if n.startswith(f"{i}.")}
            if isinstance(module, nn.BatchNorm1d):
                mean, var = h.mean(0), h.var(0)
                found[f"{i}.running_mean"].append(mean)
                found[f"{i}.running_var"].append(var)
                h = (h - mean) / (h.var(0, correction=0) + module.eps).sqrt() * own["weight"] + own[
                    "bias"
                ]
            elif not isinstance(module, nn.Dropout):
                h = torch.func.functional_call(module, own, (h,))
    return {name: torch.stack(rows).mean(0) for name, rows in found.items()}


def orders(x, seed, size):
    rows = torch.randperm(len(x), generator=generator(seed, "statistics", 0)).split(size)
    return [x[row] for row in rows if len(row) > 1]


@pytest.mark.parametrize(
    "size", [5, 7, None]
)  # twenty-two: a last batch of two, of one, one batch of all
def test_each_draws_statistics_are_those_of_a_pass_by_hand(size):
    net, (x, y) = network(), data()
    model = make_model(net, likelihood=Gaussian(std=1.0))
    draws = [model.random_values(seed) for seed in (1, 2)]
    found = statistics(model, fit_job((x, y), size, seed=3), draws)
    assert set(found) == {"1.running_mean", "1.running_var", "4.running_mean", "4.running_var"}
    for k, values in enumerate(draws):
        for name, wanted in by_hand(net, values, orders(x, 3, size or 22)).items():
            assert torch.allclose(found[name][k], wanted, rtol=0, atol=1e-12)


def test_other_layers_are_in_evaluation_mode_and_everything_is_left_as_found():
    net, (x, y) = network(nn.Dropout(0.9)), data()
    model = make_model(net, likelihood=Gaussian(std=1.0))
    state, before = torch.get_rng_state(), {n: t.clone() for n, t in net.state_dict().items()}
    values = model.values()
    found = statistics(model, fit_job((x, y), None), [values])
    wanted = by_hand(net, values, [x])
    assert torch.allclose(found["2.running_mean"][0], wanted["2.running_mean"])
    assert torch.equal(state, torch.get_rng_state()) and all(
        torch.equal(before[n], t) for n, t in net.state_dict().items()
    )
    assert net[2].momentum == model.shell().module[2].momentum == 0.1 and not any(
        m.training for m in model.shell().module.modules()
    )


def test_frozen_parameters_are_placed():
    net, (x, y) = network(), data()
    net[0].weight.requires_grad_(False)
    model = make_model(net, likelihood=Gaussian(std=1.0))
    values = model.values()
    found = statistics(model, fit_job((x, y)), [values])
    wanted = by_hand(net, values | {"0.weight": net[0].weight.detach()}, orders(x, 0, 5))
    assert all(torch.allclose(found[n][0], v) for n, v in wanted.items())


def test_data_sorted_by_class_do_not_spoil_them():
    """Batches of one class each would know only the spread within classes."""
    with isolated(0):
        net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    x, _ = data(200)
    y = torch.arange(200) // 100
    x = x + 10.0 * y.unsqueeze(1)
    model = make_model(net, likelihood="categorical")
    found = statistics(model, fit_job((x, y), 50), [model.values()])
    h = net[0](x).detach()
    assert torch.allclose(found["1.running_mean"][0], h.mean(0))
    within = torch.stack([h[:100].var(0), h[100:].var(0)]).mean(0)
    assert (found["1.running_var"][0] > 0.8 * h.var(0)).all() and (h.var(0) > 3 * within).any()


def images():
    with isolated(0):
        return nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 16, 2)
        ).double()


@pytest.mark.parametrize("loader", [False, True])
def test_batches_of_one_image_have_a_variance_of_their_own(loader):
    net = images()
    x = torch.cat([make("conv", seed=s)[1] for s in range(2)])
    y = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    model = make_model(net, likelihood=Gaussian(std=1.0))
    given = DataLoader(TensorDataset(x, y), batch_size=1) if loader else (x, y)
    found = statistics(model, fit_job(given, None if loader else 1), [model.values()])
    h = net[0](x).detach()
    assert torch.allclose(found["1.running_mean"][0], h.mean((0, 2, 3)))
    assert torch.allclose(found["1.running_var"][0], h.var((2, 3)).mean(0))


def test_only_layers_that_keep_statistics_count():
    assert norms(network()) == ["1", "4"] and norms(make("mlp")[0]) == []
    assert norms(
        nn.Sequential(
            nn.BatchNorm1d(2, track_running_stats=False), nn.LayerNorm(2), nn.BatchNorm2d(2)
        )
    ) == ["2"]
