"""Does a change of the source leave every number as it was? Fits every method small, twice: before
and after.

    python benchmarks/unchanged.py record FOLDER     # with the version before the change
    python benchmarks/unchanged.py compare FOLDER    # with the version after it

``record`` stores predictions, objective, history, run directory and saved model of every case;
``compare`` fits anew, lists what is not equal bit for bit, and loads what was stored. Cases and
their settings are read from the folder by ``compare``, so that a change of the defaults shows.
Names that were changed on purpose are translated by ``RENAMED``.
"""

import argparse
import json
import shutil
import sys
import time
import warnings
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

import credo

RENAMED: dict[str, str] = {}  # settings: name before -> name after
FEW = {
    "epochs": 3,
    "batch_size": 16,
    "num_warmup": 4,
    "num_draws": 4,
    "num_moves": 5,
    "num_chains": 2,
    "thin": 1,
}
FEW |= {
    "num_proposals": 100,
    "num_particles": 3,
    "num_members": 2,
    "num_rungs": 3,
    "num_steps": 3,
    "num_cycles": 2,
}


def linear_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3


def networks():
    """Builders of (network, likelihood, data), by name."""
    generator = torch.Generator().manual_seed(2)
    flat = torch.randn(24, 5, generator=generator)
    image = torch.randn(24, 1, 8, 8, generator=generator)
    words = torch.randint(0, 11, (24, 6), generator=generator)
    labels, curve = torch.arange(24) % 3, flat[:, :1].sin()

    def linear():
        x, y = linear_data()
        return nn.Linear(3, 1).double(), credo.likelihoods.Gaussian(std=0.5), (x, y)

    def dropped():
        parts = nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
        return nn.Sequential(*parts), "categorical", (flat, labels)

    def normed():
        parts = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
        return nn.Sequential(*parts), "categorical", (flat, labels)

    def cnn():
        parts = (
            nn.Conv2d(1, 4, 3),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 3),
        )
        return nn.Sequential(*parts), "categorical", (image, labels)

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.body, self.head = (
                nn.Embedding(11, 4),
                nn.LSTM(4, 6, batch_first=True),
                nn.Linear(6, 3),
            )

        def forward(self, x):
            return self.head(self.body(self.table(x))[0][:, -1])

    def bottleneck():
        parts = nn.Linear(5, 8), nn.ReLU(), credo.nets.Bottleneck(8, 2), nn.Linear(2, 3)
        return nn.Sequential(*parts), "categorical", (flat, labels)

    def mlp():
        return (
            nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)),
            "categorical",
            (flat, labels),
        )

    def regression():
        parts = nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)
        return nn.Sequential(*parts), "gaussian", (flat, curve)

    def wide():
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)), "gaussian", (flat, curve)

    return {
        "linear": linear,
        "dropped": dropped,
        "normed": normed,
        "cnn": cnn,
        "mlp": mlp,
        "regression": regression,
        "wide": wide,
        "lstm": lambda: (Words(), "categorical", (words, labels)),
        "bottleneck": bottleneck,
    }


def cases():
    """(name, network, method, settings): every method on every network it takes, and what a setting
    can choose.
    """
    out = []
    for name, cls in credo.methods.methods.items():
        few = {key: FEW.get(key, value) for key, value in cls.conformance_settings.items()}
        out += [(f"{name}-{net}", net, name, few) for net in networks()]
        fitting = {"vib": "bottleneck", "mc_batchnorm": "normed", "stochastic": "dropped"}.get(
            name, "mlp"
        )
        for field in fields(cls):
            for choice in field.metadata.get("choices") or ():
                if choice != "graph":
                    out.append(
                        (f"{name}-{field.name}-{choice}", fitting, name, few | {field.name: choice})
                    )
    vi = {"epochs": 3, "batch_size": 16}
    for posterior in ("mean_field", "low_rank", "kron", "full"):
        for estimator in (
            "local",
            "weights",
            "per_example",
            "flipout",
            "score",
            "straight_through",
            "moments",
        ):
            out.append(
                (
                    f"vi-{posterior}-{estimator}",
                    "mlp",
                    "vi",
                    vi | {"posterior": posterior, "estimator": estimator},
                )
            )
    for structure in ("diagonal", "kfac", "low_rank", "full"):
        for subset in ("all", "last"):
            for tune in ("none", "evidence"):
                settings = {
                    "epochs": 3,
                    "batch_size": 16,
                    "structure": structure,
                    "subset": subset,
                    "tune": tune,
                }
                out.append((f"laplace-{structure}-{subset}-{tune}", "mlp", "laplace", settings))
    for prior in ("ard", "optimal", "horseshoe", "spike_and_slab", "fan_in"):
        out.append((f"vi-prior-{prior}", "mlp", "vi", vi | {"__prior__": prior}))
    out += [
        ("vi-update", "linear", "vi", vi | {"__update__": True}),
        ("exact-update", "linear", "exact", {"__update__": True}),
    ]
    return out


