"""Inputs and targets on wild scales: the same model as that of data standardised by hand."""

import copy
import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import credo
from credo.audit import reference
from credo.core.errors import CredoError, DataError
from credo.core.standardised import Standardised
from credo.data.source import Columns
from credo.likelihoods import FullGaussian, Gaussian, Heteroscedastic, Laplace, StudentT
from credo.tasks.distill import distill

N, D = 80, 3
pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")
SCALE = torch.tensor([1e-8, 1e8, 30.0], dtype=torch.float64)
SHIFT = torch.tensor([0.0, 3e8, 2000.0], dtype=torch.float64)


def numbers(seed=0, targets=1):
    """Standardised inputs and targets, and the same on wild scales, all in double precision."""
    source = torch.Generator().manual_seed(seed)
    z = torch.randn(N, D, generator=source, dtype=torch.float64)
    v = torch.tanh(z @ torch.randn(D, targets, generator=source, dtype=torch.float64))
    v = v + 0.1 * torch.randn(N, targets, generator=source, dtype=torch.float64)
    z, v = ((t - t.mean(0)) / t.std(0, correction=0) for t in (z, v))
    return z, v, z * SCALE + SHIFT, 1e5 * v - 4e5


def net(outputs=1, seed=0):
    torch.manual_seed(seed)
    return credo.nets.mlp(D, (12,), outputs)


def pair(likelihood="gaussian", method="map", targets=1, outputs=None, **settings):
    """The model of wild data, and that of data standardised by hand."""
    z, v, x, y = numbers(targets=targets)
    settings = {"progress": False} | settings
    outputs = outputs or targets
    wild = credo.BNN(net(outputs), likelihood).fit((x, y), method, **settings)
    hand = credo.BNN(net(outputs), likelihood, standardise=False)
    return wild, hand.fit((z.float(), v.float()), method, **settings), (z.float(), v), (x, y)


def same_predictions(wild, hand, z, x):
    ours, theirs = wild.predict(x), hand.predict(z)
    assert torch.allclose((ours.mean + 4e5) / 1e5, theirs.mean, atol=1e-5)
    assert torch.allclose(ours.std / 1e5, theirs.std, rtol=1e-5)
    assert torch.allclose(ours.epistemic / 1e10, theirs.epistemic, rtol=1e-4, atol=1e-6)


