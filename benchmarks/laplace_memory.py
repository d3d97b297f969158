"""Memory of Laplace's approximation where it is large: ``python benchmarks/laplace_memory.py
[--images 60000] [--out FILE]``.

Full covariance of the last layer of a residual network with 100 classes, and Kronecker factors of
all of LeNet-5 with every MNIST-sized image, each fitted to synthetic images and predicted with in a
process of its own whose peak resident memory is read at the end.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import torch

import credo


def fit_job(kind: str, images: int) -> None:
    """One row."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if kind == "resnet":
        images = min(images, 2000)
        net, shape, classes = credo.nets.resnet(100), (3, 32, 32), 100
        settings = {"subset": "last", "structure": "full"}
    else:
        net, shape, classes = credo.nets.lenet5_caffe(), (1, 28, 28), 10
        settings = {"structure": "kfac"}
    x, y = torch.rand(images, *shape), torch.arange(images) % classes
    started = time.perf_counter()
    bnn = credo.BNN(net.eval()).fit((x, y), "laplace", train=False, progress=False, **settings)
    fitted = time.perf_counter() - started
    p = bnn.predict(x[:500], shortcut="probit")
    assert p.mean.shape == (500, classes)
    seconds = time.perf_counter() - started - fitted
    numel = sum(site.numel for site in bnn.model.random.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    label = (
        "full, last layer of ResNet-20, 100 classes" if kind == "resnet" else "KFAC, all of LeNet-5"
    )
    print(f"| {label} | {images} | {numel} | {peak:.2f} | {fitted:.0f} | {seconds:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--job", default="")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    if args.fit_job:
        fit_job(args.fit_job, args.images)
        return
    lines = [
        "| what | images | parameters | peak resident GB | fit, prior width tuned, s | probit "
        "predictions of 500 images s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind in ("resnet", "lenet"):
        command = [sys.executable, __file__, "--job", kind, "--images", str(args.images)]
        lines.append(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        )
    text = "\n".join(lines)
    print(text)
    if args.out:
        with open(args.out, "w") as file:
            file.write(
                "# Memory of Laplace's approximation\n\n`python benchmarks/laplace_memory.py "
                f"--images {args.images}`\n\n{text}\n"
            )


if __name__ == "__main__":
    main()
