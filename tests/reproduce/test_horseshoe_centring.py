import math

import pytest
import torch

from credo.core.errors import SettingError
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.horseshoe_centring import (
    BANK,
    COLUMNS,
    FORMS,
    Found,
    _over_problems,
    checks,
    converged,
    over_epochs,
)
from credo_reproduce.width_teacher import problem


@pytest.fixture(scope="module")
def outcome():
    return perform(make_experiment("horseshoe_centring", {"quick": True})).outcome


def test_quick_run_has_a_row_per_form_and_size_and_every_figure(outcome):
    table, longer = outcome.tables
    assert [row.label for row in table.rows] == [
        f"{form}, N = {size}" for size in (10, 20) for form in FORMS
    ]
    assert [row.label for row in longer.rows] == [
        f"{form}, {steps} steps" for form in FORMS for steps in (20, 40)
    ]
    assert all(set(row.measured) == set(COLUMNS) for row in [*table.rows, *longer.rows])
    titles = [figure["title"] for figure in outcome.figures]
    assert len(titles) == len(set(titles)) == 3 * 2 + 2
    ranked = outcome.figures[-2]["lines"]
    assert len(ranked) == 4 and all(
        line["y"] == sorted(line["y"], reverse=True) and len(line["y"]) == 8 for line in ranked
    )
    assert outcome.figures[-1]["lines"][-1] == {
        "name": "teacher",
        "x": [10, 20],
        "y": [2.0, 2.0],
        "dash": False,
    }


def test_curves_end_at_the_numbers_of_the_table(outcome):
    """Scales are seen by a callback during the fit, in the table they are asked of the posterior
    afterwards.
    """
    experiment = make_experiment("horseshoe_centring", {"quick": True, "epochs": 12})
    given = problem(2, 20, 20, 0.1, 0)
    for form, centred in FORMS.items():
        found = experiment.fit(form, 20, given, 12, torch.device("cpu"), 3)
        assert found.history[-1]["scales"] == pytest.approx(found.scales)
        assert (
            found.numbers["largest scale"] == found.scales[0]
            and found.history[-1][f"kept/{BANK}"] == found.numbers["kept width"]
        )
        assert len(found.history) == 12 and all(len(row["scales"]) == 8 for row in found.history)
        again = experiment.fit(form, 20, given, 12, torch.device("cpu"), 3)
        assert again.numbers | {"seconds": 0} == found.numbers | {"seconds": 0}
        assert centred == (form == "centred")


def test_both_forms_start_at_the_same_function_and_part():
    experiment = make_experiment("horseshoe_centring", {"quick": True})
    given = problem(2, 20, 20, 0.1, 0)
    one, two = (experiment.fit(form, 20, given, 10, torch.device("cpu"), 0) for form in FORMS)
    # after a step, by gradients of different objectives
    assert one.history[0]["scales"] != two.history[0]["scales"]
    assert one.history[0]["nll"] == pytest.approx(two.history[0]["nll"], rel=0.5)


@pytest.mark.parametrize("sizes", ["", "5,a", "50,20", "20,20", "1,5"])
def test_sizes_that_do_not_rise_are_refused_before_any_fit(sizes):
    with pytest.raises(SettingError, match="rising whole numbers"):
        perform(
            make_experiment("horseshoe_centring", {"quick": True, "sizes": sizes}),
            say=lambda _: pytest.fail("began"),
        )


@pytest.mark.parametrize(
    ("name", "value"), [("units", 0), ("noise", 0.0), ("seeds", 0), ("lr", -1.0), ("epochs", 5)]
)
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(SettingError, match=name):
        make_experiment("horseshoe_centring", {name: value})


def fits(elbo, kept, median):
    return [
        Found(
            dict.fromkeys(COLUMNS, 0.0)
            | {"ELBO per point": e, "kept width": kept, "median scale": median},
            [],
            [],
        )
        for e in elbo
    ]


def test_checks_tell_a_better_form_from_a_worse_one():
    better = {
        ("centred", 50): fits([-1, -2], 5, 0.5),
        ("non-centred", 50): fits([-0.5, -2], 4, 0.1),
    }
    later = {("centred", 200): fits([0, 0], 6, 0.5), ("non-centred", 200): fits([1, 1], 6, 0.1)}
    assert all(check.holds for check in checks(better | later, [50, 200], 5))
    turned = {
        ("centred" if form != "centred" else "non-centred", n): found
        for (form, n), found in (better | later).items()
    }
    failed = [check.name for check in checks(turned, [50, 200], 5) if not check.holds]
    assert failed == [
        "non-centred has the higher ELBO, N = 50",
        "non-centred has the higher ELBO, N = 200",
        "non-centred lets scales fall further",
        "non-centred keeps no more units",
    ]
    shrinking = {
        (form, n): fits([0, 0], 12 if n == 50 else 4, 0.1) for form in FORMS for n in (50, 200)
    }
    assert {c.name.split(",")[0] for c in checks(shrinking, [50, 200], 5) if not c.holds} >= {
        "kept width grows with the data",
        "kept width is near the teacher's",
    }


def test_convergence_compares_what_steps_bring_with_what_forms_do():
    once = {"centred": fits([-1.0], 5, 0.1)[0], "non-centred": fits([-0.5], 5, 0.1)[0]}
    little = {"centred": fits([-0.96], 5, 0.1)[0], "non-centred": fits([-0.49], 5, 0.1)[0]}
    # less than the difference, and still enough to doubt it
    much = little | {"centred": fits([-0.9], 5, 0.1)[0]}
    assert converged(once, little, 50).holds and not converged(once, much, 50).holds


def test_averages_over_epochs_and_over_problems():
    history = [{"epoch": n, "elbo": float(n)} for n in range(450)]
    x, y = over_epochs(history, lambda row: row["elbo"])
    assert x[:2] == [0.0, 3.0] and y[:2] == [1.0, 4.0] and len(x) == 150
    assert (
        _over_problems(fits([1.0, 3.0], 2, 0), COLUMNS[0]) == (2.0, pytest.approx(math.sqrt(2)))
        and _over_problems(fits([1.0], 2, 0), COLUMNS[0])[1] == 0
    )
