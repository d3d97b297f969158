import json

import numpy as np
import pytest
import torch

from credo.audit import diagnose
from credo.bnn import BNN
from credo.cli.audit_measures import OFF, judge
from credo.cli.audit_page import _worst, chains, diagnosis, distances, page, predictions
from credo.data.table_target import ClassTarget, NumericTarget
from credo.likelihoods import Gaussian

PRICE, KIND = NumericTarget("price", 100.0, 10.0), ClassTarget("kind", ("a", "b", "c"))


def sampled(outputs, likelihood, y, method="hmc", **more):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torch.nn.Linear(2, outputs)
    settings = (
        {"num_warmup": 40, "num_draws": 30, "num_steps": 3, "num_chains": 2}
        if method == "hmc"
        else {"epochs": 3}
    )
    return BNN(net, likelihood).fit((inputs(), y), method, progress=False, **settings, **more)


def inputs():
    return torch.randn(20, 2, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def truth():
    return sampled(1, Gaussian(0.5), inputs()[:, :1])


@pytest.fixture(scope="module")
def labels():
    return sampled(3, "categorical", torch.arange(20) % 3)


def test_the_worst_outputs_come_first_and_none_twice():
    source = torch.Generator().manual_seed(0)
    draws = torch.randn(4, 200, 3, 2, generator=source)
    draws[0, :, 1, 0] += 3.0  # one chain apart
    draws[..., 2, 1] = -draws[..., 1, 0] + 0.01 * draws[..., 2, 1]  # nearly the same number again
    draws[..., 0, 0] = 1.0  # never moves
    chosen = _worst(draws)
    assert chosen[0][:2] in [(1, 0), (2, 1)] and chosen[0][2] > 1.2
    assert len({(1, 0), (2, 1)} & {one[:2] for one in chosen}) == 1
    assert (0, 0) not in {one[:2] for one in chosen} and len(chosen) == 4
    assert [one[2] for one in chosen] == sorted((one[2] for one in chosen), reverse=True)


def test_entries_of_chains_are_in_the_units_of_the_table(truth):
    entries = chains(truth, inputs()[:5], [11, 12, 13, 14, 15], PRICE)
    assert entries["trace"] == entries["ranks"] and 1 <= len(entries["trace"]) <= 4
    first = entries["trace"][0]
    row = int(first["title"].split("row ")[1].split()[0]) - 11
    values = 100.0 + 10.0 * truth.functions(inputs()[:5], n=60)[:, row, 0].double().numpy()
    assert np.asarray(first["chains"]).shape == (2, 30) and first["y_label"] == "predicted price"
    assert np.asarray(first["chains"]).ravel() == pytest.approx(values, rel=1e-5)
    (energy,) = entries["energy"]
    rows = [row["energy"] for row in truth.history if not row["warmup"]]
    assert np.asarray(energy["chains"]) == pytest.approx(np.asarray(rows).T, rel=1e-5)


def test_a_sampler_without_energies_shows_none():
    settings = {"num_warmup": 10, "num_draws": 10, "num_chains": 2, "thin": 1}
    walk = BNN(torch.nn.Linear(2, 1), Gaussian(0.5)).fit(
        (inputs(), inputs()[:, :1]), "metropolis", progress=False, **settings
    )
    assert chains(walk, inputs()[:3], [1, 2, 3], PRICE)["energy"] == []


def test_the_reference_against_itself_lies_on_the_line(truth, labels):
    for model, target in ((truth, PRICE), (labels, KIND)):
        mean, spread = predictions(model, model, inputs(), target, "run")
        for entry in (mean, spread):
            assert [part["name"] for part in entry["points"]] == (
                ["price"] if target is PRICE else ["a", "b", "c"]
            )
            for part in entry["points"]:
                assert part["x"] == part["y"] and len(part["x"]) == 20


def test_means_are_in_the_units_of_the_table_and_a_point_has_no_spread(truth):
    point = sampled(1, Gaussian(0.5), inputs()[:, :1], "map")
    mean, spread = predictions(point, truth, inputs(), PRICE, "run")
    expected = 100.0 + 10.0 * truth.predict(inputs(), samples=60).mean[:, 0]
    assert mean["points"][0]["x"] == pytest.approx(expected.tolist(), rel=1e-5)
    assert (
        max(spread["points"][0]["y"]) == pytest.approx(0.0, abs=1e-6)
        and min(spread["points"][0]["x"]) > 0
    )
    assert mean["lines"][0]["dash"]


def test_the_page_is_json_and_names_every_part(truth):
    summary = {
        "run": "run",
        "method": "vi",
        "table": "t.csv",
        "inputs": 5,
        "notes": ["Mind this."],
        "measures": judge({"sd_ratio": 0.5, "sd_ratio_error": 0.1, "sd_ratio_ceiling": 1.1}, True),
    }
    told = diagnose(truth, inputs()[:5])
    parts = [distances(summary, []), diagnosis("The reference", "Converged.", told, {"trace": []})]
    made = page(summary, parts)
    json.dumps(made, allow_nan=False)
    assert "Mind this." in made["tasks"][0]["description"] and made["summary"] is summary
    assert [row["method"] for row in made["tasks"][1]["rows"]] == [
        "weight",
        "bias",
        "network outputs",
    ]
    assert made["tasks"][1]["rows"][-1]["rhat"] == pytest.approx(told.functions.rhat)
    assert made["tasks"][0]["rows"][0]["verdict"] == OFF
