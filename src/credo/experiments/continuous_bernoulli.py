"""Continuous against plain Bernoulli likelihoods on grey images (Loaiza-Ganem and Cunningham 2019).

A Bernoulli likelihood on grey pixels is a cross-entropy, not a density: it leaves out the normaliser C(l), which is largest where pixels
are sure. Two VAEs of equal sizes are fitted to the same images, one with each likelihood. Both decoders are then judged as densities of
grey pixels: the plain one's outputs read as parameters of continuous Bernoullis, and, in its favour, turned into those with the same
mean. The encoders are judged by the labels of nearest neighbours of the latent means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.experiments.base import Experiment, Say, experiments
from credo.experiments.outcome import Check, Outcome, Row, Table
from credo.experiments.probes import images
from credo.generative import VAE
from credo.generative.marginal import importance
from credo.generative.network import LatentNet
from credo.likelihoods import Bernoulli, ContinuousBernoulli, Likelihood
from credo.nets import mlp_decoder, mlp_encoder

NEIGHBOURS = 15
SETS = ("mnist", "fashion_mnist")
Pair = tuple[Tensor, Tensor]


class SameMean(nn.Module):
    """Logits f of Bernoullis as the natural parameters of continuous Bernoullis of mean sigmoid(f), by a table of the inverse."""

    means: Tensor
    parameters_: Tensor

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder
        grid = torch.linspace(-400.0, 400.0, 80_001, dtype=torch.float64)
        self.register_buffer("means", ContinuousBernoulli().marginals(grid).mean)
        self.register_buffer("parameters_", grid)

    def forward(self, z: Tensor) -> Tensor:
        """Interpolated between the entries of the table."""
        mean = self.decoder(z).double().sigmoid()
        place = torch.searchsorted(self.means, mean.contiguous()).clamp(1, len(self.means) - 1)
        low, high = self.means[place - 1], self.means[place]
        share = ((mean - low) / (high - low)).clamp(0.0, 1.0)
        return torch.lerp(self.parameters_[place - 1], self.parameters_[place], share).float()


@experiments.register("continuous_bernoulli")
@dataclass(frozen=True)
class ContinuousAgainstPlain(Experiment):
    """Densities, reconstructions, samples and codes of both."""

    name: ClassVar[str] = "continuous_bernoulli"
    title: ClassVar[str] = "Continuous against plain Bernoulli on grey images"
    reference: ClassVar[str] = "Loaiza-Ganem and Cunningham 2019, The continuous Bernoulli."
    cost: ClassVar[str] = "2 minutes on a GPU"
    needs: ClassVar[tuple[str, ...]] = SETS
    threads: ClassVar[int | None] = None
    small: ClassVar[dict[str, Any]] = {"epochs": 1, "num_train": 200, "num_test": 20, "hidden": 10, "k": 5, "compile": False}

    epochs: int = setting(100, "Passes over the training images.", ge=1)
    hidden: int = setting(500, "Units of each hidden layer.", ge=1)
    latent_dim: int = setting(20, "Latent variables.", ge=1)
    k: int = setting(500, "Draws for log p(x).", ge=1)
    num_train: int = setting(60_000, "Training images.", ge=20)
    num_test: int = setting(10_000, "Test images.", ge=1)
    compile: bool = setting(True, "Compile the step (one CUDA graph on a GPU).")

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Both data sets, both likelihoods."""
        tables, checks = [], []
        for name in SETS:
            train, test = images(name, device)
            train = train[0][: self.num_train], train[1][: self.num_train]
            test = test[0][: self.num_test], test[1][: self.num_test]
            rows = self._measure(train, test, seed, device)
            columns = ["log p(x)", "squared error", "sample mean", "accuracy"]
            for row in rows:
                say(f"{name}: {row.label}: {dict(row.measured)}")
            note = (
                "log p(x) of test images as grey densities, nats per image; squared error of reconstructions per pixel; mean grey value of "
                f"samples (data: {float(test[0].mean()):.3f}); % accuracy of {NEIGHBOURS} nearest neighbours in the latent space."
            )
            tables.append(Table(name, columns, rows, note, digits=4))
            right, *wrong = [float(row.measured["log p(x)"] or 0.0) for row in rows]
            text = f"{right:.0f} against {max(wrong):.0f}"
            checks.append(Check(f"{name}: a better density", text, "continuous above plain, read either way", right > max(wrong)))
        return Outcome(tables, [], checks)

    def _measure(self, train: Pair, test: Pair, seed: int, device: torch.device) -> list[Row]:
        right = self._fit(ContinuousBernoulli(), train[0], seed, device)
        plain = self._fit(Bernoulli(grey=True), train[0], seed, device)
        encoder, decoder = plain.networks()
        shared = self._shared(plain, train, test)
        rows = [
            Row(
                "continuous Bernoulli",
                {"log p(x)": float(right.log_marginal(test[0], k=self.k).mean())} | self._shared(right, train, test),
            )
        ]
        for label, read in (("read as it is", decoder), ("read by its mean", SameMean(decoder).to(device))):
            net = LatentNet(encoder, read, plain.code, plain.prior, ContinuousBernoulli(), plain.shape).eval().to(device)
            with torch.no_grad(), isolated(mix(seed, label), device):
                value = torch.cat([importance(net, rows_, self.k) for rows_ in test[0].split(100)]).mean()
            rows.append(
                Row(f"plain Bernoulli, {label}", {"log p(x)": float(value)} | (shared if label == "read by its mean" else {}))
            )
        return rows

    def _fit(self, likelihood: Likelihood, x: Tensor, seed: int, device: torch.device) -> VAE:
        hidden = (self.hidden, self.hidden)
        with isolated(mix(seed, "coders")):
            coders = mlp_encoder((784,), 2 * self.latent_dim, hidden), mlp_decoder(self.latent_dim, 784, hidden)
        vae = VAE(*coders, self.latent_dim, likelihood)
        return vae.fit(x, epochs=self.epochs, batch_size=100, seed=seed, device=device, compile=self.compile, progress=False)

    def _shared(self, vae: VAE, train: Pair, test: Pair) -> dict[str, float]:
        codes, known = vae.encode(test[0]).mean, vae.encode(train[0]).mean
        near = torch.cat([torch.cdist(part, known).topk(NEIGHBOURS, largest=False).indices for part in codes.split(500)])
        votes = torch.nn.functional.one_hot(train[1][near], 10).sum(1).argmax(-1)
        return {
            "squared error": float((vae.reconstruct(test[0]) - test[0]).square().mean()),
            "sample mean": float(vae.sample(1000).mean()),
            "accuracy": 100.0 * float((votes == test[1]).double().mean()),
        }
