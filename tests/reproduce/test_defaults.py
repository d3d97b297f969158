"""The panel of defaults: exact answers, the rules of judging, cells that can be stopped, and a run
of a few cells.
"""

import json
import time
from types import SimpleNamespace

import pytest
import torch

from credo.core.errors import CredoError, Finding, RunError, SettingError
from credo.engine.diagnose import Check, checks
from credo.methods import methods
from credo.report.html import render
from credo_reproduce import defaults_cells, defaults_running, defaults_table
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.defaults_cells import Cell, OutOfTime, at_most, finished, measure
from credo_reproduce.defaults_problems import GENERATIVE, NEEDS, PROBLEMS, base_nll
from credo_reproduce.defaults_running import main, plan, run_cells
from credo_reproduce.defaults_search import RECOMMENDED, trial
from credo_reproduce.defaults_targets import (
    best_known,
    conjugate_of,
    distance,
    exact_nll,
    judge,
    principal_components_nll,
)

OWN = [name for name in PROBLEMS if name not in NEEDS]


@pytest.mark.parametrize("name", OWN)
def test_a_problem_is_the_same_twice_and_its_network_takes_it(name):
    one, again = PROBLEMS[name](0), PROBLEMS[name](0)
    assert one.name == name and one.seed == 0
    for a, b in zip((*one.train, *one.test), (*again.train, *again.test), strict=True):
        assert torch.equal(a, b)
    other = PROBLEMS[name](1)
    assert not torch.equal(one.train[0], other.train[0])
    if name not in GENERATIVE:
        bnn = one.bnn()
        outputs = bnn.net(one.train[0][:3])
        assert bnn.likelihood.accepts(outputs.shape[-1], one.train[1])
    assert 0.5 < base_nll(one) < 20


def test_the_base_rate_of_the_credit_table():
    problem = PROBLEMS["credit"](0)
    assert abs(float(problem.train[1].float().mean()) - 0.3) < 0.05  # 3.4 standard errors
    p = float(problem.train[1].double().mean())
    y = problem.test[1].double()
    direct = -float((y * torch.tensor(p).log() + (1 - y) * torch.tensor(1 - p).log()).mean())
    assert base_nll(problem) == pytest.approx(direct, rel=1e-5)


def as_posterior(draws):
    """Something whose draws are these rows of five weights and a bias."""
    named = {"weight": draws[:, None, :5], "bias": draws[:, 5:]}
    mean = {name: values.mean(0) for name, values in named.items()}
    return SimpleNamespace(process=None, sample=lambda n, seed: named, mean=lambda: mean)


def test_draws_of_the_exact_posterior_are_at_no_distance():
    problem = PROBLEMS["linear_200"](0)
    exact = conjugate_of(problem)
    source = torch.Generator().manual_seed(0)
    noise = torch.randn(4000, 6, generator=source, dtype=torch.float64)
    draws = exact.mean + noise @ torch.linalg.cholesky(exact.covariance).T
    found = distance("hmc", problem, as_posterior(draws), 0)
    assert found["offset"] < 0.08  # five standard errors of 1 / sqrt(4000)
    assert found["least_ratio"] > 0.89 and found["largest_ratio"] < 1.11
    shifted = distance("hmc", problem, as_posterior(draws + exact.covariance.diagonal().sqrt()), 0)
    assert shifted["offset"] == pytest.approx(1.0, abs=0.08)
    point = distance("map", problem, as_posterior(exact.mean[None]), 0)
    assert point == {"offset": pytest.approx(0.0, abs=1e-9)}
    alone = exact.mean + noise / exact.precision.diagonal().sqrt()
    assert distance("vi", problem, as_posterior(alone), 0)["least_ratio"] > 0.89
    none = distance("concrete_dropout", problem, as_posterior(exact.mean + 1e-3 * noise), 0)
    assert none["largest_ratio"] < 1.05  # the best rate is next to zero here
    assert distance("vib", problem, as_posterior(draws), 0) == {}


