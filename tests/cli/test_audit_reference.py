import json
import shutil
from pathlib import Path

import pytest
import torch

import credo
from credo.cli.audit_reference import DIGEST, _digest, check, draw, rows_of_fit, sampler_settings
from credo.cli.fit import hold_out
from credo.cli.run_files import RunFiles
from credo.core.errors import CredoError, RunError, SettingError
from credo.data.intake import intake
from credo.data.table import read_table

RUN, DATA = Path("run"), Path("data.csv")
MOVES = {
    "method": "hmc",
    "rows": None,
    "seed": 1,
    "num_chains": 2,
    "num_warmup": 10,
    "num_draws": 10,
    "num_steps": 3,
}


@pytest.fixture
def price(runs):
    """The files of a regression run, its model, and the rows it was fitted to."""
    files = RunFiles.read(runs / "price")
    frame = read_table(runs / "price.csv")
    bnn = credo.load(runs / "price", files.build())
    return files, bnn, (files.schema.encode(frame), files.schema.encode_target(frame))


def table():
    source = torch.Generator().manual_seed(0)
    return torch.randn(10, 2, generator=source), torch.randn(10, 1, generator=source)


@pytest.mark.parametrize(
    ("method", "pairs", "message"),
    [
        ("hcm", [], "Did you mean 'hmc'"),
        ("vi", [], "no sampler that is exact in the limit"),
        ("exact", [], "no sampler"),
        ("importance", [], "no sampler"),
        ("sgld", [], "no sampler"),
        ("hmc", ["num_draws=3"], "give --draws 3"),
        ("hmc", ["num_stepz=3"], "Did you mean 'num_steps'"),
        ("hmc", ["num_steps=0"], "num_steps=0 is not valid"),
        ("hmc", ["store=disk"], "name one with --reference"),
    ],
)
def test_what_cannot_be_a_reference_is_refused(method, pairs, message):
    with pytest.raises(SettingError, match=message):
        sampler_settings(method, pairs, stored=False)


def test_settings_are_read_as_the_sampler_declares_them():
    assert sampler_settings("hmc", ["num_steps=3", "store=disk"], stored=True) == {
        "num_steps": 3,
        "store": "disk",
    }
    assert sampler_settings("nuts", [], stored=False) == {}


def test_a_flat_prior_and_the_same_chains_again_are_refused(price):
    _, bnn, pair = price
    flat = credo.BNN(torch.nn.Linear(4, 1), "gaussian").fit(pair, "mle", epochs=1, progress=False)
    with pytest.raises(
        CredoError, match="run was fitted with mle, whose prior .* does not integrate to one"
    ):
        check(flat, RUN, "hmc", 1, {})
    drawn = credo.BNN(torch.nn.Linear(4, 1), "gaussian").fit(
        pair, "hmc", num_warmup=5, num_draws=5, num_steps=2, progress=False
    )
    with pytest.raises(SettingError, match="--seed 0 is the seed of run itself"):
        check(drawn, RUN, "hmc", 0, {"seed": 0})
    check(drawn, RUN, "nuts", 0, {"seed": 0})
    check(bnn, RUN, "hmc", 0, {"seed": 0})


def test_the_rows_of_the_fit_need_no_word():
    x, y = table()
    places, note = rows_of_fit(
        x, y, {"num_data": 10, "data": intake((x, y)).fingerprint()}, RUN, DATA
    )
    assert places.tolist() == list(range(10)) and note is None
    assert rows_of_fit(x, y, {}, RUN, DATA)[1] is None


def test_rows_that_the_fit_held_out_are_left_out_again():
    x, y = table()
    kept, _ = hold_out(x, y, 0.3, seed=4)
    fit = {"num_data": 7, "seed": 4, "data": intake(kept).fingerprint()}
    places, note = rows_of_fit(x, y, fit, RUN, DATA)
    assert torch.equal(x[places], kept[0]) and torch.equal(y[places], kept[1])
    assert note is not None and "7 of the 10 rows" in note


def test_another_table_is_said():
    x, y = table()
    for change in (x.flip(0), x + 1.0):
        places, note = rows_of_fit(
            change, y, {"num_data": 7, "seed": 0, "data": intake((x, y)).fingerprint()}, RUN, DATA
        )
        assert len(places) == 10 and note is not None
        assert "data.csv (10 rows) is not the table that run was fitted to (7 rows)" in note