def run(name, net, method, settings, folder):
    """One case: everything that it computes, as arrays; a refusal is recorded as its sentence."""
    settings = {
        RENAMED.get(key, key): tuple(v) if isinstance(v, list) else v for key, v in settings.items()
    }
    prior, update = settings.pop("__prior__", None), settings.pop("__update__", False)
    torch.manual_seed(1)
    try:
        module, likelihood, data = networks()[net]()
        bnn = credo.BNN(module, likelihood, Normal(0.0, 1.0) if prior is None else prior)
        bnn.fit(data, method, seed=3, progress=False, run=folder / "run", **settings)
        if update:
            bnn.update(
                data,
                seed=4,
                progress=False,
                **{k: v for k, v in settings.items() if k in ("epochs", "batch_size")},
            )
        bnn.save(folder / "saved")
    except credo.CredoError as error:
        return {"refused": str(error)}
    x = data[0][:7]
    out = {"predict": bnn.predict(x, 5, seed=1).outputs}
    for key, value in bnn.posterior.state_dict().items():
        out[f"posterior/{key}"] = value
    for key, compute in {
        "functions": lambda: bnn.functions(x, 3, seed=2),
        "mean": lambda: bnn.predict(x, shortcut="mean").outputs,
        "moments": lambda: bnn.predict(x, shortcut="moments").outputs,
        "linear": lambda: bnn.predict(x, 5, shortcut="linear").outputs,
        "prior": lambda: bnn.predict(x, 3, source="prior").outputs,
        "objective": lambda: torch.tensor(
            [bnn.objective(data, 4)[k] for k in ("nll", "kl", "elbo")]
        ),
        "evaluate": lambda: torch.tensor(list(bnn.evaluate(data, 4).values())),
    }.items():
        try:
            out[key] = compute()
        except credo.CredoError as error:
            out[key] = str(error)
    rows = [
        {k: v for k, v in row.items() if k != "seconds" and isinstance(v, int | float)}
        for row in bnn.history
    ]
    out["history"] = torch.tensor([v for row in rows for v in row.values()], dtype=torch.float64)
    return {k: v if isinstance(v, str) else v.detach().numpy() for k, v in out.items()}


def same(a, b):
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str), 0.0
    if a.shape != b.shape or a.dtype != b.dtype:
        return False, float("inf")
    if np.array_equal(a, b, equal_nan=True):
        return True, 0.0
    scale = np.maximum(np.abs(a.astype(float)), 1e-12)
    return False, float(np.nanmax(np.abs(a.astype(float) - b) / scale))


def store(path, result):
    path.mkdir(parents=True, exist_ok=True)
    words = {k: v for k, v in result.items() if isinstance(v, str)}
    np.savez(path / "arrays.npz", **{k: v for k, v in result.items() if k not in words})
    (path / "words.json").write_text(json.dumps(words))


def stored(path):
    arrays = np.load(path / "arrays.npz")
    return {k: arrays[k] for k in arrays.files} | json.loads((path / "words.json").read_text())


def record(folder):
    listed = cases()
    folder.mkdir(parents=True)
    (folder / "cases.json").write_text(json.dumps(listed, indent=1))
    for case in listed:
        store(folder / case[0], run(*case, folder / case[0]))
    print(f"{len(listed)} cases stored in {folder}")


def compare(folder, only):
    listed, changed, words, loaded = json.loads((folder / "cases.json").read_text()), 0, 0, 0
    scratch = folder / ".now"
    for name, net, method, settings in listed:
        if only and not name.startswith(only):
            continue
        shutil.rmtree(scratch, ignore_errors=True)
        before, after = stored(folder / name), run(name, net, method, settings, scratch)
        for key in before | after:
            if key not in before or key not in after:
                print(
                    f"{name}: {key} only {'before' if key in before else 'after'}: "
                    f"{str((before | after)[key])[:200]}"
                )
                changed += 1
                continue
            equal, gap = same(before[key], after[key])
            if not equal:
                print(f"{name}: {key} differs by {gap:.2g} of its size")
                changed += 1
            elif isinstance(before[key], str) and before[key] != after[key]:
                words += 1
        for place in ("saved", "run"):
            if "refused" not in before and (place == "saved" or "__update__" not in settings):
                module, likelihood, data = networks()[net]()
                own = (
                    None
                    if isinstance(likelihood, str)
                    or likelihood.name in credo.likelihoods.likelihoods
                    else likelihood
                )
                again = (
                    credo.load(folder / name / place, module, likelihood=own)
                    .predict(data[0][:7], 5, seed=1)
                    .outputs
                )
                loaded += 1
                if not np.array_equal(again.detach().numpy(), before["predict"]):
                    print(f"{name}: loaded from {place}, the model before predicts otherwise")
                    changed += 1
    shutil.rmtree(scratch, ignore_errors=True)
    print(
        f"{len(listed)} cases: {changed} differences, {words} sentences worded anew, {loaded} "
        "stored models loaded"
    )
    return changed


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="cases whose name starts so")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    started = time.time()
    if given.verb == "record":
        record(given.folder)
    else:
        sys.exit(1 if compare(given.folder, given.only) else 0)
    print(f"{time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
