"""Inputs far from those of a fit: found where units are wrong, silent on data of the same kind."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import credo
from credo.core.errors import FindingWarning
from credo.core.standardised import Standardised
from credo.data.checks import InputRange, Outside

X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True) + 0.1 * torch.randn(200, 1, generator=torch.Generator().manual_seed(1))
ONE = {"method": "vi", "epochs": 1, "progress": False}


def found(train, x, units=None):
    watch = Outside(InputRange.of(train, units), units)
    watch.seen(x)
    return watch.findings


def fitted(x=X, **given):
    bnn = credo.BNN(nn.Linear(x.shape[1], 1), credo.likelihoods.Gaussian(std=0.1), **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FindingWarning)
        return bnn.fit((x, Y), **ONE)


@pytest.mark.parametrize(
    "draw", ("normal", "uniform", "exponential", "lognormal", "standard_cauchy")
)
def test_held_out_data_of_the_same_kind_are_inside(draw):
    """40 splits of 200 rows and 10 columns. A heavy tail may have a row 11 widths out: of a Cauchy
    one column in 50 has, so that six splits with a finding are its mean.
    """
    rng, loud = np.random.default_rng(0), 0
    for _ in range(40):
        rows = torch.as_tensor(getattr(rng, draw)(size=(200, 10)))
        loud += bool(found(rows[:160], rows[160:]))
    assert loud <= (12 if draw == "standard_cauchy" else 0)


@pytest.mark.parametrize("name", ("digits", "wine", "breast_cancer", "diabetes", "iris"))
@pytest.mark.parametrize("standardised", (False, True))
def test_real_tables_are_inside(name, standardised):
    x = torch.as_tensor(credo.data.load(name)["x"]).double().flatten(1)
    for seed in range(10):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        train, rest = x[order[: len(x) * 4 // 5]], x[order[len(x) * 4 // 5 :]]
        if standardised:
            mean, std = train.mean(0), train.std(0)
            std = torch.where(std > 0, std, 1.0)
            train, rest = (train - mean) / std, (rest - mean) / std
        assert not found(train, rest)
        # pixels of digits that one image in a thousand uses are far out where they are standardised
        assert sum(bool(found(train, row[None])) for row in rest) <= 0.02 * len(rest)


def test_a_plot_that_goes_on_by_one_width_on_both_sides_is_inside():
    line = torch.linspace(-1.0, 1.0, 50)[:, None]
    assert not found(line, torch.linspace(-3.0, 3.0, 500)[:, None])
    assert found(line, torch.linspace(-6.0, 6.0, 500)[:, None])


@pytest.mark.parametrize("factor", (10.0, 1000.0, -1000.0))
def test_wrong_units_are_outside(factor):
    other = X.clone()
    other[:, 1] *= factor
    (finding,) = found(X, other)
    assert finding.name == "inputs out of range" and "column 1 of x" in finding.evidence
    assert "1 of 3 columns" in finding.evidence


def test_shifted_columns_and_single_wrong_rows_are_outside():
    other = X.clone()
    other[:, 2] += 30.0
    assert "column 2 of x" in found(X, other)[0].evidence
    other = X.clone()
    other[7, 0] = 500.0
    assert "between" in found(X, other)[0].evidence


def test_a_column_that_was_constant_may_be_what_the_others_are():
    train = torch.cat([X, torch.zeros(200, 1)], 1)
    other = train.clone()
    other[:, 3] = 1.0
    assert not found(train, other)
    other[:, 3] = 100.0
    assert "column 3 of x" in found(train, other)[0].evidence


def test_evidence_is_in_the_units_of_x():
    units = Standardised(torch.full((3,), 1000.0).double(), torch.full((3,), 10.0).double())
    (finding,) = found(X, X + 40.0, units)
    assert "in training it was between 96" in finding.evidence


def test_a_prediction_warns_once():
    bnn, far = fitted(), (X * 1000.0, Y)
    loader = [(far[0][rows], far[1][rows]) for rows in torch.arange(200).split(50)]
    for ask in (
        lambda: bnn.predict(far[0]),
        lambda: bnn.predict(far[0].double().numpy(), batch_size=10),
        lambda: bnn.predict(pd.DataFrame(far[0].numpy()), shortcut="mean"),
        lambda: bnn.evaluate(far),
        lambda: bnn.evaluate(loader),
    ):
        with pytest.warns(FindingWarning, match="inputs out of range") as told:
            ask()
        assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bnn.predict(X)
        bnn.predict(far[0], source="prior")
        bnn.evaluate((X, Y))
        bnn.functions(far[0], 2)


def test_diagnose_takes_inputs():
    bnn = fitted()
    assert bnn.diagnose(X) == bnn.diagnose()
    assert [f.name for f in bnn.diagnose(100.0 * X)][-1] == "inputs out of range"


def test_the_range_is_stored_and_models_without_one_do_not_check(tmp_path, monkeypatch):
    bnn = fitted(1000.0 + 100.0 * X)
    assert bnn.standardised is not None
    bnn.save(tmp_path / "saved")
    again = credo.load(tmp_path / "saved", nn.Linear(3, 1))
    for each in (bnn, again):
        assert each.diagnose(1000.0 + 100.0 * X) == bnn.diagnose()
        assert "training it was between 7" in each.diagnose(X)[-1].evidence
    monkeypatch.setattr(InputRange, "tensors", lambda self: {})
    bnn.save(tmp_path / "older")
    older = credo.load(tmp_path / "older", nn.Linear(3, 1))
    assert older.diagnose(X) == older.diagnose()
    older.update((X, Y), epochs=1, progress=False)
    assert older._result().inputs is None


def test_a_finished_run_has_the_range(tmp_path):
    bnn = credo.BNN(nn.Linear(3, 1), credo.likelihoods.Gaussian(std=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FindingWarning)
        bnn.fit((X, Y), run=tmp_path / "run", **ONE)
        again = credo.BNN(nn.Linear(3, 1), credo.likelihoods.Gaussian(std=0.1))
        again.fit((X, Y), run=tmp_path / "run", **ONE)
    assert again.diagnose(1000.0 * X)[-1].name == "inputs out of range"


def test_an_update_widens_the_range():
    bnn = fitted()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FindingWarning)
        bnn.update((50.0 + X, Y), epochs=1, progress=False)
    inputs = bnn._result().inputs
    assert float(inputs.least.max()) < 0.0 and float(inputs.most.min()) > 50.0


@pytest.mark.parametrize("x", (torch.zeros(5, 3, dtype=torch.long), torch.zeros(5, 3, 2), (X, X)))
def test_other_inputs_are_not_checked(x):
    assert InputRange.of(x, None) is None
    assert found(X, x) == []
