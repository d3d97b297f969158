"""How many files a newcomer opens, and how often they change folder, to follow one command."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

import credo

WALK = Path(__file__).parent / "zoo" / "walk.py"
#: command -> most files, most changes of folder: lower them where a change makes the way shorter
LIMITS = {
    "fit": (42, 18),
    "fit --method hmc": (41, 18),  # one of them for SHORT's settings, cli/assignments.py
    "fit --method laplace": (46, 20),
    "predict": (28, 14),
}
SHORT = {"fit --method hmc": ["--set", "num_warmup=2", "--set", "num_draws=2"]}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walk")
    wine = credo.data.load("wine")
    frame = pd.DataFrame(wine["x"], columns=wine["feature_names"]).assign(cultivar=wine["y"])
    frame.to_csv(folder / "wine.csv", index=False)
    return folder


def walk(folder, *words):
    done = subprocess.run(
        [sys.executable, str(WALK), *words], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def changes(files):
    """How often the folder changes in the order in which files are first entered."""
    folders = [Path(file).parts[0] if len(Path(file).parts) > 1 else "." for file in files]
    return sum(a != b for a, b in pairwise(folders))


@pytest.mark.parametrize("command", list(LIMITS))
def test_a_command_is_followed_through_few_files(table, command):
    name, *options = command.split()
    if name == "predict":
        fitted = ["fit", "wine.csv", "--target", "cultivar", "--out", "run", "--epochs", "2"]
        walk(table, *fitted)
        files = walk(table, "predict", "run", "wine.csv", "--out", "predictions.csv")
    else:
        out = command.replace(" ", "_")
        options += SHORT.get(command, ["--epochs", "2"])
        files = walk(table, name, "wine.csv", "--target", "cultivar", "--out", out, *options)
    most_files, most_changes = LIMITS[command]
    assert len(files) <= most_files, files
    assert changes(files) <= most_changes, files
