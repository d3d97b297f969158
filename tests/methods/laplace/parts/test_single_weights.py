"""Which single weights are chosen, and their curvature against sums of brute-force Jacobians."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset
from zoo.curvature import ALL, OUTPUT, columns, ggn, make, make_sweep, some, targets

from credo.core.errors import SettingError
from credo.curvature import sweep as sweep_module
from credo.curvature.structures import STRUCTURES
from credo.curvature.sweep import Sweep
from credo.data.intake import intake
from credo.engine.fit_job import FitJob
from credo.likelihoods import Gaussian
from credo.methods.laplace.parts import single_weights as module
from credo.methods.laplace.parts.single_weights import (
    CHOICES,
    largest_magnitude,
    largest_variance,
    masked,
    subnetwork,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:Using padding='same'",
    "ignore:There is a performance drop",
    "ignore:Derivatives of .* example by example",
)


def matrix(sweep, chosen):
    (block,) = subnetwork(sweep, chosen).blocks
    return block.inside.matrix


@pytest.mark.parametrize("name", ALL)
def test_every_network_by_brute_force(name):
    net, x = make(name)
    sweep = make_sweep(net, x, targets(), output=OUTPUT.get(name))
    truth = ggn(net, x, sweep.model, OUTPUT.get(name))
    chosen = some(sweep.model)
    at = columns(chosen, sweep.model)
    torch.testing.assert_close(matrix(sweep, chosen), truth[at][:, at])
    found = subnetwork(sweep, chosen)
    assert found.chosen == chosen and found.nll == pytest.approx(
        STRUCTURES["full"].measure(sweep, 0).nll
    )


@pytest.mark.parametrize("kind", ["ggn", "empirical", "mc"])
def test_with_all_weights_it_is_the_full_form(kind):
    net, x = make("conv")
    sweep = make_sweep(net, x, targets(), kind=kind)
    (full,) = STRUCTURES["full"].measure(sweep, 0).blocks
    everything = {n: torch.arange(s.numel) for n, s in sweep.model.random.items()}
    torch.testing.assert_close(matrix(sweep, everything), full.matrix)


def test_several_outputs_and_many_chosen_weights():
    """Several directions, and more columns than are multiplied at once."""
    torch.manual_seed(0)
    net, x = (
        nn.Sequential(nn.Linear(9, 40), nn.Tanh(), nn.Linear(40, 3)).double(),
        torch.randn(20, 9).double(),
    )
    sweep = make_sweep(net, x, torch.randn(20, 3).double(), Gaussian([0.5, 1.0, 2.0]).double())
    chosen = {
        n: torch.arange(0, s.numel, 1 + (n == "0.weight")) for n, s in sweep.model.random.items()
    }
    at = columns(chosen, sweep.model)
    assert len(at) > 256
    torch.testing.assert_close(matrix(sweep, chosen), ggn(net, x, sweep.model)[at][:, at])


@pytest.mark.parametrize("name", ["conv", "layer_norm", "unused", "mlp"])
def test_little_memory_gives_the_same_numbers(name, monkeypatch):
    net, x = make(name)
    sweep = make_sweep(net, x, targets())
    whole = matrix(sweep, some(sweep.model))
    for place in (module, sweep_module):
        monkeypatch.setattr(place, "BUDGET", 1)
    torch.testing.assert_close(matrix(sweep, some(sweep.model)), whole)


def test_memory_follows_the_chosen_weights(monkeypatch):
    """Of a layer of a million weights no derivative is written out: ten thousand numbers are held
    where an example has a million.
    """
    torch.manual_seed(0)
    net, x = (
        nn.Sequential(nn.Linear(1000, 1000), nn.Tanh(), nn.Linear(1000, 2)),
        torch.randn(10, 1000),
    )
    sweep = make_sweep(net, x, targets(10))
    largest = []
    monkeypatch.setattr(module.Gram, "add", lambda self, rows: largest.append(rows.numel()))
    subnetwork(sweep, {"0.weight": torch.arange(0, 1_000_000, 1000)})
    assert largest == [10 * 1000]
    monkeypatch.setattr(module, "BUDGET", 4000)
    largest.clear()
    subnetwork(sweep, {"0.weight": torch.arange(0, 1_000_000, 1000)})
    assert largest == [2 * 1000] * 5


def test_batches_of_a_loader_add_up():
    net, x = make("conv")
    whole = make_sweep(net, x, targets())
    model = whole.model
    fit_job = FitJob(intake(DataLoader(TensorDataset(x, targets()), batch_size=2)), 1, None, 1e-3)
    parts = Sweep(model, model.values(), model.buffers(), fit_job)
    torch.testing.assert_close(matrix(parts, some(model)), matrix(whole, some(model)))


# --- which ones -----------------------------------------------------------------------------------


def variances(net, x, sweep, precision):
    return 1.0 / (ggn(net, x, sweep.model).diagonal() + precision)


@pytest.mark.parametrize("name", ["mlp", "conv", "layer_norm"])
@pytest.mark.parametrize("size", [1, 7, 30])
def test_the_largest_variances_are_chosen(name, size):
    net, x = make(name)
    sweep = make_sweep(net, x, targets(), prior=Normal(0.0, 0.5))
    var = variances(net, x, sweep, 4.0)
    at = columns(largest_variance(sweep, size), sweep.model)
    others = torch.ones(len(var), dtype=torch.bool).index_fill(0, at, False)
    assert len(at) == size and float(var[at].min()) >= float(var[others].max()) * (1 - 1e-12)


def test_a_wider_prior_has_the_larger_variances():
    """Where priors differ they decide as much as the curvature does."""
    net, x = make("mlp")
    sweep = make_sweep(
        net, x, targets(), prior={"0.*": Normal(0.0, 1e-3), "2.*": Normal(0.0, 10.0)}
    )
    assert set(largest_variance(sweep, 14)) == {"2.weight", "2.bias"}
    chosen = largest_variance(sweep, 15)
    assert sum(len(chosen[n]) for n in ("0.weight", "0.bias") if n in chosen) == 1


def test_the_largest_weights_are_chosen():
    net, x = make("mlp")
    sweep = make_sweep(net, x, targets())
    flat = torch.cat([v.reshape(-1) for v in sweep.values.values()]).abs()
    at = columns(largest_magnitude(sweep, 9), sweep.model)
    assert set(at.tolist()) == set(flat.topk(9).indices.tolist())


@pytest.mark.parametrize("choice", CHOICES)
def test_equal_weights_are_taken_in_order_and_places_ascend(choice):
    torch.manual_seed(0)
    net, x = nn.Linear(6, 2).double(), torch.ones(4, 6).double()
    with torch.no_grad():
        net.weight.fill_(0.5)
        net.bias.fill_(0.5)
    chosen = CHOICES[choice](make_sweep(net, x, targets(4)), 5)
    assert {n: p.tolist() for n, p in chosen.items()} == {"weight": [0, 1, 2, 3, 4]}
    everything = CHOICES[choice](make_sweep(net, x, targets(4)), 14)
    assert {n: p.tolist() for n, p in everything.items()} == {
        "weight": list(range(12)),
        "bias": [0, 1],
    }


def test_weights_that_no_example_reaches_come_first():
    """Their variance is the prior's, which is documented."""
    net, x = make("mlp")
    x = x.clone()
    x[:, 2] = 0.0
    chosen = largest_variance(make_sweep(net, x, targets()), 6)
    assert {n: p.tolist() for n, p in chosen.items()} == {"0.weight": [2, 7, 12, 17, 22, 27]}


