from credo_reproduce.base import make_experiment, perform
from credo_reproduce.mask_gradients import KINDS, LAYERS, Moments
from credo_reproduce.rate_gradients import RATES, _checks


def test_quick_run_has_its_tables_and_figures():
    outcome = perform(make_experiment("rate_gradients", {"quick": True})).outcome
    small, large, ends = outcome.tables
    assert [row.label for row in small.rows] == ["exact", *(kind.label for kind in KINDS)]
    assert [row.measured["passes"] for row in large.rows] == [1, 1, 1, 2]
    assert all(
        0 < row.measured["rate, hidden"] < 1 and row.measured["ms per step"] > 0
        for row in ends.rows
    )
    curves = [figure for figure in outcome.figures if figure["kind"] == "curves"]
    assert len(outcome.figures) == 6 and curves[0]["lines"][0]["x"] == list(RATES)
    assert len(outcome.checks) == 6


def moments(mean, variance):
    return {layer: Moments(mean, 0.1, variance) for layer in LAYERS}


def test_checks_see_bias_and_variance():
    truth = dict.fromkeys(LAYERS, 1.0)
    small = {kind.label: moments(1.1, 1.0) for kind in KINDS}
    large = {
        kind.label: moments(1.0, var) for kind, var in zip(KINDS, (0.1, 0.5, 1.0, 0.8), strict=True)
    }
    checks = _checks(truth, small, large)
    assert all(check.holds for check in checks) and "1.6 at equal cost" in checks[-1].measured
    biased = _checks(truth, small | {"ARM": moments(2.0, 1.0)}, large | {"ARM": moments(2.0, 1.2)})
    assert [check.holds for check in biased] == [True, False, False, True, True, False]
