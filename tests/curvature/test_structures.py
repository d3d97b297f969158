"""The four forms of curvature against sums of brute-force Jacobians."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset
from zoo.curvature import ALL, OUTPUT, dense, ggn, make, make_job, make_sweep, matrix, targets
from zoo.models import make_model

from credo.core.errors import SettingError
from credo.curvature import structures
from credo.curvature import sweep as sweep_module
from credo.curvature.blocks import DiagonalBlock, FullBlock, KronBlock
from credo.curvature.structures import STRUCTURES
from credo.curvature.sweep import Sweep
from credo.data.intake import intake
from credo.engine.fit_job import FitJob
from credo.likelihoods import (
    Bernoulli,
    Categorical,
    ContinuousBernoulli,
    FullGaussian,
    Gaussian,
    Heteroscedastic,
    Laplace,
    Poisson,
    StudentT,
)
from credo.posteriors import Delta, EigenKron, Full, MeanField, Posterior, PosteriorPrior

pytestmark = pytest.mark.filterwarnings(
    "ignore:Using padding='same'",
    "ignore:There is a performance drop",
    "ignore:Derivatives of .* example by example",
)


def measured(name, sweep, rank=60):
    return matrix(STRUCTURES[name].measure(sweep, rank).blocks, sweep.model)


def block_diagonal(truth, blocks, model):
    """The entries within the blocks that are kept whole."""
    sizes, mask = {n: s.numel for n, s in model.random.items()}, torch.zeros_like(truth)
    starts, total = {}, 0
    for name, size in sizes.items():
        starts[name], total = total, total + size
    for block in blocks:
        for name in block.names:
            own = slice(starts[name], starts[name] + sizes[name])
            mask[own, own] = (
                1.0 if isinstance(block, FullBlock) else torch.eye(sizes[name]).double()
            )
    return truth * mask


@pytest.mark.parametrize("name", ALL)
def test_every_network_by_brute_force(name):
    net, x = make(name)
    sweep = make_sweep(net, x, targets(), output=OUTPUT.get(name))
    truth = ggn(net, x, sweep.model, OUTPUT.get(name))
    torch.testing.assert_close(measured("full", sweep), truth)
    torch.testing.assert_close(measured("diagonal", sweep), torch.diag(truth.diagonal()))
    # Three examples of two classes: rank three, so that the largest 60 eigenvalues are all there
    # are.
    torch.testing.assert_close(
        measured("low_rank", sweep), truth, rtol=1e-7, atol=1e-9 * float(truth.abs().max())
    )
    blocks = STRUCTURES["kfac"].measure(sweep, 0).blocks
    assert sorted(n for block in blocks for n in block.names) == sorted(sweep.model.random)
    kept = [block for block in blocks if not isinstance(block, KronBlock)]
    torch.testing.assert_close(matrix(kept, sweep.model), block_diagonal(truth, kept, sweep.model))


@pytest.mark.parametrize("name", ["mlp", "conv", "transformer", "positions"])
def test_single_precision_to_its_rounding(name):
    net, x = make(name, torch.float32)
    sweep = make_sweep(net, x, targets())
    truth = ggn(net.double(), x.double(), make_model(net.double(), likelihood="categorical"))
    for form in ("full", "diagonal"):
        found = measured(form, make_sweep(net.float(), x, targets()))
        expected = truth if form == "full" else torch.diag(truth.diagonal())
        torch.testing.assert_close(
            found, expected.double(), rtol=1e-4, atol=1e-5 * float(truth.abs().max())
        )
    assert sweep.model.values()[next(iter(sweep.model.random))].dtype == torch.float32


def regression(outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double(), torch.randn(
        5, 3
    ).double()


LIKELIHOODS = {
    "bernoulli": (Bernoulli, 1, lambda: torch.arange(5) % 2),
    "bernoulli-3": (Bernoulli, 3, lambda: torch.randint(0, 2, (5, 3))),
    "categorical": (Categorical, 4, lambda: torch.arange(5) % 4),
    "continuous_bernoulli": (ContinuousBernoulli, 2, lambda: torch.rand(5, 2)),
    "gaussian": (lambda: Gaussian([0.5, 2.0]), 2, lambda: torch.randn(5, 2)),
    "full_gaussian": (lambda: FullGaussian([[0.5, 0.2], [0.2, 0.3]]), 2, lambda: torch.randn(5, 2)),
    "heteroscedastic": (Heteroscedastic, 4, lambda: torch.randn(5, 2)),
    "laplace": (lambda: Laplace(0.5), 2, lambda: torch.randn(5, 2)),
    "student_t": (lambda: StudentT(3.5, 0.4), 2, lambda: torch.randn(5, 2)),
    "poisson": (Poisson, 2, lambda: torch.randint(0, 4, (5, 2))),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood(name):
    make_likelihood, outputs, make_y = LIKELIHOODS[name]
    net, x = regression(outputs)
    y = make_y()
    sweep = make_sweep(
        net, x, y.double() if y.is_floating_point() else y, make_likelihood().double()
    )
    truth = ggn(net, x, sweep.model)
    torch.testing.assert_close(measured("full", sweep), truth)
    torch.testing.assert_close(measured("diagonal", sweep), torch.diag(truth.diagonal()))
    torch.testing.assert_close(
        measured("low_rank", sweep), truth, rtol=1e-7, atol=1e-9 * float(truth.abs().max())
    )
    (bias,) = [b for b in STRUCTURES["kfac"].measure(sweep, 0).blocks if b.names == ("2.bias",)]
    torch.testing.assert_close(
        matrix([bias], sweep.model)[-outputs:, -outputs:], truth[-outputs:, -outputs:]
    )


def kron(left, right):
    return torch.kron(left, right)


def test_kronecker_factors_of_dense_layers():
    """A is the mean of a a^T; B the sum of g g^T, which is the exact block of the bias, whose
    derivative is g.
    """
    net, x = make("mlp")
    sweep = make_sweep(net, x, targets())
    truth = ggn(net, x, sweep.model)
    found = measured("kfac", sweep)
    index = {n: torch.arange(s.numel) for n, s in sweep.model.random.items()}
    start = 0
    for name in index:
        index[name], start = index[name] + start, start + len(index[name])
    for layer, inputs in (("0", x), ("2", torch.tanh(net[0](x)).detach())):
        w, b = index[f"{layer}.weight"], index[f"{layer}.bias"]
        own = truth[b][:, b]
        torch.testing.assert_close(found[w][:, w], kron(own, inputs.mT @ inputs / len(x)))
        torch.testing.assert_close(found[b][:, b], own)
        assert not bool(found[w][:, b].any())


def test_kronecker_factors_of_convolutions_average_over_places():
    """The expand form, from torch's own unfolding and gradients by the layer's output."""
    torch.manual_seed(0)
    layer, head = nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Linear(3, 2)
    net = nn.Sequential(layer, nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).double()
    x = torch.randn(4, 2, 5, 5).double()
    sweep = make_sweep(net, x, targets(4), random="0.*")
    z = layer(x).detach().requires_grad_()
    out = net[1:](z)
    root = sweep.model.likelihood.information_root(out.detach())
    (g,) = torch.autograd.grad(out, z, root[..., 0])  # two classes: one direction
    g = g.flatten(2).mT.reshape(-1, 3)
    a = nn.functional.unfold(x, 3, padding=1, stride=2).mT.reshape(-1, 18)
    found = measured("kfac", sweep)
    torch.testing.assert_close(found[:54, :54], kron(g.mT @ g, a.mT @ a / len(a)))
    torch.testing.assert_close(found[54:, 54:], g.mT @ g)


def test_one_example_and_one_direction_leave_nothing_to_approximate():
    net, x = make("mlp")
    sweep = make_sweep(net, x[:1], targets(1))
    truth = ggn(net, x[:1], sweep.model)
    blocks = STRUCTURES["kfac"].measure(sweep, 0).blocks
    found = matrix(blocks, sweep.model)
    torch.testing.assert_close(found, torch.where(found != 0, truth, 0.0))


def test_large_parameters_without_factors_keep_their_diagonal_beside_kronecker_factors(monkeypatch):
    net, x = make("embedding")
    sweep = make_sweep(net, x, targets())
    assert [type(b) for b in structures.kfac(sweep).blocks] == [KronBlock, KronBlock, FullBlock]
    monkeypatch.setattr(structures, "WHOLE_BLOCK_NUMEL", 10)
    assert [type(b) for b in structures.kfac(sweep).blocks] == [KronBlock, KronBlock, DiagonalBlock]
    own = matrix(structures.kfac(sweep).blocks[2:], sweep.model)
    torch.testing.assert_close(own.diagonal()[:42], ggn(net, x, sweep.model).diagonal()[:42])


@pytest.mark.parametrize("random", ["last", "weights", "*.bias", ["0.weight", "2.bias"]])
@pytest.mark.parametrize("form", ["full", "diagonal", "low_rank"])
def test_only_some_parameters(form, random):
    net, x = make("mlp")
    sweep = make_sweep(net, x, targets(), random=random)
    truth = ggn(net, x, sweep.model)
    expected = torch.diag(truth.diagonal()) if form == "diagonal" else truth
    torch.testing.assert_close(measured(form, sweep), expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("random", ["weights", "*.bias", "2.weight"])
def test_a_last_layer_of_several_outputs_with_weight_or_bias_alone(random):
    """Its curvature needs no Jacobian; the bias may lie before or after the weight, or be
    missing.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    for parameter in net[0].parameters():
        parameter.requires_grad_(False)
    x = torch.randn(9, 5).double()
    sweep = make_sweep(net, x, torch.arange(9) % 4, random=random)
    torch.testing.assert_close(measured("full", sweep), ggn(net, x, sweep.model))


