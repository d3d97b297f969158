"""An epoch of MNIST with a VAE next to a plain autoencoder of the same sizes, in one run.

784-500-500-20 and back, batches of 100, cross-entropy of grey pixels. Plain: a loop in torch, with
its default Adam and with the fused one. credo: the last of a few epochs of ``fit``, with all that
an epoch costs. Rounds are interleaved; the ratio is to the plain epoch timed just before.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credo.core.seeds import isolated
from credo.generative import VAE, Autoencoder
from credo.likelihoods import Bernoulli
from credo.nets import mlp_decoder, mlp_encoder
from credo_reproduce.probes import images

LATENT, BATCH = 20, 100
Epoch = Callable[[], float]


def coders(width: int, device: torch.device) -> tuple[nn.Module, nn.Module]:
    with isolated(0):
        return mlp_encoder((784,), width).to(device), mlp_decoder(LATENT, 784).to(device)


def plain(x: Tensor, fused: bool | None = None) -> Epoch:
    encoder, decoder = coders(LATENT, x.device)
    optimizer = torch.optim.Adam(
        [*encoder.parameters(), *decoder.parameters()], lr=1e-3, fused=fused
    )

    def epoch() -> float:
        sync(x.device)
        start = time.perf_counter()
        for rows in torch.randperm(len(x), device=x.device).split(BATCH):
            batch = x[rows]
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(
                decoder(encoder(batch)), batch, reduction="sum"
            ) / len(batch)
            loss.backward()
            optimizer.step()
        sync(x.device)
        return time.perf_counter() - start

    return epoch


def ours(x: Tensor, kind: type[VAE] | type[Autoencoder], **settings: object) -> Epoch:
    def epoch() -> float:
        networks = coders(2 * LATENT if kind is VAE else LATENT, x.device)
        model = kind(*networks, LATENT, Bernoulli(grey=True))
        model.fit(
            x,
            epochs=3 if settings.get("compile") else 2,
            batch_size=BATCH,
            device=x.device,
            progress=False,
            **settings,
        )
        return model.history[-1]["seconds"]

    return epoch


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    args = parser.parse_args()
    device = torch.device(args.device)
    x = images("mnist", device)[0][0][: args.images]
    contestants: dict[str, Epoch] = {
        "plain autoencoder, default Adam": plain(x),
        "plain autoencoder, fused Adam": plain(x, True),
        "credo Autoencoder": ours(x, Autoencoder),
        "credo VAE": ours(x, VAE),
        "credo VAE, IWAE with 5 draws": ours(x, VAE, bound="iwae", draws=5),
    }
    if device.type == "cuda":
        contestants["credo VAE, compile=True"] = ours(x, VAE, compile=True)
    base, *others = contestants
    contestants[base]()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(args.rounds):
        for name in others:
            times[base].append(contestants[base]())
            times[name].append(contestants[name]())
            ratios[name].append(times[name][-1] / times[base][-1])
    where = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{platform.machine()} CPU, {os.cpu_count()} cores"
    )
    lines = [
        f"# An epoch of {len(x):,} MNIST images\n",
        f"{where}; torch {torch.__version__}, {torch.get_num_threads()} threads, {args.rounds} "
        "rounds.\n",
        "| | median s | ratio | range of the ratio |\n|---|---:|---:|---:|",
        f"| {base} | {statistics.median(times[base]):.3g} | 1.00 | |",
    ]
    for name in others:
        low, high = min(ratios[name]), max(ratios[name])
        lines.append(
            f"| {name} | {statistics.median(times[name]):.3g} | "
            f"{statistics.median(ratios[name]):.2f} | {low:.2f} - {high:.2f} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
