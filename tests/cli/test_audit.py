import json

import pytest
from typer.testing import CliRunner

from credo.cli.app import app
from credo.cli.audit_measures import MEASURES

QUICK = ["--chains", 2, "--warmup", 10, "--draws", 20, "--set", "num_steps=3", "--inputs", 12]


@pytest.fixture(scope="module")
def audited(runs, tmp_path_factory):
    """The regression run after its audit: what was printed, and the folder with report and
    reference.
    """
    folder = tmp_path_factory.mktemp("audited")
    words = [
        "audit",
        runs / "price",
        runs / "price.csv",
        *QUICK,
        "--reference",
        folder / "ref",
        "--out",
        folder / "page",
    ]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result, folder


@pytest.fixture(scope="module")
def chained(runs, tmp_path_factory):
    """A run that is made of chains, of the classification table."""
    folder = tmp_path_factory.mktemp("chained")
    words = [
        "fit",
        runs / "dear.csv",
        "--target",
        "dear",
        "--method",
        "hmc",
        "--hidden",
        "3",
        "--out",
        folder / "hmc",
    ]
    for setting in ("num_chains=2", "num_warmup=10", "num_draws=20", "num_steps=3"):
        words += ["--set", setting]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return folder / "hmc"


def test_a_table_with_verdicts_is_printed(audited):
    result, folder = audited
    assert "2 chains of 20 draws: outputs have R-hat" in result.stdout
    assert "(vi) against the exact posterior, at 12 rows" in result.stdout
    for key, measure in MEASURES.items():
        assert (measure.label in result.stdout) == (key != "agreement")
    assert "raise --warmup and --draws" in result.stdout  # sixty moves are no ground truth
    assert (
        "for the reference" in result.stdout
        and f"Report: {folder / 'page' / 'report.html'}" in result.stdout
    )
    first, *findings = result.stderr.splitlines()
    assert first == "Drawing the reference: hmc, 2 chain(s) of 10 + 20 moves on 60 rows."
    assert all(line.startswith("credo: ") for line in findings)


def test_the_report_has_predictions_and_chains(audited):
    _, folder = audited
    assert sorted(path.name for path in (folder / "page").iterdir()) == [
        "report.html",
        "results.json",
    ]
    made = json.loads((folder / "page" / "results.json").read_text())
    distances, reference = made["tasks"]
    assert [len(entry["points"][0]["x"]) for entry in distances["curves"]] == [12, 12]
    assert reference["trace"] and reference["ranks"] and len(reference["energy"]) == 1
    text = (folder / "page" / "report.html").read_text()
    for heading in (
        "Is it as good as exact?",
        "Do the chains agree?",
        "Can the sampler reach all of the posterior?",
    ):
        assert heading in text


def test_the_reference_is_used_again_and_json_stands_alone(audited, runs, shell):
    _, folder = audited
    again = shell(
        "audit", runs / "price", runs / "price.csv", *QUICK, "--reference", folder / "ref", "--json"
    )
    assert again.exit_code == 0, again.stderr
    assert again.stderr.startswith("Reused the reference") and not shell.listing()
    summary = json.loads(again.stdout)
    before = json.loads((folder / "page" / "results.json").read_text())["summary"]
    assert summary["measures"] == before["measures"] and summary["reference"] == before["reference"]
    assert summary["reference"]["seed"] == 1 and summary["own_chains"] is None
    assert summary["seconds"]["reference"] < before["seconds"]["reference"]


def test_the_reference_predicts_like_any_run(audited, runs, shell):
    _, folder = audited
    assert shell("predict", folder / "ref", runs / "price.csv", "--out", "p.csv").exit_code == 0


def test_classes_agree_and_chains_of_the_run_are_judged_too(chained, runs, shell):
    result = shell("audit", chained, runs / "dear.csv", *QUICK, "--out", "page", "--json")
    assert result.exit_code == 0, (result.stderr, result.exception)
    summary = json.loads(result.stdout)
    assert [row["key"] for row in summary["measures"]] == list(MEASURES)
    assert "2 chains of 20 draws" in summary["own_chains"]
    # Chains of its own seed, or every distance would be zero.
    assert all(
        row["value"] > 0
        for row in summary["measures"]
        if row["key"] in ("total_variation", "wasserstein", "mean_shift")
    )
    made = json.loads((shell.folder / "page" / "results.json").read_text())
    assert [task["title"] for task in made["tasks"]] == [
        "Is it as good as exact?",
        "The reference",
        "The run's own chains",
    ]
    assert made["tasks"][0]["curves"][0]["points"][1]["name"] == "yes"
    assert result.stderr.splitlines()[-1] == "Report: page/report.html"


