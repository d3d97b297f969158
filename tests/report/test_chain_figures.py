import json

import numpy as np
import pytest
import torch
from scipy.stats import hypergeom

from credo.metrics.chain_diagnostics import bfmi
from credo.report.chain_figures import BINS, POINTS, energy, ranks, trace
from credo.report.figures import SECTIONS


def entry(values, **more):
    return {"title": "t", "y_label": "y", "chains": np.asarray(values).tolist()} | more


def bars(figure):
    return [part for part in figure["data"] if part["type"] == "bar"]


def test_a_trace_is_one_line_per_chain_thinned_from_the_first_draw_to_the_last():
    values = np.arange(2 * 1234.0).reshape(2, 1234)
    first, second = trace(entry(values))["data"]
    assert len(first["x"]) == POINTS and first["x"][0] == 1 and first["x"][-1] == 1234
    assert second["y"][0] == 1234.0 and second["y"][-1] == values.max()
    assert len(set(first["x"])) == POINTS
    assert trace(entry(values[:, :7]))["data"][0]["x"] == [1, 2, 3, 4, 5, 6, 7]


def test_chains_that_take_turns_fill_all_bins_alike():
    values = np.arange(400.0).reshape(100, 4).T
    for chain in bars(ranks(entry(values))):
        assert chain["y"] == [5] * BINS


def test_a_chain_that_stays_low_fills_the_low_bins_alone():
    low, high = bars(ranks(entry([np.arange(100.0), 200 + np.arange(100.0)])))
    assert low["y"] == [10] * 10 + [0] * 10 and high["y"] == [0] * 10 + [10] * 10
    assert max(low["x"]) < min(high["x"])


def test_ties_share_their_mean_rank():
    # 20 zeros, then 20 ones: all in the middle of their own half.
    low, high = bars(ranks(entry([np.zeros(20), np.ones(20)])))
    assert (
        sum(low["y"]) == 20
        and max(low["y"]) == 20
        and low["y"].index(20) < BINS // 2 <= high["y"].index(20)
    )


def test_the_band_is_two_deviations_of_a_draw_without_replacement():
    chains, draws = 4, 200
    (shape,) = ranks(entry(np.random.default_rng(0).normal(size=(chains, draws))))["layout"][
        "shapes"
    ]
    law = hypergeom(chains * draws, chains * draws // BINS, draws)
    assert shape["y1"] - law.mean() == pytest.approx(2 * law.std())
    assert shape["y0"] == pytest.approx(max(law.mean() - 2 * law.std(), 0.0))


def test_one_chain_has_no_freedom_and_no_band():
    figure = ranks(entry(np.random.default_rng(0).normal(size=(1, 100))))
    assert bars(figure)[0]["y"] == [5] * BINS
    assert figure["layout"]["shapes"][0]["y0"] == figure["layout"]["shapes"][0]["y1"] == 5


def test_energies_and_changes_each_sum_to_one_and_the_worst_chain_is_in_the_title():
    rng = np.random.default_rng(0)
    values = np.stack([rng.normal(size=300), rng.normal(size=300).cumsum()])
    figure = energy(entry(values))
    marginal, change = figure["data"]
    assert sum(marginal["y"]) == pytest.approx(1) and sum(change["y"]) == pytest.approx(1)
    assert marginal["x"] == change["x"]
    lowest = float(bfmi(torch.tensor(values)).min())
    assert lowest < 0.3 and figure["layout"]["title"]["text"] == f"t: E-BFMI {lowest:.2f}"


def test_a_constant_energy_is_said_and_drawn():
    figure = energy(entry(np.full((2, 10), 7.0)))
    assert figure["layout"]["title"]["text"] == "t: constant"
    assert sum(figure["data"][0]["y"]) == pytest.approx(1)


@pytest.mark.parametrize(("key", "draw"), [("trace", trace), ("ranks", ranks), ("energy", energy)])
def test_every_figure_is_json_and_has_its_section(key, draw):
    json.dumps(draw(entry(np.random.default_rng(0).normal(size=(3, 50)))), allow_nan=False)
    (section,) = (section for section in SECTIONS if section.key == key)
    assert section.draw is draw and section.heading.endswith("?") and section.caption
