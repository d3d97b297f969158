import pytest
import torch
from typer.testing import CliRunner

from credo.cli.app import app

runner = CliRunner()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compress")
    torch.manual_seed(0)
    x = torch.randn(80, 3)
    rows = [
        "a,b,c,y",
        *(f"{r[0]:.3f},{r[1]:.3f},{r[2]:.3f},{'up' if r[0] > 0 else 'down'}" for r in x.tolist()),
    ]
    (folder / "t.csv").write_text("\n".join(rows) + "\n")
    made = runner.invoke(
        app,
        [
            "fit",
            str(folder / "t.csv"),
            "--target",
            "y",
            "--method",
            "sparse_vd",
            "--epochs",
            "20",
            "--out",
            str(folder / "run"),
        ],
    )
    assert made.exit_code == 0, made.output
    return folder


def call(run, *given):
    return runner.invoke(
        app, ["compress", str(run / "run"), "--out", str(run / "m.credo"), *map(str, given)]
    )


def test_a_run_becomes_a_file_with_what_each_step_costs(run):
    done = call(run, "--data", run / "t.csv")
    assert done.exit_code == 0, done.output
    assert (run / "m.credo").stat().st_size < 2000
    for word in (
        "mean network",
        "pruned",
        "decoded file",
        "accuracy",
        "positions",
        "times smaller than float32",
    ):
        assert word in done.output


def test_retraining(run):
    done = call(run, "--data", run / "t.csv", "--train", run / "t.csv", "--tune", 2, "--levels", 4)
    assert done.exit_code == 0 and "retrained" in done.output, done.output


@pytest.mark.parametrize(
    "given, told",
    [
        (["--tune", "2"], "--tune needs --train"),
        (["--by", "taste"], "by='taste' is not known"),
        (["--by", "snr"], "give one of them"),
    ],
)
def test_mistakes_are_said_in_one_sentence(run, given, told):
    done = call(run, *given)
    assert done.exit_code != 0 and told in done.output and "Traceback" not in done.output


def test_a_folder_without_a_run(tmp_path):
    done = runner.invoke(app, ["compress", str(tmp_path)])
    assert done.exit_code != 0 and "expected a run directory written by credo fit" in done.output