def test_the_report_goes_beside_the_run_unless_told_otherwise(shell, table):
    table(20).drop(columns="dear").to_csv("t.csv", index=False)
    assert (
        shell(
            "fit", "t.csv", "--target", "price", "--method", "map", "--epochs", 2, "--hidden", ""
        ).exit_code
        == 0
    )
    result = shell("audit", "run", "t.csv", *QUICK)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert (shell.folder / "run-audit" / "report.html").is_file()


def test_rows_and_tables_other_than_the_fits_are_said(runs, shell, table):
    table(30, seed=3).to_csv("new.csv", index=False)
    words = [*QUICK, "--rows", 20, "--test", "new.csv", "--samples", 30, "--seed", 5, "--json"]
    result = shell("audit", runs / "price", "new.csv", *words)
    assert result.exit_code == 0, (result.stderr, result.exception)
    notes = json.loads(result.stdout)["notes"]
    assert (
        "new.csv (30 rows) is not the table" in notes[0]
        and "fitted to 60 rows, the reference to 20" in notes[1]
    )
    assert [line for line in result.stderr.splitlines() if line.startswith("Note: ")] == [
        f"Note: {note}" for note in notes[:2]
    ]
    summary = json.loads(result.stdout)
    assert (
        summary["reference"]["num_data"] == 20
        and summary["reference"]["seed"] == 5
        and summary["table"] == "new.csv"
    )


def test_rows_held_out_of_the_fit_are_held_out_of_the_reference(runs, shell):
    words = [
        "--target",
        "price",
        "--method",
        "map",
        "--epochs",
        2,
        "--hidden",
        "",
        "--validation",
        0.2,
    ]
    assert shell("fit", runs / "price.csv", *words).exit_code == 0
    result = shell("audit", "run", runs / "price.csv", *QUICK, "--json")
    summary = json.loads(result.stdout)
    assert summary["reference"]["num_data"] == 48 and "held out the others" in summary["notes"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "vi"], "no sampler that is exact in the limit"),
        (["--set", "num_chains=3"], "give --chains 3"),
        (["--rows", 61], "--rows 61 is more than the 60 rows"),
        (["--test", "none.csv"], "none.csv does not exist"),
        (["--out", "taken"], "taken is a file"),
    ],
)
def test_options_that_cannot_be_used(runs, shell, words, message):
    (shell.folder / "taken").write_text("")
    assert message in shell.refuses("audit", runs / "price", runs / "price.csv", *words)


def test_runs_and_tables_that_cannot_be_audited(runs, chained, shell, table):
    assert "none does not exist" in shell.refuses("audit", "none", runs / "price.csv")
    table(5).drop(columns="price").to_csv("t.csv", index=False)
    assert "no target column 'price'" in shell.refuses("audit", runs / "price", "t.csv")
    assert "--seed 0 is the seed of" in shell.refuses(
        "audit", chained, runs / "dear.csv", "--seed", 0
    )
    table(20).drop(columns="dear").to_csv("t.csv", index=False)
    fit = shell(
        "fit",
        "t.csv",
        "--target",
        "price",
        "--method",
        "mle",
        "--epochs",
        2,
        "--hidden",
        "",
        "--out",
        "flat",
    )
    assert fit.exit_code == 0
    assert "does not integrate to one" in shell.refuses("audit", "flat", "t.csv")
    (shell.folder / "flat" / "config.json").write_text(
        json.dumps(
            {
                k: v
                for k, v in json.loads((shell.folder / "flat" / "config.json").read_text()).items()
                if k != "posterior"
            }
        )
    )
    assert "is not finished" in shell.refuses("audit", "flat", "t.csv")


def test_a_run_with_too_few_draws_of_its_own_is_still_audited(runs, shell):
    words = [
        "--set",
        "num_chains=2",
        "--set",
        "num_warmup=2",
        "--set",
        "num_draws=2",
        "--set",
        "num_steps=2",
        "--hidden",
        "",
    ]
    assert (
        shell("fit", runs / "price.csv", "--target", "price", "--method", "hmc", *words).exit_code
        == 0
    )
    result = shell("audit", "run", runs / "price.csv", *QUICK)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "The run's own chains: The posterior of 'hmc' holds 2 draws per chain" in result.stdout
