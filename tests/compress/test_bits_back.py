"""Bits-back coding of real digits: everything comes back, and the net length is the objective."""

import numpy as np
import pytest
import torch
from torch import nn
from zoo.stats import Z

import credo
from credo.compress.bits_back import bits_back, unpack
from credo.core.errors import CredoError, RunError, SettingError

SEEDS = range(12)
SLACK = 64  # bits: the coder's state, rounding up to bytes, probabilities in 65536ths


@pytest.fixture(scope="module")
def digits():
    """800 digits of 4 x 4 pixels, and a network of 334 weights fitted to them."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.tensor(bunch.images[:800], dtype=torch.float32)[:, None] / 16
    x, y = nn.functional.avg_pool2d(images, 2).flatten(1), torch.tensor(bunch.target[:800])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 10))
    bnn = credo.BNN(net, "categorical").fit(
        (x, y), "vi", epochs=60, batch_size=100, lr=2e-2, progress=False
    )
    return bnn, x, y


@pytest.fixture(scope="module")
def sent(digits, tmp_path_factory):
    bnn, x, y = digits
    folder = tmp_path_factory.mktemp("bits_back")
    return [bits_back(bnn, (x, y), folder / f"{seed}.credo", seed) for seed in SEEDS]


def test_labels_weights_and_random_bits_come_back(digits, sent):
    bnn, x, y = digits
    for report in sent:
        got = unpack(report.path, bnn, x)
        assert torch.equal(got.labels, y)
        assert all(torch.equal(got.weights[name], value) for name, value in report.weights.items())
        assert np.array_equal(got.initial, report.initial)
    assert not np.array_equal(sent[0].initial, sent[1].initial)


def test_the_net_length_is_that_of_the_draw(sent):
    for report in sent:
        assert report.path.stat().st_size == report.file_bytes
        assert (
            report.net_bits == 8 * (report.file_bytes - report.header_bytes) - report.initial_bits
        )
        assert abs(report.net_bits - report.ideal_bits) < 0.02 * report.ideal_bits + SLACK


def test_the_mean_over_seeds_is_the_objective(digits, sent):
    """A z-test at 5 deviations, one failure in two million, with the noise of both sides; the
    coder's own few bits are allowed for.
    """
    bnn, x, y = digits
    objective = bnn.objective((x, y), samples=200)
    net = np.array([report.net_bits for report in sent])
    error = np.hypot(net.std(ddof=1) / len(net) ** 0.5, objective["error"] / np.log(2))
    assert abs(net.mean() - objective["bits_total"]) < Z * error + SLACK


def test_the_draws_are_draws_of_the_posterior(digits, sent):
    """Standardised weights of all files have mean zero and variance one: z-tests at 5
    deviations.
    """
    bnn, _, _ = digits
    family = bnn.posterior.factors[0]
    mean, std = family.mean(), family.std()
    scores = (
        torch.cat([((r.weights[n] - mean[n]) / std[n]).flatten() for r in sent for n in mean])
        .detach()
        .double()
    )
    assert abs(float(scores.mean())) < Z / len(scores) ** 0.5
    assert (
        abs(float(scores.var()) - 1) < Z * (2 / len(scores)) ** 0.5 + 2**-4 / 12 * 2
    )  # the grid adds at most (std / 4)^2 / 12


def test_a_finer_grid_costs_more_random_bits_and_no_more_net(digits, tmp_path):
    bnn, x, y = digits
    coarse, fine = (bits_back(bnn, (x, y), tmp_path / "b.credo", 1, bits) for bits in (7, 11))
    assert fine.precision_bits == 11 and fine.initial_bits > coarse.initial_bits + 3 * 334
    assert abs(fine.net_bits - fine.ideal_bits) < 0.02 * fine.ideal_bits + SLACK


def test_batches_in_order_are_one_data_set(digits, tmp_path):
    bnn, x, y = digits
    one = bits_back(bnn, (x, y), tmp_path / "a.credo", 0)
    several = bits_back(
        bnn,
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 256),
        tmp_path / "b.credo",
        0,
    )
    assert one.path.read_bytes() == several.path.read_bytes()


def test_damaged_and_foreign_files_are_refused(digits, sent, tmp_path):
    bnn, x, _ = digits
    data, path = sent[0].path.read_bytes(), tmp_path / "bad.credo"
    newer = data[:4] + b"\x02" + data[5:]
    for other, words in (
        (data[:-1], "cut or altered"),
        (b"PK" + data, "no bits-back file"),
        (newer, "newer credo"),
        (data[:8], "no bits-back"),
    ):
        path.write_bytes(other)
        with pytest.raises(RunError, match=words):
            unpack(path, bnn, x)
    with pytest.raises(RunError, match="Cannot read"):
        unpack(tmp_path / "none.credo", bnn, x)


def test_the_precision_must_fit_the_coder(digits, tmp_path):
    bnn, x, y = digits
    for bits in (-1, 30, 2.5):
        with pytest.raises(SettingError, match="precision_bits"):
            bits_back(bnn, (x, y), tmp_path / "x.credo", 0, bits)


@pytest.mark.parametrize(
    "likelihood, prior, method, random, words",
    [
        ("categorical", None, "map", "all", "mean-field"),
        ("categorical", None, "vi", "weights", "mean-field"),
        ("categorical", torch.distributions.Laplace(0.0, 1.0), "vi", "all", "normal prior"),
        ("gaussian", None, "vi", "all", "categorical"),
    ],
)
def test_other_posteriors_priors_and_likelihoods_are_refused(
    likelihood, prior, method, random, words, tmp_path
):
    x = torch.linspace(-1, 1, 20)[:, None]
    y = (x > 0).long().squeeze(1) if likelihood == "categorical" else x.sin()
    net = nn.Linear(1, 2 if likelihood == "categorical" else 1)
    bnn = credo.BNN(net, likelihood, prior, random).fit((x, y), method, epochs=1, progress=False)
    with pytest.raises(CredoError, match=words):
        bits_back(bnn, (x, y), tmp_path / "x.credo")
