"""How faithfully predictions are repeated: against scipy, closed forms and draws."""

import math

import pytest
import scipy.stats
import torch
from zoo.stats import Z

import credo
from credo.core.errors import CredoError
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, Poisson
from credo.predictive import Predictive
from credo.tasks.fidelity import _label_divergence, _value_divergence, fidelity, rank_correlation

MOVES = {"num_chains": 2, "num_warmup": 30, "num_draws": 8, "thin": 5, "lr": 0.2, "progress": False}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fitted(likelihood, outputs, y, method="sgld", **settings):
    x = random(len(y), 2).float()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = credo.nets.mlp(2, (5,), outputs)
    return credo.BNN(net, likelihood).fit((x, y), method, **settings | {"progress": False}), x


@pytest.fixture(scope="module")
def classes():
    y = torch.arange(40) % 3
    return [*fitted("categorical", 3, y, **MOVES), y]


@pytest.fixture(scope="module")
def values():
    y = random(40, 2, seed=3).float()
    return [*fitted("gaussian", 2, y, **MOVES), y]


@pytest.mark.parametrize("ties", [1000, 3])
def test_rank_correlation_is_scipys(ties):
    a, b = (random(50, seed=s).mul(2).mul(ties).round().div(ties) for s in (1, 2))
    b = a + b
    assert rank_correlation(a, b) == pytest.approx(
        scipy.stats.spearmanr(a.numpy(), b.numpy()).statistic, abs=1e-12
    )
    assert rank_correlation(a, a.exp()) == pytest.approx(1.0) and rank_correlation(
        a, -a
    ) == pytest.approx(-1.0)
    assert math.isnan(rank_correlation(a, torch.ones(50)))


def test_a_model_repeats_itself(classes, values):
    for bnn, x, y in (classes, values):
        found = fidelity(bnn, bnn, x, y)
        assert found["total_variation"] == pytest.approx(0.0, abs=1e-12) and found[
            "rank_correlation"
        ] == pytest.approx(1.0)
        assert (
            found["total_teacher"] == found["total_student"]
            and found["nll_teacher"] == found["nll_student"]
        )
    assert fidelity(classes[0], classes[0], classes[1])["agreement"] == 1.0


def test_keys_and_numbers_are_those_of_evaluate(classes, values):
    for (bnn, x, y), name in ((classes, "error"), (values, "rmse")):
        found, plain = fidelity(bnn, bnn, x, y), bnn.evaluate((x, y))
        wanted = 1 - plain["accuracy"] if name == "error" else plain["rmse"]
        assert found[f"{name}_student"] == pytest.approx(wanted, rel=1e-5)
        assert found["nll_teacher"] == pytest.approx(plain["nll"], rel=1e-5)
        assert found["total_teacher"] == pytest.approx(float(bnn.predict(x).total.mean()), rel=1e-5)
        both = {"total_variation", "kl", "total_teacher", "total_student", "rank_correlation"}
        assert set(fidelity(bnn, bnn, x)) == both | ({"agreement"} if name == "error" else set())


def test_slices_change_nothing(classes, values, monkeypatch):
    results = [fidelity(bnn, bnn, x, y) for bnn, x, y in (classes, values)]
    monkeypatch.setattr("credo.tasks.fidelity.ROWS", 7)
    for (bnn, x, y), before in zip((classes, values), results, strict=True):
        again = fidelity(bnn, bnn, x, y)
        free = (
            {"kl"} if bnn is values[0] else set()
        )  # two targets: the teacher's entropy is drawn, slice by slice
        assert {k: v for k, v in again.items() if k not in free} == pytest.approx(
            {k: v for k, v in before.items() if k not in free}, abs=1e-9
        )


def test_divergence_of_labels_is_the_sum_over_classes():
    one, other = (
        Predictive(random(6, 4, 3), Categorical()),
        Predictive(random(2, 4, 3, seed=1), Categorical()),
    )
    p, q = one.mean, other.mean
    assert _label_divergence(one, other, 0) == pytest.approx(
        float((p * (p / q).log()).sum(-1).mean())
    )
    binary, certain = (
        Predictive(f, Bernoulli()) for f in (random(6, 4, 2), 800 * torch.ones(1, 4, 2).double())
    )
    assert 0 < _label_divergence(binary, certain, 0) < math.inf


def test_divergence_of_normals_is_the_closed_form():
    one = Predictive(random(1, 5, 2), Heteroscedastic())
    other = Predictive(random(1, 5, 2, seed=1), Heteroscedastic())
    pairs = [p.likelihood.marginals(p.outputs[0]) for p in (one, other)]
    expected = float(torch.distributions.kl_divergence(*pairs).mean())
    assert _value_divergence(one, other, 0) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("make", [lambda: Gaussian(0.5), Poisson])
def test_divergence_of_mixtures_is_that_of_draws(make, draws):
    """Against 4,000 y of every component; a point student of counts, and any student of several
    draws, add the noise of one y each.
    """
    likelihood = make()
    one = Predictive(random(40, 6, 1).mul(0.5), likelihood)
    other = Predictive(random(draws, 6, 1, seed=1).mul(0.5), likelihood)
    y = likelihood.sample(one.outputs.expand(4000, -1, -1, -1), 1)
    gap = torch.stack(
        [
            likelihood.mixture_log_prob(one.outputs, r)
            - likelihood.mixture_log_prob(other.outputs, r)
            for r in y.flatten(0, 1)[:4000]
        ]
    )
    exact = gap.reshape(100, 40, 6).mean(1)  # 100 rounds over all components
    noise = float((gap.var(0) / 40).sum().sqrt()) / 6
    error = float((exact.var(0) / 100).sum().sqrt()) / 6
    assert abs(_value_divergence(one, other, 0) - float(exact.mean())) < Z * math.hypot(
        noise, error
    )


def test_predictions_of_different_kinds_are_refused(classes, values):
    with pytest.raises(CredoError, match="categorical with 3 column.*gaussian with 2 column"):
        fidelity(classes[0], values[0], classes[1])
