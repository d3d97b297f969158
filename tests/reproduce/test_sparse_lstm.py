"""Tests of sparse variational dropout for an LSTM, with a made-up text."""

import math

import numpy as np
import pytest
import torch

from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.nets import char_lstm
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.sparse_lstm import State, _checks, bits_per_character, gates_left, windows

CPU = torch.device("cpu")


def made_up(name):
    """A text of a few words over and over, with a stray letter now and then."""
    assert name == "tinyshakespeare"
    text = np.frombuffer(b"to be or not to be, that is the question. " * 60, dtype=np.uint8).copy()
    text[np.random.default_rng(0).integers(0, len(text), 50)] = ord("x")
    return {"text": text}


@pytest.fixture
def text(monkeypatch):
    monkeypatch.setattr("credo_reproduce.sparse_lstm.load", made_up)


def test_rows_of_a_quick_run(text):
    result = perform(
        make_experiment("sparse_lstm", {"quick": True, "layers": 2, "pretrain": 20, "batch": 10})
    )
    bits, places = result.outcome.tables
    labels = [row.label.split(",")[0] for row in bits.rows]
    assert labels == [
        "deterministic",
        "deterministic",
        "sparse_vd",
        "sparse_vd",
        "group_normal_jeffreys",
        "group_normal_jeffreys",
    ]
    dense = bits.rows[0].measured
    vocab = len(np.unique(made_up("tinyshakespeare")["text"]))
    assert dense["weights left"] == 2 * vocab * 4 + 32 * (4 + 8) + 32 * 16 + 4 * vocab
    assert 0 < dense["bits per character"] < math.log2(vocab)  # better than chance: it has learned
    for row in bits.rows[2:]:
        assert (
            row.measured["weights left"] <= dense["weights left"]
            and row.measured["weights, times fewer"] >= 1.0
        )
    assert (
        places.rows[0].measured["hidden-hidden 2 %"] == 0.0
        and places.rows[0].measured["gates f"] == 16
    )
    assert len(result.outcome.checks) == 2


def test_windows_cover_the_text_once():
    x, y = windows(torch.arange(23), 5)
    assert (
        x.shape == y.shape == (4, 5)
        and torch.equal(x.flatten(), torch.arange(20))
        and torch.equal(y, x + 1)
    )


def test_bits_do_not_depend_on_the_chunks_and_are_those_of_chance_for_equal_scores():
    with isolated(0):
        net, ids = char_lstm(8, 3, 2), torch.randint(0, 8, (7, 12))
    data = ids[:, :-1], ids[:, 1:]
    whole = bits_per_character(net, data, 8, CPU)
    assert bits_per_character(net, data, 8, CPU, chunk=2) == pytest.approx(whole, rel=1e-6)
    with torch.no_grad():
        net.head.weight.zero_(), net.head.bias.zero_()
    assert bits_per_character(net, data, 8, CPU) == pytest.approx(3.0)


def test_a_gate_is_left_if_either_of_its_rows_is():
    net = char_lstm(8, 3, 2)
    with torch.no_grad():
        net.lstm.weight_ih_l0[:3] = 0.0  # input gates: what they read of the input
        net.lstm.weight_hh_l0[:2] = 0.0  # and two of them of the state
        net.lstm.weight_hh_l0[9:] = 0.0  # output gates still read the input
    assert gates_left(net) == {"i": 1, "f": 3, "g": 3, "o": 3}


def state(label, bits, left):
    return State(label, bits, bits, {}, left, 100, 1.0, {}, 1, 0.0)


def test_checks_can_fail():
    dense, sparse = state("deterministic", 2.0, 100), "sparse_vd, log alpha < 3, chosen"
    assert [check.holds for check in _checks([dense, state(sparse, 2.09, 20)])] == [True, True]
    assert [check.holds for check in _checks([dense, state(sparse, 2.11, 21)])] == [False, False]
    better = state("deterministic, trained on", 1.9, 100)  # the harder of the two is what counts
    assert [check.holds for check in _checks([dense, better, state(sparse, 2.09, 20)])] == [
        True,
        False,
    ]


def test_texts_that_are_too_short_are_refused(text):
    with pytest.raises(
        SettingError, match="leave no window to test on; expected more than 1020 characters"
    ):
        perform(make_experiment("sparse_lstm", {"quick": True, "length": 50, "num_chars": 1000}))
