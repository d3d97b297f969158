"""Shortcuts by name: which there are, which one is chosen, and that none is loaded in vain."""

import os
import subprocess
import sys

import pytest

from credo.core.errors import SettingError
from credo.predictive.shortcuts import MODULES, chosen_shortcut, shortcut_named, shortcuts


def test_every_shortcut_is_found_where_it_is_said_to_be():
    for name in MODULES:
        assert callable(shortcut_named(name).outputs)
        assert shortcuts[name] is shortcut_named(name)
    assert set(MODULES) == {"moments", "moments_full", "linear", "probit"}


def test_only_linearised_predictions_have_functions_of_their_own():
    assert {name for name in MODULES if shortcut_named(name).functions} == {"linear", "probit"}


@pytest.mark.parametrize(
    ("asked", "source", "preferred", "expected"),
    [
        (None, "posterior", None, None),
        (None, "posterior", "linear", "linear"),
        (None, "prior", "linear", None),
        ("weights", "posterior", "linear", None),
        ("weights", "prior", "linear", None),
        ("mean", "posterior", "linear", "mean"),
        ("moments", "posterior", None, "moments"),
    ],
)
def test_the_shortcut_asked_for_comes_before_the_methods(asked, source, preferred, expected):
    assert chosen_shortcut(asked, source, preferred) == expected


def test_what_is_no_shortcut_is_refused():
    with pytest.raises(SettingError, match="shortcut='median'; expected None or one of 'mean'"):
        chosen_shortcut("median", "posterior", None)
    with pytest.raises(SettingError, match="is about the posterior; with source='prior'"):
        chosen_shortcut("linear", "prior", None)


PLAIN = """
import sys, torch
from torch import nn
import credo

bnn = credo.BNN(nn.Linear(2, 1), "gaussian")
bnn.fit((torch.randn(8, 2), torch.randn(8, 1)), "vi", epochs=1, progress=False)
entered = set()

def note(frame, event, argument):
    entered.add(frame.f_code.co_filename)

sys.setprofile(note)
bnn.predict(torch.randn(3, 2))
sys.setprofile(None)
assert not [name for name in entered if "curvature" in name], entered
"""


def test_a_plain_prediction_enters_no_file_about_curvature():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
