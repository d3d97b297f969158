"""Speed and memory next to the plain network, in one run: ``make bench``.

Rounds are interleaved: right before every measurement the plain network is timed again, and the
ratio is taken between these two neighbours, because a shared machine drifts. Reported: median time,
median ratio, and the middle half of the ratios.

Train step: the plain network with torch's default Adam is 1; a second row gives the plain network
with the fused Adam that credo uses. Prediction: S = 100 draws on 1,000 inputs; S plain forwards are
1. Peak memory: of a process that does only this, above one that has imported everything and built
the network.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from workloads import (
    ESTIMATORS,
    STUDIED,
    dropout_batch,
    dropout_loop,
    dropout_predictor,
    dropout_step,
    ivon_step,
    plain_graph,
    plain_step,
    predictor,
    vi_step,
)

from credo import nets
from credo.core.seeds import isolated

SAMPLES, INPUTS = 100, 1000
TRAIN = {"mlp400": 128, "mlp1200": 512, "lenet5": 256}
JOBS = ("train", "study", "predict", "dropout", "dropout-train")
PREDICT = {
    "mlp400": 25,
    "lenet5": 5,
}  # draws timed on a CPU, then scaled: the passes of a loop are independent


def make_net(name: str) -> nn.Module:
    width = int(name.removeprefix("mlp")) if name.startswith("mlp") else 0
    with isolated(0):
        return nets.mlp(784, (width, width), 10) if width else nets.lenet5_caffe()


def batch(name: str, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (784,) if name.startswith("mlp") else (1, 28, 28)
    x = torch.randn(size, *shape, generator=generator)
    return x.to(device), torch.randint(0, 10, (size,), generator=generator).to(device)


def training(name: str, device: torch.device, compile: bool) -> dict[str, Callable[[], Any]]:
    """Contestants of a training step; the first is the baseline."""
    x, y = batch(name, TRAIN[name], device)
    build = lambda: make_net(name).to(device)  # noqa: E731
    out = {
        "plain, default Adam": plain_step(build(), x, y),
        "plain, fused Adam": plain_step(build(), x, y, fused=True),
    }
    out |= {f"vi {e}": vi_step(build(), x, y, e) for e in ESTIMATORS}
    out["ivon"] = ivon_step(build(), x, y)
    if device.type == "cuda":
        out = {
            "plain, CUDA graph": plain_graph(build(), x, y),
            "plain, compiled CUDA graph": plain_graph(build(), x, y, compile=True),
        } | out
    if compile:
        out |= {
            f"vi {e}, compile=True": vi_step(build(), x, y, e, compile=True) for e in ESTIMATORS
        }
        out["ivon, compile=True"] = ivon_step(build(), x, y, compile=True)
    return out


def studying(device: torch.device) -> dict[str, Callable[[], Any]]:
    """The estimators for study and for discrete weights, on a small network and batch: some hold a
    weight per example.
    """
    generator = torch.Generator().manual_seed(0)
    x, y = (
        t.to(device)
        for t in (
            torch.randn(64, 64, generator=generator),
            torch.randint(0, 10, (64,), generator=generator),
        )
    )

    def build() -> nn.Module:
        with isolated(0):
            return nets.mlp(64, (100, 100), 10).to(device)

    out = {"plain, default Adam": plain_step(build(), x, y)}
    return (
        out
        | {f"vi {e}": vi_step(build(), x, y, e) for e in (*ESTIMATORS, *STUDIED)}
        | {"ivon": ivon_step(build(), x, y)}
    )


def predicting(name: str, device: torch.device) -> dict[str, Callable[[], Any]]:
    """Contestants of a prediction; the first is as many plain forwards."""
    x, _ = batch(name, INPUTS, device)
    draws = PREDICT[name] if device.type == "cpu" else SAMPLES
    net = make_net(name).to(device).eval()

    @torch.no_grad()
    def forwards() -> torch.Tensor:
        return torch.stack([net(x).softmax(-1) for _ in range(draws)]).mean(0)

    loop, vmap = predictor(net, x, False), predictor(net, x, True)
    return {
        f"{draws} plain forwards": forwards,
        "credo, loop": lambda: loop(draws),
        "credo, vmap": lambda: vmap(draws),
    }


def with_dropout(net: nn.Module) -> nn.Module:
    """The network with dropout after every ReLU, at the rate 0.1."""
    layers = []
    for layer in net.children():
        layers += [layer, nn.Dropout(0.1)] if isinstance(layer, nn.ReLU) else [layer]
    return nn.Sequential(*layers)


def dropping(name: str, device: torch.device) -> dict[str, Callable[[], Any]]:
    """Contestants of a prediction by MC dropout; the first is as many forwards without dropout."""
    x, _ = batch(name, INPUTS, device)
    net = with_dropout(make_net(name).to(device))
    plain = make_net(name).to(device).eval()

    @torch.no_grad()
    def forwards() -> torch.Tensor:
        return torch.stack([plain(x).softmax(-1) for _ in range(SAMPLES)]).mean(0)

    ours = dropout_predictor(net, x)
    columns, loop = dropout_predictor(make_net(name).to(device), x), dropout_loop(net, x)
    out = {
        f"{SAMPLES} plain forwards": forwards,
        "by hand, pass by pass": lambda: loop(SAMPLES),
        "credo mc_dropout, the network's own modules": lambda: ours(SAMPLES),
        "credo mc_dropout, masks on weights": lambda: columns(SAMPLES),
    }
    whole = dropout_batch(net, x)
    return out | {"by hand, one batch": lambda: whole(SAMPLES)}


def stepping(name: str, device: torch.device, compile: bool) -> dict[str, Callable[[], Any]]:
    """Contestants of a training step with dropout; the first is the plain network with its dropout
    modules.
    """
    x, y = batch(name, TRAIN[name], device)
    build = lambda: with_dropout(make_net(name)).to(device)  # noqa: E731
    out = {
        "plain with dropout, default Adam": plain_step(build(), x, y),
        "plain with dropout, fused Adam": plain_step(build(), x, y, True),
    }
    names = ("mc_dropout", "concrete_dropout", "gaussian_dropout", "variational_dropout")
    out |= {method: dropout_step(build(), x, y, method) for method in names}
    if device.type == "cuda":
        out = {"plain with dropout, CUDA graph": plain_graph(build(), x, y)} | out
    if compile:
        out |= {
            f"{method}, compile=True": dropout_step(build(), x, y, method, compile=True)
            for method in names
        }
    return out


def contest(
    job: str, name: str, device: torch.device, compile: bool
) -> dict[str, Callable[[], Any]]:
    """The contestants of one job; the first is the baseline."""
    if job == "study":
        return studying(device)
    if job == "dropout":
        return dropping(name, device)
    if job == "dropout-train":
        return stepping(name, device, compile)
    return training(name, device, compile) if job == "train" else predicting(name, device)


def measure(
    contestants: dict[str, Callable[[], Any]], rounds: int, device: torch.device
) -> list[list[str]]:
    names = list(contestants)
    sync = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)

    def block(name: str) -> float:
        run = contestants[name]
        sync()
        start = time.perf_counter()
        for _ in range(repeat[name]):
            run()
        sync()
        return (time.perf_counter() - start) / repeat[name]

    repeat = dict.fromkeys(names, 1)
    for name in names:
        block(name)
        repeat[name] = max(1, min(200, int(0.05 / block(name))))
    times: dict[str, list[float]] = {name: [] for name in names}
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for r in range(rounds):
        turn = names[1:]
        for name in turn[r % len(turn) :] + turn[: r % len(turn)]:
            base = block(names[0])
            own = block(name)
            times[names[0]].append(base)
            times[name].append(own)
            ratios[name].append(own / base)
    ratios[names[0]] = [1.0]
    rows = []
    for name in names:
        spread = sorted(ratios[name])
        low, high = spread[len(spread) // 4], spread[3 * len(spread) // 4]
        rows.append(
            [
                name,
                f"{1e3 * statistics.median(times[name]):.3g}",
                f"{statistics.median(spread):.2f}",
                f"{low:.2f} - {high:.2f}",
            ]
        )
    return rows


def peak_memory(job: str, case: str, name: str) -> int:
    """Peak resident bytes of a fresh process that runs one contestant three times."""
    command = [sys.executable, __file__, "--only-memory", job, case, name]
    return int(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    )


def only_memory(job: str, case: str, name: str) -> None:
    device = torch.device("cpu")
    if name == "nothing":
        make_net(case)
    else:
        contestants = contest(job, case, device, False)
        for _ in range(3):
            contestants[name]()
    status = Path(
        "/proc/self/status"
    ).read_text()  # not getrusage, whose peak survives exec and so shows the parent's
    print(
        next(
            int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--compile", action="store_true", help="also the compiled steps (always on a GPU)"
    )
    parser.add_argument(
        "--tf32", action="store_true", help="allow TF32 matrix products, for the plain network too"
    )
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--only", choices=JOBS, help="one of the jobs")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    parser.add_argument("--only-memory", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only_memory:
        return only_memory(*args.only_memory)
    device = torch.device(args.device)
    if args.tf32:
        torch.set_float32_matmul_precision("high")
    where = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{platform.machine()} CPU, {os.cpu_count()} cores"
    )
    threads, tf32 = torch.get_num_threads(), "on" if args.tf32 else "off"
    lines = [
        f"# credo bench\n\n{where}; torch {torch.__version__}, {threads} threads, {args.rounds} "
        f"rounds, TF32 {tf32}.\n"
    ]
    print(lines[0])
    cases = {
        "train": TRAIN,
        "study": ["mlp100"],
        "predict": PREDICT,
        "dropout": PREDICT,
        "dropout-train": ["mlp400", "lenet5"],
    }
    jobs = [(job, name) for job in JOBS for name in cases[job]]
    for job, name in jobs:
        if args.only not in (None, job):
            continue
        compile = args.compile or device.type == "cuda"
        contestants = contest(job, name, device, compile)
        step, whole = f"batch {TRAIN.get(name)}", f"{INPUTS} inputs"
        size = {
            "train": step,
            "study": "64 inputs, batch 64",
            "predict": whole,
            "dropout": whole,
            "dropout-train": step,
        }[job]
        rows = measure(contestants, args.rounds, device)
        head = ["", "median ms", "ratio", "middle half"]
        if device.type == "cpu" and not args.no_memory and job != "study":
            empty = peak_memory(job, name, "nothing")
            head.append("peak MiB")
            for row in rows:
                row.append(
                    ""
                    if "compile" in row[0]
                    else f"{(peak_memory(job, name, row[0]) - empty) / 2**20:.0f}"
                )
        table = [
            f"## {job} {name}, {size}\n",
            "| " + " | ".join(head) + " |",
            "|---|" + "---:|" * (len(head) - 1),
        ]
        table += ["| " + " | ".join(row) + " |" for row in rows]
        lines.append("\n".join(table) + "\n")
        print(lines[-1], flush=True)
    if args.out:
        args.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
