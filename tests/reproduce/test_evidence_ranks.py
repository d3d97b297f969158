"""The study of evidence and cross-validation: its parts on cases with known answers, and a quick
run of all of it.
"""

import math

import pytest
import torch
from zoo.stats import Z

from credo_reproduce.base import make_experiment, perform
from credo_reproduce.evidence_ranks import (
    EvidenceRanks,
    Model,
    _checks,
    _nll,
    _place,
    folds,
    teacher,
)

CPU = torch.device("cpu")


def model(evidence, cost, width=5, depth=1, fresh=None, spread=0.1):
    """A model whose held-out points have exactly this mean and a standard error of ``spread`` over
    ten.
    """
    held_out = cost + spread * torch.tensor([-1.0, 1.0]).double().repeat(50) * math.sqrt(99 / 100)
    return Model(width, depth, evidence, held_out, cost if fresh is None else fresh)


def test_the_teacher_is_fixed_by_its_seed_and_has_unit_variance_and_the_stated_noise():
    (x, y), (fresh, targets) = teacher((3000, 3000), 4, 0.1, 0)
    again = teacher((3000, 3000), 4, 0.1, 0)
    assert (
        torch.equal(y, again[0][1])
        and torch.equal(targets, again[1][1])
        and not torch.equal(x, fresh)
    )
    assert not torch.equal(y, teacher((3000, 3000), 4, 0.1, 1)[0][1])
    # A sum of bounded units: the variance of its square is at most a few times 1, so 3,000 points
    # give the variance to 0.1 at Z deviations.
    assert float(y.var()) == pytest.approx(1 + 0.1**2, abs=Z * 2 / math.sqrt(3000))
    assert x.shape == (3000, 4) and x.dtype == y.dtype == torch.float64


def test_both_data_sets_are_of_one_teacher():
    """A wide network fitted to the first explains the second: what is left is at most half of the
    deviation without it.
    """
    train, fresh = EvidenceRanks(num_fresh=500).data(3)
    _, bnn = EvidenceRanks(epochs=300, starts=1)._fit((10,), train, CPU, 0)
    assert bnn.evaluate(fresh)["rmse"] < 0.5


def test_folds_part_the_rows():
    parts = folds(23, 5, 0)
    assert sorted(torch.cat(parts).tolist()) == list(range(23)) and {
        len(part) for part in parts
    } == {4, 5}
    assert all(torch.equal(a, b) for a, b in zip(parts, folds(23, 5, 0), strict=True))


def test_the_nll_is_that_of_the_posterior_over_a_linear_model():
    """Without hidden layers the posterior is known: precision X^T X / s^2 + D, and predictions N(x
    m, x C x + s^2).
    """
    (x, y), fresh = teacher((40, 20), 4, 0.1, 0)
    _, bnn = EvidenceRanks(epochs=800, starts=1, lr=0.05)._fit((), (x, y), CPU, 0)
    width = float(bnn.model.prior.at(bnn.model.sites["0.weight"]).scale)
    design, new = (torch.cat([v, torch.ones(len(v), 1).double()], 1) for v in (x, fresh[0]))
    cover = torch.linalg.inv(design.mT @ design / 0.1**2 + torch.eye(5).double() / width**2)
    mean, var = (
        new @ cover @ design.mT @ y / 0.1**2,
        ((new @ cover) * new).sum(1, keepdim=True) + 0.1**2,
    )
    expected = -torch.distributions.Normal(mean, var.sqrt()).log_prob(fresh[1])[:, 0]
    # the descent's last step is of that order
    torch.testing.assert_close(_nll(bnn, fresh), expected, rtol=1e-3, atol=1e-3)


def test_the_best_start_counts():
    train, _ = teacher((40, 20), 4, 0.1, 0)
    made = [
        EvidenceRanks(epochs=60, starts=starts)._fit((2,), train, CPU, 0)[0] for starts in (1, 4)
    ]
    assert made[1] >= made[0]


def test_held_out_points_are_not_seen():
    """A target that is moved far away changes the fits that see it, and its own nll, and nothing
    else of its own fold.
    """
    train, fresh = teacher((20, 10), 4, 0.1, 0)
    moved = train[1].clone()
    first = folds(20, 4, 0)[0]
    moved[first[0]] += 100.0
    made = EvidenceRanks(num_data=20, num_folds=4, starts=1, epochs=5)
    one, other = (made._measure(2, 1, (train[0], y), fresh, CPU, 0) for y in (train[1], moved))
    changed = one.held_out != other.held_out
    assert changed[first].tolist() == [True] + [False] * (len(first) - 1)
    assert bool(changed.any()) and one.evidence != other.evidence


def test_places_count_from_the_largest():
    assert _place(torch.tensor([3.0, 9.0, 1.0, 3.0])) == [2, 1, 4, 2]


def test_standard_errors_are_of_the_mean():
    assert model(0.0, 2.0, spread=0.3).error == pytest.approx(0.03) and model(
        0.0, 2.0
    ).folds == pytest.approx(2.0)


def test_checks_hold_where_rankings_agree_and_fail_where_they_do_not():
    models = [model(-value, value) for value in (1.0, 2.0, 3.0, 4.0)]
    assert [check.holds for check in _checks(models)] == [True] * 3
    turned = [model(value, value) for value in (1.0, 2.0, 3.0, 4.0)]
    assert [check.holds for check in _checks(turned)] == [False] * 3


def test_a_choice_within_one_standard_error_is_as_good():
    models = [model(10.0, 1.005), model(9.0, 1.0), model(0.0, 2.0), model(-1.0, 3.0)]
    assert _checks(models)[-1].holds and not _checks([model(10.0, 1.02), *models[1:]])[-1].holds


def test_fresh_points_are_a_check_of_their_own():
    models = [model(-value, value, fresh=-value) for value in (1.0, 2.0, 3.0, 4.0)]
    assert [check.holds for check in _checks(models)] == [True, False, True]


def test_quick_run_has_tables_figures_and_checks():
    result = perform(make_experiment("evidence_ranks", {"quick": True}))
    table, ranks = result.outcome.tables
    assert [row.label for row in table.rows] == ["1 x 2", "1 x 5", "2 x 2", "2 x 5"]
    assert sorted(row.measured["by evidence"] for row in table.rows) == [1, 2, 3, 4]
    assert all(row.measured[row.label] == pytest.approx(1.0) for row in ranks.rows)
    assert len(result.outcome.figures) == 2 and len(result.outcome.checks) == 3
    assert all(value > 0 for line in result.outcome.figures[0]["lines"] for value in line["y"])
