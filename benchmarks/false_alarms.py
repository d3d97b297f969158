"""Do good fits stay silent? 100 fits with no setting given, what ``diagnose`` says of those that
predict well, and how long it takes.

    python benchmarks/false_alarms.py    # about a quarter of an hour of one core
    python benchmarks/false_alarms.py --number 5 --out /tmp/some.json

Linear regression, a sine with a gap, two crescents and scikit-learn's wine, breast cancer and
diabetes. Whether a fit predicts well is decided by held-out data alone: its nll must be below that
of the best constant by 0.05 nats, and above that of ``map`` on the same data by at most 0.1. Fits
that do not are listed and not counted: a finding about them is no false alarm.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch

import credo
from credo import bnn as fits
from credo.core.errors import CredoError
from credo.core.seeds import generator
from credo.likelihoods import Categorical
from credo.nets import mlp
from credo.version import __version__
from credo_reproduce.defaults_problems import PROBLEMS, Problem, base_nll

GAIN, LOSS = 0.05, 0.1  # nats per example: over a constant at least, behind map at most
MOST_SHARE = 0.05  # of a fit's seconds
LINEAR = ("map", "vi", "laplace", "ivon", "exact", "hmc", "nuts", "swag", "sghmc")
DEEP = ("map", "vi", "laplace", "ivon", "deep_ensemble", "mc_dropout", "swag", "last_layer")
AGAIN = ("map", "deep_ensemble", "swag", "vi")
SETS = ("sine", "crescents", "wine", "breast_cancer", "diabetes")
CELLS = [
    *[("linear_200", method, seed) for seed in range(4) for method in LINEAR],
    *[(name, method, 0) for name in SETS for method in DEEP],
    *[(name, method, 1) for name in SETS for method in AGAIN],
    *[(name, "laplace", 1) for name in SETS[:4]],
]
RESULT = Path(__file__).parent / "results" / "cpu_false_alarms.json"


def breast_cancer(seed: int) -> Problem:
    """569 rows of 30 columns in two classes, inputs standardised, four fifths to learn from."""
    data = credo.data.load("breast_cancer")
    x, y = torch.as_tensor(data["x"]).float(), torch.as_tensor(data["y"]).long()
    order = torch.randperm(len(y), generator=generator("false_alarms", seed))
    train, test = order[:455], order[455:]
    x = (x - x[train].mean(0)) / x[train].std(0)
    parts = (x[train], y[train]), (x[test], y[test])
    return Problem(
        "breast_cancer", seed, "labels", *parts, lambda: mlp(30, (50,), 2), Categorical()
    )


@cache
def problem_of(name: str, seed: int) -> Problem:
    return breast_cancer(seed) if name == "breast_cancer" else PROBLEMS[name](seed)


@cache
def measure(name: str, method: str, seed: int) -> dict[str, Any]:
    """One fit: its nll on held-out data, its findings, its seconds and those of ``diagnose``."""
    problem, spent, plain = problem_of(name, seed), [0.0], fits.diagnose

    def timed(case: Any) -> Any:
        begun = time.perf_counter()
        try:
            return plain(case)
        finally:
            spent[0] += time.perf_counter() - begun

    row: dict[str, Any] = {"problem": name, "method": method, "seed": seed}
    started, fits.diagnose = time.perf_counter(), timed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bnn = problem.bnn().fit(problem.train, method, seed=seed, progress=False)
            row |= {"seconds": time.perf_counter() - started, "diagnose_seconds": spent[0]}
            nll = bnn.evaluate(problem.test, seed=seed)["nll"]
    except CredoError as error:
        return row | {"failed": str(error)}
    finally:
        fits.diagnose = plain
    found = [{"name": f.name, "evidence": f.evidence} for f in bnn.diagnose()]
    return row | {"nll": nll, "constant_nll": base_nll(problem), "findings": found}


def nll_of_map(name: str, seed: int) -> float:
    return measure(name, "map", seed).get("nll", math.inf)


def is_good(row: dict[str, Any]) -> bool:
    """Whether it predicts held-out data well, whatever ``diagnose`` says."""
    if "nll" not in row or not row["nll"] < row["constant_nll"] - GAIN:
        return False
    return row["nll"] < nll_of_map(row["problem"], row["seed"]) + LOSS


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    good = [row for row in rows if row["predicts_well"]]
    shares = [row["diagnose_seconds"] / row["seconds"] for row in rows if "seconds" in row]
    return {
        "fits": len(rows),
        "that predict well": len(good),
        "of these not silent": sum(bool(row["findings"]) for row in good),
        "median share of diagnose": statistics.median(shares) if shares else None,
        "largest share of diagnose": max(shares, default=None),
        "share is small": max(shares, default=0.0) <= MOST_SHARE,
        "seconds": sum(row.get("seconds", 0.0) for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=len(CELLS), help="fits, evenly spaced")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    count = min(asked.number, len(CELLS))
    rows = []
    for name, method, seed in [CELLS[i * len(CELLS) // count] for i in range(count)]:
        row = dict(measure(name, method, seed))
        row["predicts_well"] = is_good(row)
        told = [f"{f['name']} ({f['evidence']})" for f in row.get("findings", [])]
        mark = "good" if row["predicts_well"] else "not good"
        print(f"{name} {method} {seed}: {mark}, {row.get('nll', math.nan):.3f}", *told, flush=True)
        rows.append(row)
    versions = {"credo": __version__, "torch": torch.__version__, "platform": platform.platform()}
    result = {"summary": summary(rows), "versions": versions, "rows": rows}
    asked.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()
