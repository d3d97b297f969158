"""Which prior should `prior=None` mean? Test nll of mean-field VI and MAP on scikit-learn's bundled
sets, several priors.

    python benchmarks/default_prior.py    # ten minutes on a core; writes results/default_prior.md

Three random 80/20 splits per set, inputs standardised (the digits also plain), a 50-50 ReLU
network, 2,000 steps of Adam (1e-2, cosine). The score of a prior is its mean excess over the best
prior of the same set, method and split, in nats per datum: how much one loses by always taking it.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.distributions import Laplace, Normal, StudentT

import credo
from credo.priors import FanIn, scale_mixture

PRIORS: dict[str, Any] = {
    "Normal(0, 1)": Normal(0.0, 1.0),
    "Normal(0, 0.3)": Normal(0.0, 0.3),
    "Normal(0, 3)": Normal(0.0, 3.0),
    "FanIn(1)": FanIn(1.0),
    "FanIn(sqrt 2)": FanIn(math.sqrt(2.0)),
    "FanIn(3)": FanIn(3.0),
    "FanIn(5)": FanIn(5.0),
    "Laplace(0, 0.5)": Laplace(0.0, 0.5),
    "StudentT(4) scale 0.5": StudentT(4.0, 0.0, 0.5),
    "scale_mixture(0.5, 1, 0.1)": scale_mixture(0.5, 1.0, 0.1),
}
SETS = {
    "digits": "categorical",
    "digits in [0, 1]": "categorical",
    "iris": "categorical",
    "wine": "categorical",
    "breast_cancer": "categorical",
    "diabetes": "gaussian",
}
METHODS = ("vi", "map")
CAVEAT = [
    "How it was chosen: a first run had five sets, without the digits in [0, 1]; there FanIn(3) "
    "lost 0.048 and Normal(0, 1) 0.054 under VI. The",
    "sixth set was added afterwards, because FanIn underfitted such inputs in the demo, and it "
    "turned the order. The difference of 0.003 between the",
    "two is far below the spread over three splits: read it as a tie, broken by robustness to "
    "inputs that are not standardised. Scores are on the",
    "test splits that the choice was made on, and MAP's large excess is its learned noise "
    "collapsing on diabetes.",
]


def split(
    name: str, seed: int
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    raw = name.endswith(
        "in [0, 1]"
    )  # as images are often given: not centred, most pixels near zero
    data = credo.data.load(name.split()[0])
    x = torch.as_tensor(data["x"], dtype=torch.float32).flatten(1)
    y = torch.as_tensor(data["y"])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[: int(0.8 * len(x))], order[int(0.8 * len(x)) :]
    mean, std = x[train].mean(0), x[train].std(0)
    x = x / 16 if raw else (x - mean) / torch.where(std > 0, std, torch.ones_like(std))
    if SETS[name] == "gaussian":
        y = ((y - y[train].double().mean()) / y[train].double().std()).float()
    return (x[train], y[train]), (x[test], y[test])


def score(name: str, method: str, prior: Any, seed: int) -> float:
    train, test = split(name, seed)
    with credo.core.seeds.isolated(seed):
        net = credo.nets.mlp(
            train[0].shape[1],
            (50, 50),
            int(train[1].max()) + 1 if SETS[name] == "categorical" else 1,
        )
    batches = -(-len(train[0]) // 128)
    bnn = credo.BNN(net, SETS[name], prior=prior)
    bnn.fit(
        train, method, epochs=2000 // batches, batch_size=128, lr=1e-2, seed=seed, progress=False
    )
    return bnn.evaluate(test, num_samples=50)["nll"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "default_prior.md"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    nll: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for name in SETS:
        for method in METHODS:
            for seed in range(args.splits):
                for label, prior in PRIORS.items():
                    nll[name, method, label].append(score(name, method, prior, seed))
            print(
                name,
                method,
                {p: round(statistics.mean(nll[name, method, p]), 3) for p in PRIORS},
                flush=True,
            )
    columns = [(name, method) for method in METHODS for name in SETS]
    excess = {
        p: {
            c: statistics.mean(
                a - min(nll[*c, q][i] for q in PRIORS) for i, a in enumerate(nll[*c, p])
            )
            for c in columns
        }
        for p in PRIORS
    }
    means = {
        p: {m: statistics.mean(excess[p][c] for c in columns if c[1] == m) for m in METHODS}
        for p in PRIORS
    }
    ranked = sorted(PRIORS, key=lambda p: means[p]["vi"])
    lines = [
        "# The default prior",
        "",
        f"`python benchmarks/default_prior.py --splits {args.splits}`, torch {torch.__version__}, "
        "CPU. Test nll in nats per datum, mean over splits;",
        "excess: mean distance to the best prior of the same set, method and split. Sorted by "
        "excess under VI.",
        "",
        *CAVEAT,
        "",
        "| prior | excess VI | excess MAP | " + " | ".join(f"{n} {m}" for n, m in columns) + " |",
        "|---|" + "---:|" * (len(columns) + 2),
    ]
    for p in ranked:
        cells = [f"{statistics.mean(nll[*c, p]):.3f}" for c in columns]
        lines.append(
            f"| {p} | {means[p]['vi']:.3f} | {means[p]['map']:.3f} | " + " | ".join(cells) + " |"
        )
    args.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
