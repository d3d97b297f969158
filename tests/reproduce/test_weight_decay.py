import math

import pytest
import torch

from credo_reproduce.base import make_experiment, perform
from credo_reproduce.weight_decay import GAP, NOISE, REACH, SCALES, _checks, _floor, problem, truth


def test_quick_run_has_a_row_per_scale_and_panels():
    outcome = perform(make_experiment("weight_decay", {"quick": True})).outcome
    table = outcome.tables[0]
    assert len(table.rows) == len(SCALES) and sum("good" in row.label for row in table.rows) == 1
    decay = table.rows[2].measured["weight decay"]
    assert decay == pytest.approx(SCALES[2] ** 2 / (10 * 0.95))
    assert all(row.measured["sd in the gap"] > 0 for row in table.rows)
    assert outcome.figures[-1]["log_x"] and len(outcome.figures) in (3, 4)
    assert sum(bool(line.get("faint")) for line in outcome.figures[0]["lines"]) == 15


def test_training_data_leave_a_gap_and_held_out_data_fill_it():
    data = problem(400, 400, 0)
    assert float(data.train.x.abs().min()) >= GAP and float(data.train.x.abs().max()) <= REACH
    assert int((data.train.x > 0).sum()) == 200
    assert float(data.test.x.abs().min()) < 0.1 and len(data.test.y) == 2000
    noise = data.test.y - truth(data.test.x)
    # The deviation of 2,000 draws has standard error 0.3 / sqrt(4000) = 0.0047; four of them fail
    # once in 16,000.
    assert abs(float(noise.std()) - NOISE) < 4 * NOISE / math.sqrt(4000)
    assert not torch.equal(data.validation.x, data.test.x[:400])


def test_the_floor_is_the_expected_nll_of_the_truth():
    data = problem(10, 4000, 1)
    nll = -torch.distributions.Normal(truth(data.test.x), NOISE).log_prob(data.test.y).mean()
    # Its terms have deviation sqrt(1/2); 20,000 of them, four standard errors.
    assert abs(float(nll) - _floor()) < 4 * math.sqrt(0.5 / 20_000)


def rows(test, train):
    return {
        scale: {"test nll": a, "train nll": b}
        for scale, a, b in zip(SCALES, test, train, strict=True)
    }


def test_checks_hold_for_a_valley_and_fail_at_its_ends():
    valley = rows([2.0, 1.5, 1.0, 1.5, 2.0, 2.5], [0.0, 0.1, 0.2, 0.5, 1.0, 1.5])
    assert all(check.holds for check in _checks(valley, SCALES[2]))
    assert [check.holds for check in _checks(valley, SCALES[0])] == [False, False, True, False]
    slope = rows([0.5, 0.8, 1.0, 1.5, 2.0, 2.5], [0.0, 0.1, 0.2, 0.5, 1.0, 1.5])
    assert [check.holds for check in _checks(slope, SCALES[2])] == [True, False, True, True]