def test_frozen_parameters_are_left_out():
    net, x = make("mlp")
    net[0].weight.requires_grad_(False)
    sweep = make_sweep(net, x, targets())
    assert list(sweep.model.random) == ["0.bias", "2.weight", "2.bias"]
    torch.testing.assert_close(measured("full", sweep), ggn(net, x, sweep.model))


@pytest.mark.parametrize("name", ["conv", "layer_norm", "unused", "mlp"])
@pytest.mark.parametrize("form", ["full", "diagonal", "kfac", "low_rank"])
@pytest.mark.parametrize("kind", ["ggn", "empirical"])
def test_little_memory_gives_the_same_numbers(name, form, kind, monkeypatch):
    net, x = make(name)
    sweep = make_sweep(net, x, targets(), kind=kind)
    whole = measured(form, sweep)
    for place in (structures, sweep_module):
        monkeypatch.setattr(place, "BUDGET", 1)
    torch.testing.assert_close(measured(form, sweep), whole)


def test_a_last_layer_in_parts(monkeypatch):
    net, x = make("mlp")
    sweep = make_sweep(net, x, targets(), random="last")
    whole = measured("full", sweep)
    monkeypatch.setattr(structures, "BUDGET", 1)
    torch.testing.assert_close(measured("full", sweep), whole)