METHODS = {
    "vi": {"epochs": 30},
    "map": {"epochs": 50},
    "laplace": {"epochs": 50},
    "hmc": {"num_chains": 1, "num_warmup": 10, "num_draws": 20},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_fit_is_that_of_data_standardised_by_hand(method):
    wild, hand, (z, v), (x, y) = pair(method=method, **METHODS[method])
    same_predictions(wild, hand, z, x)
    ours, theirs = wild.evaluate((x, y)), hand.evaluate((z, v))
    assert ours["rmse"] == pytest.approx(1e5 * theirs["rmse"], rel=1e-4)
    assert ours["nll"] == pytest.approx(theirs["nll"] + math.log(1e5), abs=1e-4)
    for mine, other in zip(wild.posterior.state_dict(), hand.posterior.state_dict(), strict=True):
        assert mine == other  # the network's own names
    assert wild.standardised.parts == ["inputs", "targets"] and hand.standardised is None
    assert "standardised" in repr(wild) and "standardised" not in repr(hand)


def test_wild_scales_cost_nothing_in_accuracy():
    _, _, x, y = numbers()
    bnn = credo.BNN(net(), "gaussian").fit((x, y), "map", epochs=300, progress=False)
    assert bnn.evaluate((x, y))["rmse"] < 0.3e5  # of a deviation of 1e5


@pytest.mark.parametrize(
    ("likelihood", "targets", "outputs"),
    [
        (Gaussian(num_outputs=2), 2, 2),
        (Laplace(), 1, 1),
        (StudentT(), 2, 2),
        (Heteroscedastic(), 2, 4),
        (FullGaussian(num_outputs=2), 2, 2),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_likelihood_of_learned_noise_takes_the_units_along(likelihood, targets, outputs):
    wild, hand, (z, v), (x, y) = pair(likelihood, "map", targets, outputs, epochs=20)
    same_predictions(wild, hand, z, x)
    shift = targets * math.log(1e5)
    ours, theirs = wild.predict(x), hand.predict(z)
    assert torch.allclose(ours.log_prob(y), theirs.log_prob(v) - shift, atol=2e-4)
    assert torch.allclose(ours.entropy, theirs.entropy + shift, atol=2e-3)
    low, high = ours.interval(0.9)
    inner, outer = theirs.interval(0.9)
    assert torch.allclose((low + 4e5) / 1e5, inner, atol=1e-3)
    assert torch.allclose((high + 4e5) / 1e5, outer, atol=1e-3)
    drawn = ours.likelihood.sample(ours.outputs, 0)
    assert torch.allclose(
        (drawn + 4e5) / 1e5, theirs.likelihood.sample(theirs.outputs, 0), atol=1e-4
    )
    information = ours.likelihood.information(ours.outputs)[..., :targets, :targets]
    inside = theirs.likelihood.information(theirs.outputs)[..., :targets, :targets]
    assert torch.allclose(information * 1e10, inside, rtol=1e-4)


def test_a_density_has_the_jacobian():
    wild, _, _, (x, y) = pair(epochs=20)
    p = wild.predict(x)
    std = float(p.likelihood.std(p.outputs.double()))
    expected = scipy.stats.norm(p.mean.double().numpy(), std).logpdf(y.numpy()).squeeze(1)
    assert np.allclose(p.log_prob(y).double().numpy(), expected, atol=1e-4)
    assert 1e3 < std < 3e5


def test_standard_inputs_are_left_alone_to_the_bit():
    z, v, _, _ = numbers()
    z, v = z[:20].float(), v[:20].float()
    fits = [
        credo.BNN(net(), "gaussian", standardise=asked).fit((z, v), "vi", epochs=5, progress=False)
        for asked in ("auto", False)
    ]
    assert fits[0].standardised is None
    states = [fit.posterior.state_dict() for fit in fits]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert fits[0].history[-1]["nll"] == fits[1].history[-1]["nll"]


def wild(x):
    columns = Columns()
    for rows in torch.as_tensor(x).split(7):
        columns.add(rows)
    return columns.wild


def test_what_counts_as_wild():
    source = torch.Generator().manual_seed(1)
    for seed in range(20):
        assert not wild(torch.randn(20, 10, generator=source)), seed
    digits = torch.as_tensor(credo.data.load("digits")["x"], dtype=torch.float32).flatten(1)
    pixels = digits / digits.max()
    rare = torch.zeros(1000, 2)
    rare[:, 0], rare[3, 1] = torch.rand(1000, generator=source), 1 / 255
    assert not wild(pixels) and not wild(rare) and not wild(torch.rand(50, 2, generator=source))
    assert not wild(torch.ones(10, 3) * 1e8)  # nothing varies
    assert wild(16 * pixels)
    for size in (1e-8, 1e8):
        assert wild(torch.cat([pixels[:, 20:25], size * pixels[:, 25:26]], 1))
    assert wild(2000.0 + 10 * torch.rand(50, 1, generator=source))
    assert wild(torch.as_tensor(credo.data.load("wine")["x"]))
    assert not wild(torch.ones(10, 3).long()) and not wild(torch.rand(10, 3, 3) * 100)


def test_units_are_means_and_deviations_and_constants_count_as_one():
    x = torch.cat([numbers()[2], torch.full((N, 1), 7e3, dtype=torch.float64)], 1)
    columns = Columns()
    for rows in x.split(9):
        columns.add(rows)
    mean, std = columns.units()
    assert torch.allclose(mean, x.mean(0)) and float(std[-1]) == 1.0
    assert torch.allclose(std[:-1], x[:, :-1].std(0, correction=0))


@pytest.mark.parametrize(
    ("asked", "prior", "found"),
    [
        ("auto", torch.distributions.Normal(0.0, 1.0), None),
        ("auto", "ard", None),
        (False, None, None),
        (True, torch.distributions.Normal(0.0, 1.0), ["inputs", "targets"]),
    ],
)
def test_a_prior_of_the_user_switches_it_off_and_true_on(asked, prior, found):
    _, _, x, y = numbers()
    bnn = credo.BNN(net(), "gaussian", prior, standardise=asked)
    bnn.fit((x.float() / 1e4, y.float() / 1e4), "map", epochs=2, progress=False)
    assert (None if bnn.standardised is None else bnn.standardised.parts) == found


def test_true_standardises_what_is_not_wild_too():
    z, v, _, _ = numbers()
    bnn = credo.BNN(net(), "gaussian", standardise=True).fit(
        (z, v), "map", epochs=2, progress=False
    )
    assert bnn.standardised.parts == ["inputs", "targets"]


def test_noise_that_is_given_leaves_targets_alone():
    _, _, x, y = numbers()
    bnn = credo.BNN(net(), Gaussian(std=1e4)).fit((x, y), "map", epochs=2, progress=False)
    assert bnn.standardised.parts == ["inputs"]
    labels = (y > y.mean()).long().squeeze(1)
    bnn = credo.BNN(net(2)).fit((x, labels), "map", epochs=2, progress=False)
    assert bnn.standardised.parts == ["inputs"]
    assert bnn.predict(x).probs.shape == (1, N, 2)


def test_networks_that_look_inputs_up_are_left_alone():
    class Ids(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(50, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.out(self.table(x.long()).mean(1))

    x = torch.randint(50, (40, 3)).float()
    bnn = credo.BNN(Ids(), "gaussian").fit((x, torch.randn(40)), "map", epochs=2, progress=False)
    assert bnn.standardised is None


def test_refusals():
    _, _, x, y = numbers()
    with pytest.raises(CredoError, match="standardise='yes' is not valid"):
        credo.BNN(net(), "gaussian", standardise="yes")
    with pytest.raises(DataError, match=r"one real tensor \(N, D\)"):
        credo.BNN(credo.nets.small_cnn(), standardise=True).fit(
            (torch.rand(4, 1, 8, 8), torch.arange(4)), "map", epochs=1, progress=False
        )
    bnn = credo.BNN(net(), "gaussian").fit((x, y), "map", epochs=2, progress=False)
    with pytest.raises(DataError, match=r"takes one tensor \(N, 3\)"):
        bnn.predict(x[:, :2])
    with pytest.raises(DataError, match="takes one tensor"):
        bnn.predict(x[:, :1])


def test_loaders_and_data_sets_are_standardised_as_arrays_are():
    _, _, x, y = numbers()
    data = TensorDataset(x.float(), y.float())
    args = {"epochs": 3, "batch_size": 16, "progress": False}
    whole = credo.BNN(net(), "gaussian").fit((x.float(), y.float()), "map", **args)
    rows = credo.BNN(net(), "gaussian").fit(_Rows(data), "map", **args)
    batches = credo.BNN(net(), "gaussian").fit(DataLoader(data, 16), "map", **args)
    for other in (rows, batches):
        units = other.standardised.tensors()
        for name, tensor in whole.standardised.tensors().items():
            assert torch.allclose(units[name], tensor, rtol=1e-10)
    assert torch.allclose(rows.predict(x).mean, whole.predict(x).mean)
    assert len(batches.history) == 3


class _Rows(torch.utils.data.Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, place):
        return self.data[place]


def test_saved_runs_and_models_remember_their_units(tmp_path):
    _, _, x, y = numbers()
    settings = {"epochs": 4, "progress": False, "run": tmp_path / "run"}
    bnn = credo.BNN(net(), "gaussian").fit((x, y), "vi", validation=(x, y), **settings)
    expected = bnn.predict(x[:9])
    bnn.save(tmp_path / "saved")
    for place in ("run", "saved"):
        other = credo.load(tmp_path / place, net(seed=3))
        assert torch.equal(other.predict(x[:9]).mean, expected.mean)
        assert torch.equal(other.predict(x[:9]).log_prob(y[:9]), expected.log_prob(y[:9]))
        assert other.standardised.parts == ["inputs", "targets"]
    again = credo.BNN(net(), "gaussian").fit((x, y), "vi", validation=(x, y), **settings)
    assert torch.equal(again.predict(x[:9]).mean, expected.mean)  # adopted
    with pytest.raises(CredoError, match="holds another run"):
        credo.BNN(net(), "gaussian").fit((2 * x, y), "vi", validation=(x, y), **settings)
    nll = bnn.history[-1]["validation_nll"]
    assert nll == pytest.approx(bnn.evaluate((x, y))["nll"], rel=0.05)  # the units of y


def test_a_run_that_was_stopped_goes_on_with_its_units(tmp_path):
    _, _, x, y = numbers()

    class Stop(Exception):
        pass

    def stop(row):
        if row["epoch"] == 2:
            raise Stop

    common = {"epochs": 6, "progress": False}
    whole = credo.BNN(net(), "gaussian").fit((x, y), "vi", **common)
    with pytest.raises(Stop):
        credo.BNN(net(), "gaussian").fit((x, y), "vi", run=tmp_path, callbacks=[stop], **common)
    resumed = credo.BNN(net(), "gaussian").fit((x, y), "vi", run=tmp_path, **common)
    assert torch.equal(resumed.predict(x).mean, whole.predict(x).mean)


def test_callbacks_predict_in_the_units_of_y():
    _, _, x, y = numbers()
    bnn, seen = credo.BNN(net(), "gaussian"), []
    watch = [lambda row: seen.append(float(bnn.predict(x, 4).mean.mean())) and None]
    bnn.fit((x, y), "vi", epochs=2, callbacks=watch, progress=False)
    assert all(abs(mean + 4e5) < 2e5 for mean in seen) and len(seen) == 2


def test_update_keeps_the_first_units():
    _, _, x, y = numbers()
    bnn = credo.BNN(net(), "gaussian").fit((x[:40], y[:40]), "vi", epochs=4, progress=False)
    before = bnn.standardised
    bnn.update((x[40:], y[40:]), epochs=4, progress=False)
    assert bnn.standardised is before
    bnn.fit((x[40:], y[40:]), "vi", epochs=1, progress=False)
    assert not torch.equal(bnn.standardised.x_mean, before.x_mean)


def test_double_precision_and_functions():
    z, v, x, y = numbers()
    bnn = credo.BNN(net().double(), "gaussian").fit((x, y), "map", epochs=5, progress=False)
    assert bnn.predict(x).mean.dtype == torch.float64
    assert torch.allclose(bnn.functions(x, 1)[0], bnn.predict(x).outputs[0])
    drawn = credo.BNN(net(), "gaussian", standardise=True)
    assert drawn.predict(z.float(), source="prior").mean.shape == (N, 1)  # before a fit: as it is


def test_offsets_beyond_single_precision():
    z, v, x, _ = numbers()
    y = v + 1e7
    bnn = credo.BNN(net(), "gaussian").fit((x, y), "map", epochs=100, progress=False)
    assert bnn.predict(x).mean.dtype == torch.float64
    assert bnn.evaluate((x, y))["rmse"] < 0.6


@pytest.mark.parametrize("shortcut", ["mean", "moments", "linear"])
def test_shortcuts(shortcut):
    wild, hand, (z, _), (x, _) = pair(method="vi", epochs=10)
    ours, theirs = wild.predict(x, shortcut=shortcut), hand.predict(z, shortcut=shortcut)
    assert torch.allclose((ours.mean + 4e5) / 1e5, theirs.mean, atol=1e-5)
    assert torch.allclose(ours.std / 1e5, theirs.std, rtol=1e-4)


def test_closed_forms_have_the_evidence_of_y():
    z, v, x, y = numbers()
    torch.manual_seed(0)
    line = nn.Linear(D, 1)
    wild = credo.BNN(line, "gaussian").fit((x, y), "exact", progress=False)
    hand = credo.BNN(line, "gaussian", standardise=False)
    hand.fit((z.float(), v.float()), "exact", progress=False)
    assert torch.allclose(
        (wild.predict(x).mean + 4e5) / 1e5, hand.predict(z.float()).mean, atol=1e-5
    )
    found = credo.compare([wild, wild], (x, y)).log_evidence[0]
    inside = hand.history[-1]["log_evidence"]
    assert found == pytest.approx(inside - N * math.log(1e5), abs=0.01)


def test_processes_are_in_the_units_of_y():
    z, v, x, y = numbers()
    make = lambda: credo.nets.mlp(D, (12,), 1)  # noqa: E731
    fan_in = credo.priors.FanIn(std=1.0)
    wild = credo.BNN(make(), "gaussian", fan_in, standardise=True)
    hand = credo.BNN(make(), "gaussian", fan_in)
    wild.fit((x, y), "nngp", progress=False)
    hand.fit((z.float(), v.float()), "nngp", progress=False)
    ours, theirs = wild.predict(x), hand.predict(z.float())
    assert torch.allclose((ours.mean + 4e5) / 1e5, theirs.mean, atol=1e-3)
    assert wild.functions(x, 2).mean() < -1e5


def test_objective_and_audit():
    wild, hand, (z, v), (x, y) = pair(method="vi", epochs=10)
    ours, theirs = wild.objective((x, y)), hand.objective((z, v))
    assert ours["nll"] == pytest.approx(theirs["nll"] + N * math.log(1e5), abs=0.1)
    assert ours["kl"] == pytest.approx(theirs["kl"], rel=1e-5)
    quick = {"num_chains": 2, "num_warmup": 10, "num_draws": 10, "progress": False}
    with pytest.warns(UserWarning, match="no ground truth"):
        truth = reference(wild, (x, y), **quick)
    assert truth.standardised is wild.standardised
    assert abs(float(truth.predict(x).mean.mean()) + 4e5) < 1e5


@pytest.mark.parametrize("inputs", ["training", "perturbed"])
def test_a_student_has_the_units_of_its_teacher(inputs, tmp_path):
    wild, _, _, (x, y) = pair(method="vi", epochs=200)
    done = distill(wild, net(2, 1), x, inputs=inputs, epochs=100, run=tmp_path, progress=False)
    student = done.student
    assert student.standardised.parts == ["inputs", "targets"]
    gap = (student.predict(x).mean - wild.predict(x).mean).square().mean().sqrt()
    assert gap < 0.3e5
    assert torch.equal(credo.load(tmp_path, net(2, 1)).predict(x).mean, student.predict(x).mean)
    with pytest.raises(CredoError, match="does not learn the size of its noise"):
        distill(wild, net(), x, likelihood=Gaussian(std=1.0), epochs=1, progress=False)


def test_a_user_perturbs_inputs_as_they_came():
    wild, _, _, (x, y) = pair(method="vi", epochs=2)
    seen = []

    def perturb(x, source):
        seen.append(x)
        return x

    distill(wild, net(2), x, inputs="perturbed", perturb=perturb, epochs=1, progress=False)
    assert abs(float(seen[0][:, 2].mean()) - 2000) < 50


def test_the_network_of_the_user_stays_as_it_is():
    _, _, x, y = numbers()
    own = net()
    before = copy.deepcopy(own.state_dict())
    bnn = credo.BNN(own, "gaussian").fit((x, y), "map", epochs=2, progress=False)
    bnn.predict(x)
    credo.compress.plain(bnn)
    assert not own._forward_hooks and not own._forward_pre_hooks
    assert all(torch.equal(before[name], t) for name, t in own.state_dict().items())


def test_units_are_found_again_in_what_is_stored():
    units = Standardised(x_mean=torch.ones(2), x_std=torch.ones(2))
    assert Standardised.of(units.tensors()).tensors().keys() == {"x_mean", "x_std"}
    assert units.log_volume == 0.0 and units.parts == ["inputs"]
