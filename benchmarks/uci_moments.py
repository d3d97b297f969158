"""Training by moments beside sampled VI on the UCI regression sets: test log-likelihood and RMSE.

``CREDO_DATA=... python benchmarks/uci_moments.py [--splits 5] [--workers 16] [--out FILE]``. One
hidden layer of 50 ReLU units (protein 100), inputs and targets standardised on the training part,
N(0, 1) prior, Gaussian noise learned, the first of the standard splits. All methods take the same
steps with the same Adam; nothing is tuned per set or on test data. Predictions of both are Monte
Carlo over 200 draws of their posteriors, so that only the training differs. With one hidden layer
and independent weights the hidden units are independent, so that moments with full covariance give
the same numbers as diagonal ones and are left out.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

import credo
from credo.core.seeds import isolated
from credo.data import load
from credo.likelihoods import Gaussian
from credo.nets import mlp

SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine_red", "yacht")
METHODS = {
    "vi, local": ("vi", {"estimator": "local"}),
    "moments": ("moments", {"covariance": "diagonal"}),
}
STEPS, BATCH = 2000, 100


def one(task: tuple[str, int, str]) -> tuple[tuple[str, int, str], float, float]:
    """Fit one method on one split: log-likelihood and RMSE in the target's units."""
    name, split, label = task
    torch.set_num_threads(1)
    data = load(f"uci_{name}")
    x, y = torch.tensor(data["X"]).float(), torch.tensor(data["y"]).float().reshape(-1, 1)
    train, test = (
        torch.tensor(data[f"{part}_idx"][split].astype("int64")) for part in ("train", "test")
    )
    mean, std = x[train].mean(0), x[train].std(0).clamp_min(1e-8)
    centre, scale = y[train].mean(), y[train].std()
    x, z = (x - mean) / std, (y - centre) / scale
    with isolated(split):
        net = mlp(x.shape[1], (100 if name == "protein" else 50,), 1)
    method, settings = METHODS[label]
    epochs = max(1, round(STEPS / math.ceil(len(train) / BATCH)))
    bnn = credo.BNN(net, Gaussian()).fit(
        (x[train], z[train]),
        method,
        epochs=epochs,
        batch_size=BATCH,
        lr=0.01,
        seed=split,
        progress=False,
        **settings,
    )
    predictive = bnn.predict(x[test], num_samples=200)
    loglik = float(predictive.log_prob(z[test]).mean()) - math.log(float(scale))
    rmse = float(((predictive.mean - z[test]) * scale).square().mean().sqrt())
    return task, loglik, rmse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    tasks = [
        (name, split, label)
        for label in reversed(METHODS)
        for name in args.sets
        for split in range(args.splits)
    ]
    found = {}
    with ProcessPoolExecutor(args.workers) as pool:
        for task, *values in pool.map(one, tasks):
            found[task] = values
            print(task, [round(v, 4) for v in values], flush=True)
    where = f"{platform.machine()} CPU, one thread per fit"
    lines = [
        "# Training by moments beside sampled VI\n",
        f"`python benchmarks/uci_moments.py --splits {args.splits} --workers {args.workers}`; "
        f"{where}, torch {torch.__version__}.",
        f"One hidden layer, {STEPS} steps of {BATCH}, mean over {args.splits} splits ± standard "
        "error; test log-likelihood (RMSE).\n",
        "| data | " + " | ".join(METHODS) + " |",
        "|---|" + "---|" * len(METHODS),
    ]
    for name in args.sets:
        cells = []
        for label in METHODS:
            rows = [found[name, split, label] for split in range(args.splits)]
            spread = (
                statistics.stdev(r[0] for r in rows) / math.sqrt(len(rows))
                if len(rows) > 1
                else float("nan")
            )
            mean, rmse = (statistics.mean(r[k] for r in rows) for k in (0, 1))
            cells.append(f"{mean:.2f} ± {spread:.2f} ({rmse:.3g})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
