"""Findings: each where it belongs, none where nothing is wrong, and what becomes of them."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import credo
from credo.core.errors import CredoError, FindingError, FindingWarning
from credo.engine.diagnose import checks, effective_draws, sentence, split_r_hat

G = torch.Generator().manual_seed(0)
X = torch.randn(200, 5, generator=G)
Y = X @ torch.randn(5, 1, generator=G) + 0.5 * torch.randn(200, 1, generator=G)
pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")


def bnn(net=None, likelihood=None):
    torch.manual_seed(0)
    net = nn.Linear(5, 1) if net is None else net
    return credo.BNN(net, likelihood or credo.likelihoods.Gaussian(std=0.5))


def names(fitted):
    return [finding.name for finding in fitted.diagnose()]


def test_nothing_is_found_where_nothing_is_wrong():
    for method in ("map", "vi", "laplace", "hmc", "exact"):
        assert bnn().fit((X, Y), method, progress=False).diagnose() == [], method


@pytest.mark.slow
def test_no_false_alarms_on_well_behaved_fits():
    """100 fits by five methods to linear data of their own: at most 5 may say anything."""
    loud = []
    for seed in range(20):
        source = torch.Generator().manual_seed(100 + seed)
        x = torch.randn(60 + 20 * seed, 4, generator=source)
        y = (x @ torch.randn(4, 1, generator=source)).tanh()
        y = y + 0.2 * torch.randn(len(x), 1, generator=source)
        for method in ("map", "vi", "laplace", "ivon", "deep_ensemble"):
            torch.manual_seed(seed)
            fitted = credo.BNN(nn.Linear(4, 1), "gaussian").fit((x, y), method, seed=seed)
            loud += [(seed, method, *names(fitted))] if fitted.diagnose() else []
    assert len(loud) <= 5, loud


def test_a_fit_that_is_much_too_short():
    found = bnn().fit((X, Y), "vi", epochs=5).diagnose()
    assert [f.name for f in found if f.severity == "serious"][-1] == "spread at its start"
    assert "init_std=0.01" in found[-1].evidence and "train longer" in sentence(found[-1])
    assert "still falling" in names(bnn().fit((X, Y), "map", epochs=40, lr=1e-3))


def test_labels_that_inputs_say_nothing_of():
    labels = torch.randint(0, 3, (200,), generator=torch.Generator().manual_seed(3))
    net = nn.Linear(5, 3)
    fitted = bnn(net, "categorical").fit((X, labels), "vi", progress=False)
    (found,) = fitted.diagnose()
    assert found.name == "no better than a constant" and "beside a KL of" in found.evidence


def test_noise_that_drowns_the_data():
    """Many more weights than data, under a prior that lets them say little: the posterior ends
    there.
    """
    digits = credo.data.load("digits")
    data = digits["x"][:100] / 16.0, digits["y"][:100]
    torch.manual_seed(0)
    net, prior = credo.nets.mlp(64, (100,), 10), credo.priors.FanIn(1.0)
    fitted = credo.BNN(net, "categorical", prior).fit(data, "vi", progress=False)
    assert "no better than a constant" in names(fitted)


def test_chains_that_have_not_mixed():
    fitted = bnn().fit((X, Y), "metropolis", num_warmup=0, num_draws=60, init="prior")
    assert {"chains not mixed", "few effective draws"} <= set(names(fitted))


def test_members_that_are_one_and_the_same():
    """One start for all, and no noise of batches; a linear model has one optimum, and none to
    tell of.
    """
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    given = {"epochs": 20, "batch_size": 200, "lr": 0.05, "progress": False}
    fitted = bnn(net).fit((X, Y), "deep_ensemble", init=net.state_dict(), **given)
    assert "members alike" in names(fitted)
    assert "members alike" not in names(bnn().fit((X, Y), "deep_ensemble", **given))


def test_normalisation_that_no_data_have_set():
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    fitted = bnn(net).fit((X, Y), "sgld", num_warmup=5, num_draws=4, thin=1)
    assert "untrained normalisation" in names(fitted)


def test_strict_makes_them_an_error_and_the_fit_is_kept():
    strict = bnn()
    with pytest.raises(FindingError, match="spread at its start"):
        strict.fit((X, Y), "vi", epochs=5, strict=True)
    assert strict.is_fitted and names(strict)[-1] == "spread at its start"
    bnn().fit((X, Y), "vi", strict=True, progress=False)


def test_they_are_warned_of():
    with pytest.warns(FindingWarning, match=r"spread at its start \(serious\): .*; train longer"):
        bnn().fit((X, Y), "vi", epochs=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bnn().fit((X, Y), "vi", progress=False)


def test_they_are_stored_with_the_fit(tmp_path):
    fitted = bnn().fit((X, Y), "vi", epochs=5, run=tmp_path / "run")
    fitted.save(tmp_path / "saved")
    for place in ("run", "saved"):
        assert credo.load(tmp_path / place, nn.Linear(5, 1)).diagnose() == fitted.diagnose()
    again = bnn().fit((X, Y), "vi", epochs=5, run=tmp_path / "run")
    assert again.diagnose() == fitted.diagnose() != []


def test_without_a_fit_there_is_nothing_to_diagnose():
    with pytest.raises(CredoError, match="has no posterior yet"):
        bnn().diagnose()


def test_r_hat_and_effective_draws():
    """Of 4 independent chains, of chains around different means, and of AR(1) with 0.9, whose
    draws count as 1/19; within a quarter, five standard errors at this length.
    """
    rng = np.random.default_rng(0)
    free = rng.normal(size=(4, 2000))
    assert abs(split_r_hat(free) - 1) < 0.01 and effective_draws(free) > 6000
    assert split_r_hat(free + np.arange(4)[:, None]) > 1.3
    slow = np.zeros((4, 20_000))
    for t in range(1, slow.shape[1]):
        slow[:, t] = 0.9 * slow[:, t - 1] + rng.normal(size=4)
    assert abs(effective_draws(slow) / (slow.size / 19) - 1) < 0.25


def test_every_check_says_what_it_looks_for():
    assert all(check.__doc__ for check in checks.values())


def test_a_check_that_cannot_be_made_is_a_finding_and_the_fit_is_kept(monkeypatch):
    def broken(case):
        raise RuntimeError("no copy of this\nmore")

    monkeypatch.setitem(checks, "members alike", broken)
    (found,) = bnn().fit((X, Y), "map", progress=False).diagnose()
    assert found.name == "not checked"
    assert found.evidence == "'members alike' could not be checked: no copy of this"
