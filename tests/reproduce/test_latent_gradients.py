"""Tests of the experiment on gradients through discrete latent variables."""

import itertools
import math
from dataclasses import asdict

import pytest
import torch

from credo.report.html import render
from credo_reproduce import latent_gradients as module
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.latent_gradients import EXACT, KINDS, LatentGradients
from credo_reproduce.outcome import Row

Z = 4.5  # a right mean is this many deviations off once in 150,000 runs, and seeds are fixed
CPU = torch.device("cpu")
COLUMNS = ["bias", "by chance", "z", "noise", "cosine"]


def small(**settings):
    return make_experiment(
        "latent_gradients",
        {"quick": True, "variables": 2, "categories": 3, "hidden": 4, **settings},
    )


def data(n=5, dtype=torch.float64):
    return (torch.rand(n, 64, generator=torch.Generator().manual_seed(0)) < 0.4).to(dtype)


def brute_force(net, x):
    """The ELBO datum by datum and code by code, from its definition."""
    out = []
    for row in x:
        q = net.encoder(row.unsqueeze(0)).reshape(2, 3).softmax(-1)
        total = 0.0
        for first, second in itertools.product(range(3), repeat=2):
            z = torch.zeros(1, 6, dtype=x.dtype)
            z[0, first] = z[0, 3 + second] = 1.0
            p = net.decoder(z)[0].sigmoid()
            weight = q[0, first] * q[1, second]
            log_joint = (row * p.log() + (1 - row) * (1 - p).log()).sum() - 2 * math.log(3)
            total = total + weight * (log_joint - weight.log())
        out.append(total)
    return torch.stack(out)


