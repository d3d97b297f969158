import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from credo.core.errors import DataError
from credo.core.settings import setting
from credo_reproduce.base import Experiment
from credo_reproduce.catalogue import experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table


@dataclass(frozen=True)
class Toy(Experiment):
    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "A toy"
    reference: ClassVar[str] = "Someone 2000."
    cost: ClassVar[str] = "1 second"
    needs: ClassVar[tuple[str, ...]] = ("nowhere",)
    size: int = setting(3, "How large.", ge=1)

    def run(self, device, seed, say):
        say("working")
        if self.size == 99:
            raise DataError("No data set 'nowhere'.")
        table = Table(
            "Numbers", ["error"], [Row("ours", {"error": float(self.size)}, {"error": 4.0})]
        )
        curve = {
            "kind": "curves",
            "title": "c",
            "x_label": "x",
            "y_label": "y",
            "lines": [{"name": "l", "x": [0], "y": [1]}],
        }
        return Outcome(
            [table],
            [curve],
            [Check("good", "1", "1", True), Check("bad", "2", "1", False)],
            ["A note."],
        )


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(experiments, "toy", Toy)


def test_without_a_name_the_experiments_are_listed(shell):
    result = shell("reproduce")
    assert result.exit_code == 0
    for name in experiments.names():
        assert name in result.stdout
    assert "1 second" in result.stdout and "nowhere" in result.stdout


def test_tables_stand_beside_the_paper_and_a_failed_check_is_a_measurement(shell):
    result = shell("reproduce", "toy", "--set", "size=5", "--seed", 2, "--out", "r")
    assert result.exit_code == 0, result.stderr
    assert "5.00 (4.00)" in result.stdout and "does not hold" in result.stdout
    assert "1 of 2 checks hold. Not: bad." in result.stdout and "A note." in result.stdout
    assert result.stderr.strip() == "working"
    record = json.loads((shell.folder / "r" / "results.json").read_text())["record"]
    assert record["settings"] == {"quick": False, "size": 5} and record["seed"] == 2
    assert record["outcome"]["tables"][0]["rows"][0]["paper"] == {"error": 4.0}
    assert (shell.folder / "r" / "report.html").is_file()


def test_a_quick_run_says_so_and_the_default_directory_is_named_after_it(shell):
    result = shell("reproduce", "toy", "--quick")
    assert "QUICK RUN" in result.stdout
    assert "QUICK RUN" in (shell.folder / "reproduce" / "toy" / "report.html").read_text()


def test_wrong_input_is_refused_in_one_line(shell):
    assert "Did you mean 'toy'" in shell.refuses("reproduce", "toi")
    assert "size=0 is not valid" in shell.refuses("reproduce", "toy", "--set", "size=0")
    assert "no setting 'sise'" in shell.refuses("reproduce", "toy", "--set", "sise=1")
    assert "expected 'cpu' or 'cuda'" in shell.refuses("reproduce", "toy", "--device", "tpu")
    assert "need the name" in shell.refuses("reproduce", "--set", "size=1")
    (shell.folder / "f").write_text("")
    assert "is a file" in shell.refuses("reproduce", "toy", "--out", "f")


def test_missing_data_exit_with_2_and_leave_nothing(shell):
    result = shell("reproduce", "toy", "--set", "size=99")
    assert (
        result.exit_code == 2 and result.stderr.splitlines()[-1] == "credo: No data set 'nowhere'."
    )
    assert not list(shell.folder.iterdir())
