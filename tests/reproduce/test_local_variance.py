import hashlib

import numpy as np
import pytest
import torch

from credo.core.errors import DataError
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.local_variance import KINDS, Estimate, WeightNoise, _ordering, gradient


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    """Images of MNIST's shape whose brightness tells the class."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 600), ("test", 50)):
        y = rng.integers(0, 10, count).astype(np.uint8)
        arrays |= {
            f"x_{part}": (rng.random((count, 28, 28)) * 25 * (y[:, None, None] + 1)).astype(
                np.uint8
            ),
            f"y_{part}": y,
        }
    np.savez(tmp_path / "mnist.npz", **arrays)
    digest = hashlib.sha256((tmp_path / "mnist.npz").read_bytes()).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  mnist.npz\n")
    monkeypatch.setenv("CREDO_DATA", str(tmp_path))


def test_quick_run_measures_ratios_and_time(mnist):
    result = perform(make_experiment("local_variance", {"quick": True}))
    ratios, absolute, timing = result.outcome.tables
    assert [row.label for row in ratios.rows] == [kind.label for kind in KINDS[1:]]
    assert ratios.rows[1].paper["top, 1 epochs"] == pytest.approx(4.9e4 / 7.8e3)
    assert all(value > 0 for row in ratios.rows for value in row.measured.values())
    assert [row.label for row in timing.rows] == ["local", "separate samples"] and len(
        absolute.rows
    ) == 4


def test_the_same_seed_gives_the_same_variances(mnist):
    first, second = (
        perform(make_experiment("local_variance", {"quick": True}), seed=1).outcome.tables[0]
        for _ in range(2)
    )
    assert [row.measured for row in first.rows] == [row.measured for row in second.rows]


def test_without_the_data_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("CREDO_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CREDO_DATA_URL", raising=False)
    with pytest.raises(DataError, match="mnist"):
        perform(make_experiment("local_variance", {"quick": True}))


def test_the_ordering_needs_every_gap_to_be_significant():
    cells = {("top", 0), ("top", 1), ("bottom", 0), ("bottom", 1)}
    good = {
        (kind.label, *cell): Estimate(float(place), 0.1)
        for place, kind in enumerate(KINDS)
        for cell in cells
    }
    assert _ordering(good).holds
    assert not _ordering(good | {("single sample", "top", 1): Estimate(1.1, 0.1)}).holds


def small(num_data=6):
    torch.manual_seed(0)
    return WeightNoise((3, 4, 2), 0.5, 1e-2, 10.0, num_data, torch.device("cpu"))


def batch(count):
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > 0).long()


def test_gradients_are_those_of_noise_that_moves_with_the_weight():
    """One shared draw w = W (1 + sqrt(alpha) eps): the gradient for W is that for w times 1 +
    sqrt(alpha) eps.
    """
    net, (x, y) = small(), batch(6)
    elbo = net.probe("weights", True)
    elbo.plan(net.model.shell(), x)
    (family,) = elbo.posterior.factors
    torch.manual_seed(5)
    found = family.layout.split(gradient(elbo, x, y))
    torch.manual_seed(5)
    eps = dict(zip(("0.weight", "2.weight"), torch.randn(12 + 8).split([12, 8]), strict=True))
    scales = {n: 1 + 0.5**0.5 * e.reshape(family.shapes[n]) for n, e in eps.items()}
    w = {
        n: (v.detach() * scales.get(n, 1.0)).requires_grad_(True) for n, v in family.mean().items()
    }
    loss = torch.nn.functional.cross_entropy(
        torch.func.functional_call(net.model.net, w, x), y, reduction="sum"
    )
    slopes = dict(zip(w, torch.autograd.grad(loss, list(w.values())), strict=True))
    for name, value in found.items():
        torch.testing.assert_close(value, slopes[name] * scales.get(name, 1.0))


def test_without_noise_all_estimators_give_the_plain_gradient_and_rows_add_up():
    net, (x, y) = small(), batch(6)
    whole = gradient(net.probe("weights", False), x, y)
    assert bool(whole.isfinite().all())
    for estimator in ("local", "per_example"):
        torch.testing.assert_close(gradient(net.probe(estimator, False), x, y, 4), whole)


def test_training_lowers_the_loss_and_keeps_alpha_below_one():
    net, (x, y) = small(200), batch(200)
    first = net.train(x, y, 1, 50, torch.Generator().manual_seed(0))
    last = net.train(x, y, 20, 50, torch.Generator().manual_seed(0))
    alphas = torch.cat([net.family.excess(name).detach().reshape(-1) for name in net.family.noised])
    assert last < first and bool((alphas < 1).all()) and float(alphas.mean()) != 0.5
    assert net.error(x, y) < 0.2
    net.probe("local", False)
    # a probe without noise is a copy
    assert float(net.family.excess("0.weight").detach().mean()) > 0


def test_alpha_learns_at_its_own_rate():
    slow, fast = (
        WeightNoise((3, 4, 2), 0.5, 1e-3, factor, 50, torch.device("cpu")) for factor in (1.0, 10.0)
    )
    moved = []
    for net in (slow, fast):
        net.train(*batch(50), 1, 50, torch.Generator().manual_seed(0))
        moved.append(float(net.family.raw_alpha[0].detach().abs().mean()))
    # Adam's first step has the size of its learning rate
    assert moved[1] == pytest.approx(10 * moved[0], rel=0.05)