@pytest.mark.parametrize("form", ["full", "diagonal", "kfac", "low_rank"])
def test_batches_of_a_loader_add_up(form):
    net, x = make("conv")
    whole = make_sweep(net, x, targets())
    model = whole.model
    fit_job = FitJob(intake(DataLoader(TensorDataset(x, targets()), batch_size=2)), 1, None, 1e-3)
    parts = Sweep(model, model.values(), model.buffers(), fit_job)
    torch.testing.assert_close(measured(form, parts), measured(form, whole))


def test_the_largest_eigenvalues_are_kept():
    """Of a matrix with a gap of 100 behind the fourth: two multiplications leave angles of at most
    100^-2 tan(start), Ritz values the square of it.

    The starting angle's tangent is below 30 for this seed's start, and for all but one in a
    thousand.
    """
    torch.manual_seed(0)
    net = nn.Linear(12, 1, bias=False).double()
    basis = torch.linalg.qr(torch.randn(12, 12).double())[0]
    values = torch.tensor([100.0, 50.0, 20.0, 10.0, *[0.1] * 8]).double()
    x = (basis * values.sqrt()).mT
    sweep = Sweep(
        model := make_model(net, likelihood=Gaussian(std=1.0)),
        model.values(),
        {},
        make_job(x, torch.randn(12, 1).double()),
    )
    found, angle = measured("low_rank", sweep, rank=4), 30 * 100.0**-2
    torch.testing.assert_close(
        torch.linalg.eigvalsh(found).flip(0)[:4], values[:4], rtol=angle**2, atol=0
    )
    torch.testing.assert_close(
        found, (basis[:, :4] * values[:4]) @ basis[:, :4].mT, rtol=0, atol=10 * angle
    )
    assert STRUCTURES["low_rank"].measure(sweep, 100).blocks[0].factor.shape == (12, 12)


