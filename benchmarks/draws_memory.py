"""Memory of many draws of a large network: ``python benchmarks/draws_memory.py [--draws 1000]
[--width 1000] [--out FILE]``.

Draws of a network with about a million parameters are taken by ``sgld``, kept in memory or on disk,
saved, loaded and predicted with, each in a process of its own whose peak resident memory is read at
the end. Draws alone take draws * parameters * 4 bytes; pages of a file that is mapped count as
resident while they are in use, although the system may drop them at any time, so the anonymous part
is given too.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import credo


def resident() -> tuple[float, float]:
    """Resident and anonymous memory now, in GB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(status[key].split()[0]) / 1e6 for key in ("VmRSS", "RssAnon"))  # type: ignore


def fit_job(kind: str, draws: int, width: int, folder: str) -> None:
    torch.set_num_threads(1)
    net = credo.nets.mlp(20, (width, width - 20), 1)
    numel = sum(p.numel() for p in net.parameters())
    x, y = torch.randn(64, 20), torch.randn(64, 1)
    started = time.perf_counter()
    run = Path(folder) / "run"
    if kind == "load":
        bnn = credo.load(run, net)
    else:
        bnn = credo.BNN(net, credo.likelihoods.Gaussian(std=1.0))
        more = {"run": run, "store": "disk"} if kind == "disk" else {}
        bnn.fit(
            (x, y),
            "sgld",
            num_chains=1,
            num_warmup=1,
            num_draws=draws,
            thin=1,
            lr=1e-4,
            progress=False,
            **more,
        )
    fitted, (_, anonymous) = time.perf_counter() - started, resident()
    p = bnn.predict(x, num_samples=draws)
    assert p.num_samples == draws
    seconds = time.perf_counter() - started - fitted
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"| {kind} | {draws} | {numel} | {peak:.2f} | {max(anonymous, resident()[1]):.2f} | "
        f"{fitted:.0f} | {seconds:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--job", default="")
    parser.add_argument("--folder", default="")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    if args.fit_job:
        fit_job(args.fit_job, args.draws, args.width, args.folder)
        return
    lines = [
        "| draws kept | draws | parameters | peak resident GB | anonymous GB | fit or load s | "
        "predict s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("memory", "disk", "load"):
            command = [
                sys.executable,
                __file__,
                "--job",
                kind,
                "--draws",
                str(args.draws),
                "--width",
                str(args.width),
                "--folder",
                folder,
            ]
            lines.append(
                subprocess.run(
                    command, check=True, capture_output=True, text=True, env=os.environ
                ).stdout.strip()
            )
    page = "\n".join(lines) + "\n"
    print(page)
    if args.out:
        Path(args.out).write_text(
            f"# Memory of draws\n\n`python benchmarks/draws_memory.py --draws {args.draws} "
            f"--width {args.width}`\n\n{page}"
        )


if __name__ == "__main__":
    main()