def test_only_random_parameters_are_looked_at():
    net, x = make("mlp")
    sweep = make_sweep(net, x, targets(), random="last")
    for choose in CHOICES.values():
        assert set(choose(sweep, 5)) <= {"2.weight", "2.bias"}


# --- masks ----------------------------------------------------------------------------------------


def blank(model):
    return {n: torch.zeros(s.shape, dtype=torch.bool) for n, s in model.sites.items()}


def test_masks_are_flat_places_in_the_networks_order():
    net, x = make("mlp")
    model = make_sweep(net, x, targets()).model
    masks = blank(model)
    masks["0.weight"][1, 2] = masks["0.weight"][0, 4] = masks["2.bias"][1] = True
    found = masked({n: masks[n] for n in ("2.bias", "0.weight", "0.bias")}, model)
    assert list(found) == ["0.weight", "2.bias"]
    assert found["0.weight"].tolist() == [4, 7] and found["2.bias"].tolist() == [1]
    arrays = {"0.weight": masks["0.weight"].numpy(), "2.bias": [False, True]}
    assert {n: p.tolist() for n, p in masked(arrays, model).items()} == {
        n: p.tolist() for n, p in found.items()
    }


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (
            {"0.wieght": [True]},
            r"a mask is given for '0.wieght', which is no trainable parameter. Did you mean "
            r"'0.weight'\? Known: 0.bias",
        ),
        (
            {"2.bias": torch.ones(3, dtype=torch.bool)},
            r"the mask of '2.bias' has shape \(3,\); expected that of the parameter, \(2,\)",
        ),
        (
            {"2.bias": torch.ones(2)},
            "the mask of '2.bias' is of torch.float32; expected torch.bool",
        ),
        ({"2.bias": [0, 1]}, "the mask of '2.bias' is of torch.int64; expected torch.bool"),
        (
            {"2.bias": [False, False], "0.bias": [False] * 6},
            "the masks of 2.bias, 0.bias choose no weight; set at least one to True",
        ),
        (
            {"2.bias": "first"},
            r"the mask of '2.bias' cannot be read as a tensor \(.*\); give one of torch.bool",
        ),
        (
            {"2.weight": [[True], [True, False]]},
            "the mask of '2.weight' cannot be read as a tensor",
        ),
        ({}, "the masks of no parameter choose no weight"),
    ],
)
def test_masks_that_do_not_fit_say_so(masks, message):
    net, x = make("mlp")
    with pytest.raises(SettingError, match=message):
        masked(masks, make_sweep(net, x, targets()).model)
