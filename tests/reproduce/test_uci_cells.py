"""Tests of one cell: what is fitted on what, in which units, and how it is kept."""

import json
import math

import pytest
import torch
from zoo.uci import made_up, write_set

from credo.core.errors import CredoError, RunError
from credo_reproduce import uci_cells
from credo_reproduce.uci_candidates import Candidate, Recipe, Start
from credo_reproduce.uci_cells import (
    SETS,
    Cell,
    Part,
    Score,
    Terms,
    finished,
    fit_and_score,
    held_out,
    keep,
    measure,
    ranked,
    split,
)
from credo_reproduce.uci_recipes import _varying

CPU = torch.device("cpu")
FEW = Terms(0, 0.02)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A made-up set in place of yacht."""
    data = tmp_path / "data"
    data.mkdir()
    write_set(data, "uci_yacht", made_up())
    monkeypatch.setenv("CREDO_DATA", str(data))
    return data


def replace(monkeypatch, *candidates, trial=1.0):
    monkeypatch.setattr(uci_cells, "recipe", lambda method: Recipe(candidates, trial))


def short(label="c", **settings):
    return Candidate(label, {"lr": 1e-2}, steps=200, **settings)


def test_sets_are_those_published_cheapest_first():
    assert len(SETS) == 9 and SETS["protein"] == ("uci_protein", 100, 5)
    assert all(
        source.splits == 20 and source.hidden == 50
        for name, source in SETS.items()
        if name != "protein"
    )


def test_a_split_is_a_partition_and_validation_is_of_the_training_rows(folder):
    train, test = split("yacht", 1)
    assert len(train.y) == 54 and len(test.y) == 6
    rows = {tuple(row) for row in train.x.tolist()}
    assert not rows & {tuple(row) for row in test.x.tolist()}
    fitted, judged = held_out("yacht", 1, train)
    assert len(judged.y) == 10 and len(fitted.y) == 44
    assert {tuple(row) for row in fitted.x.tolist()} | {
        tuple(row) for row in judged.x.tolist()
    } == rows
    again = held_out("yacht", 1, train)[1]
    assert torch.equal(again.y, judged.y) and not torch.equal(
        held_out("yacht", 2, train)[1].y, judged.y
    )


def test_validation_has_a_largest_size():
    many = Part(torch.zeros(6000, 1), torch.zeros(6000, 1))
    assert len(held_out("yacht", 0, many)[1].y) == 1000


def test_scores_are_in_the_units_of_the_targets(folder):
    """Targets a hundred times as large, shifted: the density falls by log 100 and the error grows
    as much; nothing else changes.
    """
    train, test = split("yacht", 0)
    cell = Cell("yacht", 0, "map")
    first = fit_and_score(cell, short(), train, test, FEW, CPU)
    larger = [Part(part.x, 100.0 * part.y + 7.0) for part in (train, test)]
    second = fit_and_score(cell, short(), larger[0], larger[1], FEW, CPU)
    assert second.ll == pytest.approx(
        first.ll - math.log(100), abs=1e-4
    ) and second.rmse == pytest.approx(100 * first.rmse, rel=1e-4)


def test_a_constant_column_and_other_units_of_inputs_change_nothing(folder):
    train, test = split("yacht", 0)
    cell = Cell("yacht", 0, "map")
    first = fit_and_score(cell, short(), train, test, FEW, CPU)
    other = [Part(1000.0 * part.x + 3.0, part.y) for part in (train, test)]
    assert fit_and_score(cell, short(), *other, FEW, CPU).ll == pytest.approx(first.ll, abs=1e-3)
    assert math.isfinite(first.ll)


def test_seeded(folder):
    train, test = split("yacht", 0)
    runs = [
        fit_and_score(Cell("yacht", 0, "vi"), short(), train, test, Terms(seed, 0.02), CPU)
        for seed in (0, 0, 1)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_noise_that_varies_gets_a_second_output(folder):
    train, test = split("yacht", 0)
    assert math.isfinite(
        fit_and_score(
            Cell("yacht", 0, "map"), short(likelihood=_varying()), train, test, FEW, CPU
        ).ll
    )


@pytest.mark.parametrize("drawn", [False, True])
def test_chains_start_from_a_fit_with_its_noise_widened(folder, monkeypatch, drawn):
    seen = {}
    kind = uci_cells.methods["sgld"]
    inherited = kind.fit

    def fit(self, model, fit_job):
        seen["init"], seen["log_std"] = self.init, float(model.likelihood.log_std)
        return inherited(self, model, fit_job)

    monkeypatch.setattr(kind, "fit", fit)
    settings = {"lr": 1e-4, "num_chains": 3, "num_warmup": 4, "num_draws": 4, "thin": 1}
    start = Start("vi" if drawn else "map", 300, {"lr": 1e-2}, drawn=drawn, widen=2.0)
    train, test = split("yacht", 0)
    score = fit_and_score(
        Cell("yacht", 0, "sgld"),
        Candidate("c", settings, start=start),
        train,
        test,
        Terms(0, 1.0),
        CPU,
    )
    plain = Candidate("c", settings, start=Start(start.method, 300, {"lr": 1e-2}, drawn=drawn))
    wide = seen["log_std"]
    fit_and_score(Cell("yacht", 0, "sgld"), plain, train, test, Terms(0, 1.0), CPU)
    assert wide == pytest.approx(seen["log_std"] + math.log(2.0), abs=1e-5) and math.isfinite(
        score.ll
    )
    assert seen["init"]["0.weight"].shape == ((3, 50, 3) if drawn else (50, 3))


def test_the_best_on_validation_is_chosen(folder, monkeypatch):
    asked = []

    def score(cell, candidate, train, judged, terms, device):
        asked.append((candidate.label, len(train.y), len(judged.y), terms.effort))
        return Score({"a": -2.0, "b": -1.0, "c": math.nan}[candidate.label], 0.0)

    monkeypatch.setattr(uci_cells, "fit_and_score", score)
    train, _ = split("yacht", 0)
    recipe = Recipe((short("a"), short("b"), short("c")), trial=0.5)
    order, found = ranked(Cell("yacht", 0, "map"), recipe, train, Terms(0, 1.0), CPU)
    assert (
        [candidate.label for candidate in order] == ["b", "a"]
        and found["a"] == -2.0
        and found["c"] == "the log-likelihood is not finite"
    )
    assert asked == [(label, 44, 10, 0.5) for label in "abc"]


def test_one_candidate_needs_no_trial(folder, monkeypatch):
    monkeypatch.setattr(uci_cells, "fit_and_score", lambda *_: pytest.fail("a trial was made"))
    train, _ = split("yacht", 0)
    order, found = ranked(Cell("yacht", 0, "map"), Recipe((short("only"),)), train, FEW, CPU)
    assert [candidate.label for candidate in order] == ["only"] and not found


def test_a_candidate_that_fails_is_passed_over_and_its_reason_kept(folder, monkeypatch):
    wild = Candidate(
        "wild", {"lr": 1e6, "num_chains": 2, "num_warmup": 50, "num_draws": 4, "thin": 1}
    )
    calm = Candidate(
        "calm", {"lr": 1e-5, "num_chains": 2, "num_warmup": 4, "num_draws": 4, "thin": 1}
    )
    train, _ = split("yacht", 0)
    cell = Cell("yacht", 0, "sgld")
    order, found = ranked(cell, Recipe((wild, calm)), train, Terms(0, 1.0), CPU)
    assert [candidate.label for candidate in order] == ["calm"] and "not finite" in str(
        found["wild"]
    )
    replace(monkeypatch, wild, Candidate("wilder", wild.settings))
    with pytest.raises(
        CredoError, match="No candidate of sgld could be fitted: wild: .*; wilder: "
    ):
        measure(cell, Terms(0, 1.0))


def test_where_the_winner_fails_on_all_the_data_the_next_best_counts(folder, monkeypatch):
    def score(cell, candidate, train, judged, terms, device):
        if candidate.label == "b" and len(judged.y) == 6:
            raise CredoError("the chains left")
        return Score({"a": -2.0, "b": -1.0, "c": -3.0}[candidate.label], 0.5)

    monkeypatch.setattr(uci_cells, "fit_and_score", score)
    replace(monkeypatch, short("a"), short("b"), short("c"))
    result = measure(Cell("yacht", 2, "map"), FEW)
    assert (
        result["candidate"] == "a"
        and result["ll"] == -2.0
        and result["failures"] == {"b": "the chains left"}
    )


def test_tuning_never_sees_the_test_part(folder, monkeypatch):
    """With other test rows every trial has the same score and the same candidate wins; only the
    final score differs.
    """
    replace(monkeypatch, short("narrow"), short("tanh", activation="tanh"))
    cell = Cell("yacht", 0, "map")
    before = measure(cell, FEW)
    arrays = made_up()
    test = arrays["test_idx"][0]
    arrays["X"][test] += 50.0
    arrays["y"][test] -= 300.0
    write_set(folder, "uci_yacht", arrays)
    after = measure(cell, FEW)
    assert after["trials"] == before["trials"] and len(before["trials"]) == 2
    assert after["candidate"] == before["candidate"] and after["ll"] < before["ll"]


def test_the_winner_is_refitted_on_the_whole_training_split(folder, monkeypatch):
    sizes = []

    def score(cell, candidate, train, judged, terms, device):
        sizes.append((len(train.y), len(judged.y)))
        return Score(-1.0, 2.0)

    monkeypatch.setattr(uci_cells, "fit_and_score", score)
    replace(monkeypatch, short("a"), short("b"))
    result = measure(Cell("yacht", 2, "map"), FEW)
    assert sizes == [(44, 10), (44, 10), (54, 6)] and (result["ll"], result["rmse"]) == (-1.0, 2.0)


def test_files_are_named_by_everything_that_matters(folder, tmp_path, monkeypatch):
    cell = Cell("yacht", 0, "map")
    replace(monkeypatch, short("a"))
    terms = Terms(0, 0.02)
    result = keep(tmp_path, cell, terms, "cpu")
    path = terms.file(tmp_path, cell)
    assert (
        path.name == f"yacht-00-map-{result['digest']}.json"
        and json.loads(path.read_text()) == result
    )
    assert finished(tmp_path, terms) == ({cell: result}, 0)
    for other in (Terms(1, 0.02), Terms(0, 0.03)):
        assert finished(tmp_path, other) == ({}, 1)
    replace(monkeypatch, short("a", activation="tanh"))
    assert finished(tmp_path, terms) == ({}, 1)  # the recipe has changed
    assert not list(tmp_path.glob(".*tmp"))


@pytest.mark.parametrize("text", ["{", "[]", '{"set": "yacht"}'])
def test_a_file_that_is_no_cell_is_named(tmp_path, text):
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(RunError, match=r"odd\.json is not the file of a cell"):
        finished(tmp_path, FEW)


def test_methods_that_do_not_apply_say_why():
    with pytest.raises(CredoError, match="exact does not apply here: the network is not linear"):
        measure(Cell("yacht", 0, "exact"), FEW)