def test_a_reference_is_kept_as_a_run_and_taken_from_there(price, tmp_path, capsys):
    files, bnn, pair = price
    first = draw(files, bnn, pair, tmp_path / "ref", RUN, **MOVES)
    assert (
        capsys.readouterr().err
        == "Drawing the reference: hmc, 2 chain(s) of 10 + 10 moves on 60 rows.\n"
    )
    stored = json.loads((tmp_path / "ref" / DIGEST).read_text())
    assert stored == {"run": "run", "held": _digest(bnn)}
    before = {path: path.read_bytes() for path in (tmp_path / "ref").iterdir()}
    again = draw(files, bnn, pair, tmp_path / "ref", RUN, **MOVES)
    assert capsys.readouterr().err.startswith("Reused the reference")
    x = pair[0]
    assert torch.equal(first.functions(x, n=20), again.functions(x, n=20))
    assert {path: path.read_bytes() for path in (tmp_path / "ref").iterdir()} == before
    loaded = credo.load(tmp_path / "ref", RunFiles.read(tmp_path / "ref").build())
    assert torch.equal(first.functions(x, n=20), loaded.functions(x, n=20))


def test_a_reference_that_was_cut_short_is_continued(price, tmp_path, capsys):
    files, bnn, pair = price

    class Cut(Exception):
        pass

    def cut(_row):
        raise Cut

    whole = draw(files, bnn, pair, None, RUN, **MOVES)
    with pytest.raises(Cut):
        credo.audit.reference(
            bnn, pair, run=tmp_path / "ref", progress=False, callbacks=(cut,), **MOVES
        )
    capsys.readouterr()
    resumed = draw(files, bnn, pair, tmp_path / "ref", RUN, **MOVES)
    assert capsys.readouterr().err.startswith("Continuing the reference")
    assert torch.equal(whole.functions(pair[0], n=20), resumed.functions(pair[0], n=20))


def test_the_reference_of_other_noise_is_not_taken(price, tmp_path):
    files, bnn, pair = price
    draw(files, bnn, pair, tmp_path / "ref", RUN, **MOVES)
    other = credo.BNN(files.build(), "gaussian").fit(pair, "map", epochs=1, progress=False)
    with pytest.raises(RunError, match="holds the reference of another fit"):
        draw(files, other, pair, tmp_path / "ref", RUN, **MOVES)


def test_the_digest_sees_points_and_learned_priors(price):
    _, _, pair = price

    def fitted(prior=None, random="all", epochs=1):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1))
        return credo.BNN(net, credo.likelihoods.Gaussian(0.5), prior, random).fit(
            pair, "vi", epochs=epochs, progress=False
        )

    assert _digest(fitted()) == _digest(
        fitted(epochs=2)
    )  # known noise, a fixed prior, no points: nothing is held
    assert _digest(fitted(random="last")) != _digest(fitted(random="last", epochs=2))
    assert _digest(fitted("ard")) != _digest(fitted("ard", epochs=2))


def test_directories_of_others_are_left_alone(price, runs, tmp_path):
    files, bnn, pair = price
    with pytest.raises(RunError, match="a run that credo audit did not draw"):
        draw(files, bnn, pair, runs / "price", RUN, **MOVES)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="not empty and holds no run"):
        draw(files, bnn, pair, tmp_path / "full", RUN, **MOVES)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["letter.txt"]
    draw(files, bnn, pair, tmp_path / "ref", RUN, **MOVES)
    with pytest.raises(RunError, match="settings.num_steps: there 3, now 4"):
        draw(files, bnn, pair, tmp_path / "ref", RUN, **MOVES | {"num_steps": 4})


def test_a_reference_that_fails_leaves_no_directory(price, tmp_path, monkeypatch):
    files, bnn, pair = price

    def fail(*_args, run, **_settings):
        run.begin({})
        raise CredoError("no density")

    monkeypatch.setattr("credo.audit.reference", fail)
    with pytest.raises(CredoError, match="no density"):
        draw(files, bnn, pair, tmp_path / "new", RUN, **MOVES)
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(CredoError, match="no density"):
        draw(files, bnn, pair, tmp_path / "empty", RUN, **MOVES)
    assert not any((tmp_path / "empty").iterdir())
    shutil.rmtree(tmp_path / "empty")