def test_inputs_of_more_than_one_axis_before_the_features():
    """(N, T, D) has factors at T places, (T, N, D) has none; the numbers are the same."""
    (one, x), (other, _) = make("positions"), make("sequence")
    other.load_state_dict(one.state_dict())
    sweeps = [make_sweep(net, x, targets()) for net in (one, other)]
    assert [tap.places for tap in sweeps[0].taps().values()] == [6, 1] and list(
        sweeps[1].taps()
    ) == ["head"]
    for form in ("full", "diagonal"):
        torch.testing.assert_close(measured(form, sweeps[0]), measured(form, sweeps[1]))


def test_running_statistics_are_those_given():
    net, x = make("batch_norm_2d")
    model = make_model(net, likelihood="categorical")
    other = {n: b * 2 + 1 if b.is_floating_point() else b for n, b in model.buffers().items()}
    found = measured("full", Sweep(model, model.values(), other, make_job(x, targets())))
    net.load_state_dict(other, strict=False)
    torch.testing.assert_close(found, ggn(net, x, model))


def test_weights_are_those_given():
    net, x = make("mlp")
    model = make_model(net, likelihood="categorical")
    values = {n: v + 0.3 for n, v in model.values().items()}
    found = measured("full", Sweep(model, values, {}, make_job(x, targets())))
    net.load_state_dict(values)
    torch.testing.assert_close(found, ggn(net, x, model))
    rows, _ = dense(net, x, model)
    assert rows.shape == (3, 2, 50)


def earlier(kind):
    values = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
    if kind == "eigen_kron":
        return [
            EigenKron.of("weight", values["weight"], torch.eye(2), torch.eye(3), torch.ones(2, 3))
        ]
    return [{"mean_field": MeanField, "full": Full}[kind].start(values)]


@pytest.mark.parametrize(
    ("structure", "kind"),
    [
        ("kfac", "mean_field"),
        ("kfac", "eigen_kron"),
        ("diagonal", "full"),
        ("low_rank", "full"),
        ("full", "eigen_kron"),
    ],
)
def test_earlier_posteriors_without_a_place_are_refused_before_training(structure, kind):
    model = make_model(nn.Linear(3, 2))
    model.prior = PosteriorPrior(Posterior(earlier(kind)))
    with pytest.raises(
        SettingError,
        match=f"structure='{structure}' cannot add data to .* family '{kind}'; fit both with "
        "'diagonal'",
    ):
        STRUCTURES[structure].check(structure, model)


def test_earlier_posteriors_that_have_one():
    model = make_model(nn.Linear(3, 2))
    for structure, kind in (
        ("diagonal", "mean_field"),
        ("low_rank", "mean_field"),
        ("full", "mean_field"),
        ("full", "full"),
    ):
        model.prior = PosteriorPrior(
            Posterior([*earlier(kind), Delta.start({"rest": torch.zeros(2)})])
        )
        STRUCTURES[structure].check(structure, model)


def test_too_many_parameters_for_all_of_it():
    model = make_model(nn.Linear(20_000, 2), prior=Normal(0.0, 1.0))
    with pytest.raises(
        SettingError,
        match=r"structure='full' over 40002 parameters is too large \(at most 20000\); use "
        r"subset='last'",
    ):
        STRUCTURES["full"].check("full", model)
