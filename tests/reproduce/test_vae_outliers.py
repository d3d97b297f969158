"""Tests of the experiment on out-of-distribution scores of autoencoders."""

import math

import pytest
import torch

from credo.core.errors import DataError, SettingError
from credo.data import load
from credo.report.html import render
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.vae_outliers import COMPRESSED, LIKELIHOODS, NAMES, PERTURBED, VAEOutliers

COLUMNS = ["ELBO", "log p(x)", PERTURBED, COMPRESSED]


def quick(seed=0, **settings):
    for name in NAMES:
        try:
            load(name)
        except DataError as error:
            pytest.skip(f"needs {name}: {error}")
    return perform(make_experiment("vae_outliers", {"quick": True, **settings}), seed=seed)


@pytest.fixture
def scored(monkeypatch):
    """A run on scores that are given, without data."""
    x, y = torch.rand(20, 784), torch.zeros(20).long()
    monkeypatch.setattr("credo_reproduce.vae_outliers.images", lambda *_: ((x, y), (x, y)))

    def run(own, other):
        monkeypatch.setattr(
            VAEOutliers, "_scores", lambda *_: {name: (own[name], other[name]) for name in COLUMNS}
        )
        return perform(make_experiment("vae_outliers", {"quick": True})).outcome

    return run


def test_quick_run_has_four_scores_both_ways_round():
    result = quick()
    (table,) = result.outcome.tables
    assert list(table.columns) == COLUMNS and [row.label for row in table.rows] == [
        "Fashion-MNIST to MNIST",
        "MNIST to Fashion-MNIST",
    ]
    assert all(
        set(row.measured) == set(COLUMNS) and all(0 <= v <= 1 for v in row.measured.values())
        for row in table.rows
    )
    titles = [f"{row.label}: {name}" for row in table.rows for name in COLUMNS[1:]]
    assert [figure["title"] for figure in result.outcome.figures] == titles
    page = render(result.page())
    for figure in result.outcome.figures:
        assert all(
            len(line["x"]) == len(line["y"]) == 60 and math.isclose(sum(line["y"]), 1, abs_tol=0.1)
            for line in figure["lines"]
        )
        assert figure["title"] in page
    assert [line["name"] for line in result.outcome.figures[0]["lines"]] == [
        "Fashion-MNIST",
        "MNIST",
    ]
    assert [line["name"] for line in result.outcome.figures[3]["lines"]] == [
        "MNIST",
        "Fashion-MNIST",
    ]
    assert len(result.outcome.checks) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"likelihood": "bernoulli"},
        {"likelihood": "continuous_bernoulli"},
        {"levels": 2},
        {"num_test": 1, "levels": 4},
    ],
)
def test_other_settings_run(settings):
    result = quick(**settings, num_train=50)
    assert len(result.outcome.tables[0].rows) == 2 and render(result.page())


def test_the_same_seed_gives_the_same_numbers_and_leaves_the_callers_generator():
    state = torch.get_rng_state()
    small = {"num_train": 50, "levels": 4, "num_test": 10}
    figures = [quick(seed, **small).outcome.figures for seed in (3, 3, 4)]
    assert figures[0] == figures[1] != figures[2] and torch.equal(state, torch.get_rng_state())


def test_unknown_likelihoods_are_refused():
    assert make_experiment("vae_outliers", {}).likelihood in LIKELIHOODS
    with pytest.raises(SettingError, match="likelihood="):
        make_experiment("vae_outliers", {"likelihood": "gaussian"})


def test_low_scores_are_strange(scored):
    high, low = torch.arange(100.0) + 200, torch.arange(100.0)
    own, other = dict.fromkeys(COLUMNS, high), dict.fromkeys(COLUMNS, low)
    for found, wanted in (
        (scored(own, other), 1.0),
        (scored(other, own), 0.0),
        (scored(own, own), 0.5),
    ):
        assert all(
            value == pytest.approx(wanted, abs=1e-6)
            for row in found.tables[0].rows
            for value in row.measured.values()
        )


def test_checks_ask_for_the_failure_and_for_the_cure(scored):
    high, low = torch.arange(100.0) + 200, torch.arange(100.0)
    own, other = dict.fromkeys(COLUMNS, low), dict.fromkeys(COLUMNS, high)
    known = scored(own | {COMPRESSED: high}, other | {COMPRESSED: low})
    assert [check.holds for check in known.checks] == [True, True, True]
    assert known.checks[1].measured == "249 against 49"  # medians, the lower of two in the middle
    assert [check.holds for check in scored(own, other).checks] == [True, True, False]
    assert [check.holds for check in scored(other, own).checks] == [False, False, True]
    elbo_works = scored(
        own | {"ELBO": high, COMPRESSED: high}, other | {"ELBO": low, COMPRESSED: low}
    )
    assert [check.holds for check in elbo_works.checks] == [False, True, True]


def test_checks_are_of_clothes(scored, monkeypatch):
    """The other way round is measured, and nothing is asked of it."""
    high, low, ways = torch.arange(100.0) + 200, torch.arange(100.0), []

    def scores(*_):
        ways.append(1)
        own, other = (low, high) if len(ways) == 1 else (high, low)
        return dict.fromkeys(COLUMNS, (own, other))

    scored(dict.fromkeys(COLUMNS, high), dict.fromkeys(COLUMNS, low))
    monkeypatch.setattr(VAEOutliers, "_scores", scores)
    found = perform(make_experiment("vae_outliers", {"quick": True})).outcome
    assert [row.measured["ELBO"] for row in found.tables[0].rows] == [0.0, 1.0] and found.checks[
        0
    ].holds


def test_grey_values_become_levels_only_where_they_are_modelled_so():
    x = torch.tensor([[0.0, 0.5, 1.0]])
    assert make_experiment("vae_outliers", {"levels": 5})._levels(x).tolist() == [[0.0, 2.0, 4.0]]
    assert torch.equal(make_experiment("vae_outliers", {"likelihood": "bernoulli"})._levels(x), x)


def test_equal_scores_can_be_drawn(scored):
    """A model that cannot tell any two images apart."""
    flat = dict.fromkeys(COLUMNS, torch.zeros(20))
    found = scored(flat, flat)
    assert all(value == pytest.approx(0.5) for value in found.tables[0].rows[0].measured.values())
    assert all(
        math.isfinite(value)
        for figure in found.figures
        for line in figure["lines"]
        for value in line["y"]
    )
