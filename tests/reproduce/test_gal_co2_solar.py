import hashlib

import numpy as np
import pytest
import torch

from credo.nets import mlp
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.gal_co2_solar import AGREE, KINDS, Part, later, record, spread_out

TRAIN, MISSING = 24, (3, 7)  # months of training data, and months without any


def weeks(num_months=48):
    """Five measurements a month that rise and swing with the seasons, none in the missing months, a
    few single ones gone.
    """
    start = np.datetime64("1958-03", "M")
    dates = [
        (start + m).astype("datetime64[D]") + np.timedelta64(5 * k, "D")
        for m in range(num_months)
        for k in range(5)
    ]
    month = np.repeat(np.arange(num_months), 5)
    values = (
        315
        + 0.1 * month
        + 3 * np.sin(2 * np.pi * month / 12)
        + np.tile([-0.2, -0.1, 0.0, 0.1, 0.2], num_months)
    )
    values[np.isin(month, MISSING)] = np.nan
    values[[0, 4, 11]] = np.nan
    return {"date": np.array(dates).astype(int).astype(np.int32), "co2": values}


def expected(data):
    """The labels month by month."""
    month = data["date"].astype("datetime64[D]").astype("datetime64[M]")
    means = np.array(
        [
            np.nanmean(data["co2"][month == m])
            for m in np.unique(month)
            if not np.isnan(data["co2"][month == m]).all()
        ]
    )
    t = np.arange(TRAIN)
    line = np.polynomial.Polynomial.fit(t, means[:TRAIN], 1)
    left = means - line(np.arange(len(means)))
    return left / np.sqrt(np.mean(left[:TRAIN] ** 2))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Both sets, small, in the form of the real ones; a function writes them with other labels."""

    def write(shift=0.0):
        rng = np.random.default_rng(0)
        co2 = expected(weeks())[:TRAIN] + shift * rng.standard_normal(TRAIN)
        x = (np.arange(TRAIN) - (TRAIN - 1) / 2) / np.arange(TRAIN).std()
        sun, gap = np.linspace(-1.7, 1.7, 30), np.linspace(-0.5, 0.5, 8)
        arrays = {
            "co2_train_data": x,
            "co2_train_label": co2,
            "co2_test_data": np.linspace(x[-1], x[-1] + 1.0, 20),
            "co2_test_label": np.full(20, 9.0),
            "solar_train_data": sun,
            "solar_train_label": np.sin(sun),
            "solar_test_data": gap,
            "solar_test_label": np.sin(gap),
        }
        np.savez(tmp_path / "gal_co2_solar.npz", **{k: v[:, None] for k, v in arrays.items()})
        np.savez(tmp_path / "co2_mauna_loa_weekly.npz", **weeks())
        sums = [
            f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}"
            for f in sorted(tmp_path.glob("*.npz"))
        ]
        (tmp_path / "SHA256SUMS").write_text("\n".join(sums) + "\n")

    monkeypatch.setenv("CREDO_DATA", str(tmp_path))
    write()
    return write


def test_the_record_is_monthly_means_without_their_line():
    labels = record(weeks(), TRAIN)
    assert len(labels) == 48 - len(MISSING)
    np.testing.assert_allclose(labels, expected(weeks()), atol=1e-9)
    assert labels[:TRAIN].mean() == pytest.approx(0, abs=1e-9) and labels[
        :TRAIN
    ].std() == pytest.approx(1)


def test_what_is_later_follows_at_the_same_step_and_ends():
    train = Part(torch.linspace(-1.0, 1.0, 5).unsqueeze(1), torch.zeros(5, 1))
    part = later(train, np.arange(20.0), 2.1)
    torch.testing.assert_close(part.x[:, 0], torch.tensor([1.5, 2.0]))
    assert part.y[:, 0].tolist() == [5.0, 6.0]


def test_first_layer_units_switch_within_reach():
    net = mlp(1, (50,), 1)
    spread_out(net.requires_grad_(False), 10.0, 1.5, 0)
    places = -net[0].bias / net[0].weight[:, 0]
    assert float(places.abs().max()) <= 1.5 and float(places.abs().max()) > 1.0
    assert bool(((net[0].weight.abs() >= 5) & (net[0].weight.abs() <= 15)).all())


def test_quick_run_scores_both_sets(folder):
    outcome = perform(make_experiment("gal_co2_solar", {"quick": True})).outcome
    table = outcome.tables[0]
    assert [row.label for row in table.rows] == [kind.label for kind in KINDS]
    assert all(
        0 <= row.measured["within 2 sd"] <= 1 and row.measured["learned noise"] > 0
        for row in table.rows
    )
    assert "growth" in table.rows[1].measured and "growth" not in table.rows[2].measured
    assert outcome.checks[0].holds and len(outcome.checks) == 6 and len(outcome.figures) == 3
    later_points = outcome.figures[0]["points"][1]
    assert max(later_points["y"]) < 9.0  # the constant that stands in for labels is not shown


def test_a_record_that_does_not_give_the_labels_is_not_scored(folder):
    folder(shift=5 * AGREE)
    outcome = perform(make_experiment("gal_co2_solar", {"quick": True})).outcome
    assert not outcome.checks[0].holds and "not scored" in outcome.notes[0]
    assert (
        "held-out rmse" not in outcome.tables[0].rows[0].measured
        and len(outcome.figures[0]["points"]) == 1
    )
