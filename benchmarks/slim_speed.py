"""Speed of a slimmed LeNet-5 on one CPU thread: ``python benchmarks/slim_speed.py [--file
FILE.credo,...] [--units 5-10-160-16,...] [--out FILE]``.

The dense network, the slimmed one, the quickened one and both under onnxruntime take turns in one
process; a time is the best turn of all rounds. Each way of running is applied to the dense network
too, so that what slimming brings and what the way of running brings can be told apart. With units
in place of a file the weights are random and only units are pruned, which is what slimming looks
at.
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from typing import Any

import torch
from torch import nn

from credo import compress, nets
from credo.compress.cost import latency, repeated_batch
from credo.compress.onnx import session
from credo.core.errors import SettingError

BATCHES = (1, 64)


@torch.no_grad()
def pruned(units: str) -> nn.Sequential:
    """LeNet-5 with zeros for all but this many units: filters, filters, features read by the dense
    layer, dense units.
    """
    kept = [int(part) for part in units.split("-")]
    if len(kept) != 4 or any(
        not 1 <= k <= full for k, full in zip(kept, (20, 50, 16 * kept[1], 500), strict=False)
    ):
        raise SettingError(
            "--units takes four counts, at most 20-50-800-500 and 16 features a filter; got "
            f"{units}."
        )
    torch.manual_seed(0)
    net = nets.lenet5_caffe().eval()
    read = torch.zeros(800)
    read[torch.linspace(0, 16 * kept[1] - 1, kept[2]).round().long()] = 1.0
    fans = {0: 25, 2: 25 * kept[0], 5: kept[2], 7: kept[3]}
    for place, keep in zip(fans, (kept[0], kept[1], kept[3], 10), strict=True):
        layer: Any = net[place]
        layer.weight.normal_(
            std=fans[place] ** -0.5
        )  # outputs then move with the input as much as with the biases
        layer.weight[keep:] = 0.0
        layer.bias[keep:] = 0.0
    net[5].weight *= read  # type: ignore[operator]
    return net


def shape(net: nn.Module) -> str:
    """Units of each hidden layer."""
    layers = [m for m in net.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    sizes = [m.weight.shape[0] for m in layers[:2]] + [
        layers[2].weight.shape[1],
        layers[2].weight.shape[0],
    ]
    return "-".join(str(size) for size in sizes)


@torch.no_grad()
def table(net: nn.Sequential, rounds: int) -> str:
    torch.manual_seed(1)
    x = torch.randn(max(BATCHES), 1, 28, 28)
    small = compress.slim(net, x)
    quick = compress.quicken(small, x)
    ways = {
        "as it is": lambda m: m,
        "quickened": lambda m: compress.quicken(m, x),
        "onnxruntime": lambda m: session(m, x),
    }
    runs = {
        f"{name}, {way}": make(m)
        for name, m in (("dense", net), ("slimmed", small))
        for way, make in ways.items()
    }
    gap = max(
        float((quick(x[:n]) - net(x[:n])).abs().max() / net(x[:n]).std(0).max())
        for n in (2, max(BATCHES))
    )
    lines = [
        f"Slimmed to {shape(small)} units: {compress.count(net, x).macs:,} -> "
        f"{compress.count(small, x).macs:,} multiply-adds. "
        f"Quickened outputs differ by {gap:.0e} of how much they vary over inputs.\n",
        "| batch | network | microseconds | faster than dense as it is | faster than dense run "
        "the same way |",
        "|---:|---|---:|---:|---:|",
    ]
    for size in BATCHES:
        best = {
            name: float(times.min())
            for name, times in latency(runs, repeated_batch(x, size), rounds).items()
        }
        for name, seconds in best.items():
            same = best[name.replace("slimmed", "dense")]
            ratio = f"{same / seconds:.1f}x" if name.startswith("slimmed") else ""
            lines.append(
                f"| {size} | {name} | {seconds * 1e6:.0f} | "
                f"{best['dense, as it is'] / seconds:.1f}x | {ratio} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--file", default="", help="files of pruned lenet5_caffe networks, by commas"
    )
    parser.add_argument(
        "--units", default="", help="units to keep, of random weights; several, by commas"
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    given = [f"--file {path}" for path in args.file.split(",") if path]
    given += [
        f"--units {units}"
        for units in (args.units or ("" if given else "5-10-160-16")).split(",")
        if units
    ]
    parts = [
        f"# Speed of a slimmed LeNet-5 on one CPU thread\n\nPyTorch {torch.__version__}, "
        f"{processor()}.\n"
    ]
    for setting in given:
        kind, value = setting.split(" ", 1)
        net = compress.decode(value, nets.lenet5_caffe()) if kind == "--file" else pruned(value)
        rows = table(net, args.rounds)  # type: ignore[arg-type]
        parts.append(f"`python benchmarks/slim_speed.py {setting}`\n\n{rows}")
    page = "\n".join(parts)
    print(page)
    if args.out:
        Path(args.out).write_text(page)


def processor() -> str:
    """What the system says the processor is."""
    info = Path("/proc/cpuinfo")
    names = (
        [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