def test_the_exact_nll_is_that_of_the_exact_method():
    problem = PROBLEMS["linear_200"](0)
    bnn = problem.bnn().fit(problem.train, "exact", progress=False)
    wanted = bnn.evaluate(problem.test, num_samples=2000)["nll"]
    assert exact_nll(problem) == pytest.approx(wanted, abs=2e-3)
    assert exact_nll(PROBLEMS["wine"](0)) is None


def test_principal_components_have_no_better_neighbour():
    """The closed form against descent on the same density from its own parameters."""
    problem = PROBLEMS["linear_vae"](0)
    x = problem.train[0].double()
    best = principal_components_nll(x, x, 2)
    loadings = torch.randn(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    raw = [loadings, torch.zeros((), dtype=torch.float64), x.mean(0)]
    mover = torch.optim.LBFGS(
        [each.requires_grad_() for each in raw], max_iter=500, line_search_fn="strong_wolfe"
    )

    def nll():
        covariance = raw[0] @ raw[0].T + raw[1].exp() * torch.eye(8)
        normal = torch.distributions.MultivariateNormal(raw[2], covariance)
        return -normal.log_prob(x).mean()

    def closure():
        mover.zero_grad()
        value = nll()
        value.backward()
        return value

    mover.step(closure)
    assert best == pytest.approx(float(nll().detach()), abs=1e-4)


def fitted(**what):
    return {
        "status": "fitted",
        "method": "vi",
        "problem": "wine",
        "trial": 0,
        "findings": [],
    } | what


def drawn(least, largest):
    return fitted(offset=0.1, least_ratio=least, largest_ratio=largest)


FINDING = [{"name": "odd", "severity": "warning", "evidence": "so"}]


@pytest.mark.parametrize(
    ("result", "best", "word", "text"),
    [
        (None, 1.0, "missing", "–"),
        ({"status": "refused"}, 1.0, "refused", "refused"),
        ({"status": "time"}, 1.0, "time", "time"),
        (fitted(nll=1.09), 1.0, "near", "near"),
        (fitted(nll=0.2), 1.0, "near", "near"),
        (fitted(nll=1.09, findings=FINDING), 1.0, "near", "near, 1 finding"),
        (fitted(nll=1.09, findings=2 * FINDING), 1.0, "near", "near, 2 findings"),
        (fitted(nll=1.35), 1.0, "silent", "SILENT (+0.35)"),
        (fitted(nll=None), 1.0, "silent", "SILENT (nll not finite)"),
        (fitted(nll=1.35, findings=FINDING), 1.0, "far", "far (+0.35): odd"),
        (fitted(nll=1.35, findings=2 * FINDING), 1.0, "far", "far (+0.35): odd and 1 more"),
        (fitted(nll=1.0), None, "missing", "nothing to compare with"),
        (fitted(nll=9.0, offset=0.4), 1.0, "near", "near"),
        (fitted(nll=1.0, offset=0.6), 1.0, "silent", "SILENT (mean 0.6 sd)"),
        (drawn(0.7, 1.3), None, "near", "near"),
        (drawn(0.6, 1.0), None, "silent", "SILENT (variance x 0.6)"),
        (drawn(1.0, 2.0), None, "silent", "SILENT (variance x 2)"),
    ],
)
def test_judging(result, best, word, text):
    assert judge(result, best) == (word, text)


def test_what_is_best_known():
    base = fitted(nll=0.9, base_nll=0.6)
    mapped = fitted(nll=0.5, base_nll=0.6, method="map")
    assert best_known([], "vi") is None and best_known([{"status": "time"}], "vi") is None
    assert best_known([base], "vi") == 0.6 and best_known([base, mapped], "vi") == 0.5
    searched = fitted(nll=0.55, base_nll=0.6, trial=1)
    assert best_known([base, mapped, searched], searched["method"]) == 0.55
    assert best_known([base, mapped, searched], "another") == 0.5
    exact = fitted(nll=0.7, base_nll=0.6, exact_nll=0.3)
    assert best_known([exact | {"problem": "linear_vae"}], "vi") == 0.3
    assert best_known([exact | {"problem": "linear_20"}], "vi") == 0.6


def test_a_plan_has_every_method_and_generative_models_apart(monkeypatch):
    monkeypatch.setattr(defaults_running, "load", lambda name: {})
    cells, left_out = plan("all", "all", 2, 0)
    usual = len(PROBLEMS) - len(GENERATIVE)
    assert not left_out and len(cells) == 2 * (len(methods) * usual + 2) and len(PROBLEMS) >= 14
    cells, _ = plan("map,vi", "wine,linear_20", 1, 3)
    assert [c.trial for c in cells] == [0, 0, 0, 0, 1, 2, 3]
    assert {c.method for c in cells if c.trial} == {"vi"}  # map is not among the recommended ones
    with pytest.raises(SettingError, match="Did you mean 'wine'"):
        plan("map", "whine", 1, 0)


def test_a_problem_without_its_data_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setenv("CREDO_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CREDO_DATA_URL", raising=False)
    cells, left_out = plan("map", "yacht,wine", 1, 0)
    assert [c.problem for c in cells] == ["wine"] and "uci_yacht" in left_out["yacht"]


@pytest.mark.parametrize("method", RECOMMENDED)
def test_trials_are_settings_that_the_method_has(method):
    first = trial(method, "wine", 0, 1, 120)
    assert first == trial(method, "wine", 0, 1, 120) != trial(method, "wine", 0, 2, 120)
    given = {k: v for k, v in first.items() if k not in ("prior_std", "epochs", "lr", "batch_size")}
    methods[method](**given)
    assert 0.03 <= first["prior_std"] <= 3.0


def cell_of(monkeypatch, fit):
    monkeypatch.setattr(defaults_cells, "fit", fit)
    return measure(Cell("map", "linear_20", 0), 0.2)


def test_what_becomes_of_a_fit_that_does_not_end(monkeypatch):
    def endless(*_):
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                continue

    result = cell_of(monkeypatch, endless)
    assert result["status"] == "time" and 0.2 <= result["seconds"] < 5 and result["limit"] == 0.2
    with pytest.raises(OutOfTime), at_most(0.05):
        time.sleep(1)


def test_a_refusal_is_a_sentence_a_fit_may_give_up_and_any_other_error_a_failure(monkeypatch):
    def refuse(*_):
        raise SettingError("Not this one; use another.")

    def give_up(*_):
        raise CredoError("The objective is no longer finite; use a smaller lr.")

    def fail(*_):
        raise ZeroDivisionError("by chance")

    refused, failed = cell_of(monkeypatch, refuse), cell_of(monkeypatch, fail)
    assert (refused["status"], refused["why"]) == ("refused", "Not this one; use another.")
    assert cell_of(monkeypatch, give_up)["status"] == "gave up"
    assert (failed["status"], failed["why"]) == ("failed", "ZeroDivisionError: by chance")


def test_a_cell_has_the_findings_and_the_time_they_took(monkeypatch):
    def slow(case):
        time.sleep(0.01)
        return Finding("odd", "warning", "it is", "change it")

    monkeypatch.setitem(checks, "odd", Check(slow))
    before = dict(checks)
    result = measure(Cell("exact", "linear_20", 0), 30.0)
    assert result["status"] == "fitted" and result["offset"] < 0.1
    assert result["findings"] == [{"name": "odd", "severity": "warning", "evidence": "it is"}]
    assert 0.01 <= result["diagnose_seconds"] < result["seconds"] and checks == before
    json.dumps(result, allow_nan=False)


def test_cells_of_other_defaults_or_shorter_limits_are_not_finished(tmp_path):
    for cell, status in ((Cell("map", "wine", 0), "time"), (Cell("vi", "wine", 0), "failed")):
        result = cell.result(status, limit=5.0)
        cell.file(tmp_path).write_text(json.dumps(result))
    assert len(finished(tmp_path)[0]) == len(finished(tmp_path, 5.0)[0]) == 2
    assert [cell.method for cell in finished(tmp_path, 6.0)[0]] == ["vi"]
    (tmp_path / "a.json").write_text(json.dumps(result | {"digest": "other"}))
    assert finished(tmp_path)[1] == 1
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(CredoError, match=r"b\.json is not the file of a cell"):
        finished(tmp_path)


def test_a_panel_goes_on_where_it_was_and_has_a_page(tmp_path):
    """The plain entry fits one cell, the experiment the others, and a second run none."""
    store = tmp_path / "cells"
    main(["--out", str(tmp_path), "--methods", "exact", "--problems", "linear_20"])
    assert [p.name.split("-")[:2] for p in store.glob("*.json")] == [["linear_20", "exact"]]
    settings = {"methods": "exact,nngp", "problems": "linear_20,wine", "store": str(store)}
    heard = []
    result = perform(make_experiment("defaults", settings), say=heard.append)
    assert heard[0] == "4 cells, 1 finished before" and len(heard) == 4
    tables = {table.title: table for table in result.outcome.tables}
    rows = {row.label: row.measured for row in tables["Defaults of networks, seed 0"].rows}
    assert rows["exact"] == {"linear_20": "near", "wine": "refused"}
    assert rows["nngp"]["wine"] == "refused" and "Refused, given up and failed" in tables
    assert len(result.outcome.checks) == 3 and "Every method" in render(result.page())
    heard.clear()
    again = perform(make_experiment("defaults", settings), say=heard.append)
    assert heard == ["4 cells, 4 finished before"]
    assert again.outcome.tables == result.outcome.tables


def test_no_cell_is_begun_after_its_time(tmp_path):
    run_cells([Cell("exact", "linear_20", 0)], tmp_path, 2, lambda _: None, seconds=0.0)
    assert not list(tmp_path.iterdir())


def test_a_process_that_does_not_end_is_ended(tmp_path, monkeypatch):
    """One that does not hear the alarm, as in a long call outside Python."""
    monkeypatch.setattr(defaults_running, "GRACE", -59.9)
    cell = Cell("hmc", "digits_1437", 0)
    run_cells([cell], tmp_path, 1, lambda _: None)
    result = finished(tmp_path)[0][cell]
    assert result["status"] == "time" and result["limit"] == defaults_running.LIMIT


def test_counts_and_shares():
    cells = {
        Cell("vi", "wine", 0): fitted(nll=0.1, base_nll=1.0, seconds=2.0, diagnose_seconds=0.02),
        Cell("hmc", "wine", 0): fitted(nll=1.5, base_nll=1.0, seconds=4.0, diagnose_seconds=0.04),
        Cell("swag", "wine", 0): {"status": "time", "findings": [], "seconds": 60.0},
        Cell("mle", "wine", 0): fitted(nll=1.0, base_nll=1.0, seconds=2.0, diagnose_seconds=1.0),
    }
    judged = defaults_table.verdicts(list(cells), cells)
    assert defaults_table.share_near(judged) == (1, 3)
    assert defaults_table.diagnose_share(judged, cells) == pytest.approx(0.01)
    assert [row.label for row in defaults_table.silent(judged, cells).rows] == ["hmc on wine"]
    checked = defaults_table.panel_checks(judged, cells)
    assert [check.holds for check in checked] == [False, False, True]
    values = {
        row.label: row.measured["value"] for row in defaults_table.summary(judged, cells).rows
    }
    assert values["cells"] == 4 and values["out of time"] == 1
    assert values["recommended methods: near without findings"] == "1 of 3"


def test_a_gpu_is_refused():
    with pytest.raises(SettingError, match="one thread each; use cpu"):
        make_experiment("defaults", {}).run(torch.device("cuda"), 0, print)


def test_an_earlier_search_counts(tmp_path):
    title = "What cells are measured by: networks, seed 0"
    rows = [
        {"label": "best of vi's searched settings", "measured": {"wine": 0.2}},
        {"label": "base rate", "measured": {"wine": 1.0}},
    ]
    tables = [{"title": title, "rows": rows}, {"title": "Summary", "rows": rows}]
    path = tmp_path / "panel.json"
    path.write_text(json.dumps({"record": {"outcome": {"tables": tables}}}))
    found = defaults_table.earlier_search(path)
    assert {(c.method, c.problem, c.trial): row["nll"] for c, row in found.items()} == {
        ("vi", "wine", 1): 0.2
    }
    path.write_text("[]")
    with pytest.raises(RunError, match="not the result file of a panel"):
        defaults_table.earlier_search(path)