def test_the_exact_elbo_is_that_of_brute_force_and_so_is_its_gradient():
    experiment, x = small(), data()
    net = experiment._net(0, CPU).double()
    found, wanted = experiment._exact(net, x), brute_force(net, x)
    torch.testing.assert_close(found, wanted)
    parameters = list(net.parameters())
    for a, b in zip(
        torch.autograd.grad(found.sum(), parameters),
        torch.autograd.grad(wanted.sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("variables", "categories"), [(1, 2), (1, 8), (3, 2), (2, 4)])
def test_every_code_is_there_once(variables, categories):
    experiment = small(variables=variables, categories=categories)
    z = experiment._every_code(torch.zeros(1))
    assert z.shape == (categories**variables, variables * categories) and len(
        z.unique(dim=0)
    ) == len(z)
    assert bool((z.unflatten(1, (variables, categories)).sum(-1) == 1).all())
    net = experiment._net(0, CPU)
    q = net.posterior(data(3, torch.float32))
    torch.testing.assert_close(
        q.log_prob(z.unsqueeze(1).expand(-1, 3, -1)).exp().sum(0), torch.ones(3)
    )


def test_draws_meet_the_exact_elbo():
    """20,000 draws of hard codes for each datum; z-test."""
    experiment, x = small(), data(3, torch.float32)
    net = experiment._net(0, CPU)
    climb = experiment._objective(net, {"gradient": "score"})
    with torch.no_grad():
        draws, exact = (
            climb(x.repeat(20_000, 1)).unflatten(0, (20_000, 3)).double(),
            experiment._exact(net, x),
        )
    assert bool(((draws.mean(0) - exact).abs() < Z * draws.std(0) / 20_000**0.5).all())


def test_training_on_the_exact_elbo_climbs_and_follows_the_seed():
    experiment, x = small(lr=0.01), data(100, torch.float32)
    one, two, three = (
        experiment._train(experiment._net(0, CPU), x, None, seed, 40) for seed in (0, 0, 1)
    )
    assert one == two != three and one[-1] > one[0] + 1 and len(one) == 40


@pytest.mark.parametrize("steps", [1, 29, 30, 31, 62, 75, 100, 119])
def test_the_course_ends_with_the_last_step_and_the_figure_says_where_it_was_noted(steps):
    experiment, x, at = small(steps=steps, batch=2), data(4, torch.float32), []

    class Watched(LatentGradients):
        def _exact(self, net, rows):
            if not torch.is_grad_enabled():
                at.append(taken[0])
            return super()._exact(net, rows)

    taken = [0]

    class Counted(torch.optim.Adam):
        def step(self, closure=None):
            taken[0] += 1
            return super().step(closure)

    watched = Watched(**asdict(experiment))
    original, torch.optim.Adam = torch.optim.Adam, Counted
    try:
        course = watched._train(watched._net(0, CPU), x, None, 0, steps)
    finally:
        torch.optim.Adam = original
    assert at[-1] == steps and len(at) == len(course)
    rows = [Row(label, dict.fromkeys(COLUMNS, 1.0)) for label in KINDS]
    (figure,) = experiment._outcome(rows, {EXACT: [course]}).figures
    shown = figure["lines"][0]["x"]
    assert (
        len(shown) == len(course) and max(abs(a - b) for a, b in zip(shown, at, strict=True)) <= 1
    )


# --- comparing ------------------------------------------------------------------------------------


def test_a_gradient_without_noise_has_its_bias_and_no_more(monkeypatch):
    """The exact one doubled: off by as much as it is long, in the same direction."""
    monkeypatch.setattr(
        LatentGradients, "_objective", lambda self, net, kind: lambda x: 2 * self._exact(net, x)
    )
    experiment, x = small(repeats=3), data(20, torch.float32)
    for row in experiment._compare(experiment._net(0, CPU), x, 0):
        assert row.measured["bias"] == pytest.approx(1.0, abs=1e-5) and row.measured[
            "cosine"
        ] == pytest.approx(1.0, abs=1e-5)
        assert (
            row.measured["noise"] < 1e-5
            and row.measured["by chance"] < 1e-5
            and row.measured["z"] > 100
        )


def test_noise_is_measured_against_the_gradient(monkeypatch):
    """Exact or nothing by a fair coin: mean g / 2, every coordinate's deviation half of its
    size.
    """
    calls = []

    def coin(self, net, kind):
        return lambda x: self._exact(net, x) * float(calls.append(1) or len(calls) % 2)

    monkeypatch.setattr(LatentGradients, "_objective", coin)
    experiment, x = small(repeats=100), data(20, torch.float32)
    row = experiment._compare(experiment._net(0, CPU), x, 0)[0].measured
    noise = 0.5 * (100 / 99) ** 0.5
    assert row["bias"] == pytest.approx(0.5, abs=1e-5) and row["noise"] == pytest.approx(
        noise, abs=1e-5
    )
    assert row["by chance"] == pytest.approx(noise / 10, abs=1e-5) and row["z"] == pytest.approx(
        -0.5 / (noise / 10), rel=1e-4
    )


def test_the_score_function_is_unbiased_and_straight_through_is_not(monkeypatch):
    """z-tests of 400 gradients; a biased estimate must be noticed, or the first two would prove
    nothing.
    """
    kinds = {name: KINDS[name] for name in ("score, 1 draw", "score, 4 draws", "straight-through")}
    monkeypatch.setattr(module, "KINDS", kinds)
    experiment, x = small(repeats=400), data(60, torch.float32)
    net = experiment._net(0, CPU)
    experiment._train(net, x, None, 0, 60)
    one, four, through = (row.measured for row in experiment._compare(net, x, 0))
    assert abs(one["z"]) < Z and abs(four["z"]) < Z and abs(through["z"]) > 2 * Z
    assert four["noise"] < one["noise"] and through["bias"] > 2 * through["by chance"]


# --- the outcome ----------------------------------------------------------------------------------


def outcome(z=1.0, relaxed=1.0):
    rows = [
        Row(
            label,
            {
                "bias": 0.1,
                "by chance": 0.1,
                "z": z if label == "score, 4 draws" else 1.0,
                "noise": 2.0,
                "cosine": 1.0,
            },
        )
        if label.startswith("score")
        else Row(
            label,
            {
                "bias": 0.5,
                "by chance": 0.1,
                "z": 50.0,
                "noise": relaxed if "0.1" in label else 0.5,
                "cosine": 0.9,
            },
        )
        for label in KINDS
    ]
    reached = {
        label: [[-40.0, -30.0 - place], [-42.0, -32.0 - place]]
        for place, label in enumerate([EXACT, *KINDS])
    }
    return make_experiment("latent_gradients", {"steps": 2, "seeds": 2})._outcome(rows, reached)


def test_checks_can_fail():
    assert [check.holds for check in outcome().checks] == [True, True]
    assert [check.holds for check in outcome(z=4.1).checks] == [False, True]
    assert [check.holds for check in outcome(z=-4.1).checks] == [False, True]
    assert [check.holds for check in outcome(relaxed=2.1).checks] == [True, False]
    assert [check.holds for check in outcome(z=math.nan, relaxed=math.nan).checks] == [False, False]


def test_reached_values_are_of_the_last_step_over_seeds():
    found = outcome()
    assert found.tables[1].rows[0].measured == {"ELBO": -31.0, "lowest": -32.0, "highest": -30.0}
    assert found.figures[0]["lines"][0] == {
        "name": EXACT,
        "x": [1, 2],
        "y": [-41.0, -31.0],
        "dash": True,
    }


def test_quick_run_compares_and_trains_every_gradient():
    result = perform(make_experiment("latent_gradients", {"quick": True}))
    (compared, reached), (figure,) = result.outcome.tables, result.outcome.figures
    assert [row.label for row in compared.rows] == list(KINDS) and [
        row.label for row in reached.rows
    ] == [EXACT, *KINDS]
    assert list(compared.columns) == COLUMNS and all(
        set(row.measured) == set(COLUMNS) for row in compared.rows
    )
    assert all(
        math.isfinite(value)
        for table in result.outcome.tables
        for row in table.rows
        for value in row.measured.values()
    )
    assert all(len(line["x"]) == len(line["y"]) == 10 for line in figure["lines"]) and len(
        figure["lines"]
    ) == 1 + len(KINDS)
    assert len(result.outcome.checks) == 2 and figure["title"] in render(result.page())


def test_the_same_seed_gives_the_same_numbers_and_leaves_the_callers_generator():
    state = torch.get_rng_state()
    runs = [
        perform(
            make_experiment("latent_gradients", {"quick": True, "steps": 3}), seed=seed
        ).outcome.tables
        for seed in (3, 3, 4)
    ]
    rows = [[row.measured for table in tables for row in table.rows] for tables in runs]
    assert rows[0] == rows[1] != rows[2] and torch.equal(state, torch.get_rng_state())
