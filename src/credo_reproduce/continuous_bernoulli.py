"""Continuous against plain Bernoulli likelihoods on grey images (Loaiza-Ganem and Cunningham 2019).

A Bernoulli likelihood on grey pixels is a cross-entropy, not a density: it leaves out the
normaliser C(l), which is largest where pixels are sure. VAEs of equal sizes are fitted to the same
images, one with each likelihood. The decoders are then judged by the probability they give the 256
grey levels: the plain one's outputs read as parameters of continuous Bernoullis, and, in its
favour, turned into those with the same mean. The encoders are judged by the labels of nearest
neighbours of the latent means. Pixels that are exactly black draw an unbounded density, so a third
VAE has bounded parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.generative import VAE
from credo.generative.marginal import importance
from credo.generative.network import LatentNet
from credo.likelihoods import Bernoulli, ContinuousBernoulli, Likelihood
from credo.likelihoods.continuous_bernoulli import log_sinhc
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.probes import coders, images

NEIGHBOURS, LEVELS = 15, 256
LIMIT = 16.0  # of the parameter, in the bounded variant
SETS = ("mnist", "fashion_mnist")
Pair = tuple[Tensor, Tensor]


@final
class Binned(ContinuousBernoulli):
    """Probabilities of grey levels l = 0..255 under continuous Bernoullis: the mass of the bin from
    l / 256 to (l + 1) / 256.

    A density of pixels that are exactly black has no upper limit, and says how far a model went,
    not how well it fits; a probability has one.
    """

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """sum_d f (m - 1/2) - log w(f) with m the middle of the bin, all in a form that neither
        overflows nor cancels, ``(..., N)``.
        """
        middle = ((y * (LEVELS - 1)).round() + 0.5) / LEVELS
        mass = (
            outputs * (middle - 0.5)
            + log_sinhc(outputs / (2 * LEVELS))
            - log_sinhc(outputs / 2)
            - math.log(LEVELS)
        )
        return mass.sum(-1)


@final
class Bounded(nn.Module):
    """f -> limit tanh(f / limit), what a bounded likelihood does to its parameters."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, f: Tensor) -> Tensor:
        """Softly bounded."""
        return self.limit * torch.tanh(f / self.limit)


@final
class SameMean(nn.Module):
    """Logits f of Bernoullis as the natural parameters of continuous Bernoullis of mean sigmoid(f).

    By a table of the inverse; beyond it, where the law is exponential, the parameter is one over
    the mean's distance from the end.
    """

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
        logits = self.decoder(z).double()
        mean = logits.sigmoid()
        place = torch.searchsorted(self.means, mean.contiguous()).clamp(1, len(self.means) - 1)
        low, high = self.means[place - 1], self.means[place]
        share = ((mean - low) / (high - low)).clamp(0.0, 1.0)
        inner = torch.lerp(self.parameters_[place - 1], self.parameters_[place], share)
        outer = logits.sign() / torch.sigmoid(-logits.abs()).clamp_min(1e-30)
        return torch.where(outer.abs() < self.parameters_[-1], inner, outer).float()


@experiments.register("continuous_bernoulli")
@dataclass(frozen=True)
class ContinuousAgainstPlain(Experiment):
    """Densities, reconstructions, samples and codes of both."""

    name: ClassVar[str] = "continuous_bernoulli"
    title: ClassVar[str] = "Continuous against plain Bernoulli on grey images"
    reference: ClassVar[str] = "Loaiza-Ganem and Cunningham 2019, The continuous Bernoulli."
    cost: ClassVar[str] = "5 minutes on a GPU; with 15 epochs half an hour on two CPU cores"
    needs: ClassVar[tuple[str, ...]] = SETS
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "epochs": 1,
        "num_train": 200,
        "num_test": 20,
        "hidden": 10,
        "k": 5,
        "compile": False,
    }

    epochs: int = setting(50, "Passes over the training images.", ge=1)
    hidden: int = setting(500, "Units of each hidden layer.", ge=1)
    latent_dim: int = setting(20, "Latent variables.", ge=1)
    k: int = setting(200, "Draws for log P.", ge=1)
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
            columns = ["log P", "squared error", "sample mean", "accuracy"]
            for row in rows:
                say(f"{name}: {row.label}: {dict(row.measured)}")
            note = (
                "log P of test images' grey levels, nats per image; squared error of "
                "reconstructions per pixel; mean grey value of "
                f"samples (data: {float(test[0].mean()):.3f}); % accuracy of {NEIGHBOURS} nearest "
                "neighbours in the latent space."
            )
            tables.append(Table(name, columns, rows, note, digits=4))
            found = [float(row.measured["log P"] or 0.0) for row in rows]
            right, wrong = max(found[:2]), max(found[2:])
            text = f"{right:.0f} against {wrong:.0f}"
            checks.append(
                Check(
                    f"{name}: a better fit of grey levels",
                    text,
                    "continuous above plain, read either way",
                    right > wrong,
                )
            )
        return Outcome(tables, [], checks)

    def _measure(self, train: Pair, test: Pair, seed: int, device: torch.device) -> list[Row]:
        models = {
            "continuous Bernoulli": self._fit(ContinuousBernoulli(), train[0], seed, device),
            f"continuous Bernoulli, |logits| below {LIMIT:g}": self._fit(
                ContinuousBernoulli(LIMIT), train[0], seed, device
            ),
            "plain Bernoulli, read as it is": self._fit(
                Bernoulli(grey=True), train[0], seed, device
            ),
        }
        rows = []
        for label, vae in models.items():
            limit = getattr(vae.likelihood, "limit", None)
            value = self._mass(vae, vae.networks()[1], limit, test[0], seed, device)
            rows.append(Row(label, {"log P": value} | self._shared(vae, train, test, seed)))
        value = self._mass(vae, SameMean(vae.networks()[1]).to(device), None, test[0], seed, device)
        return [*rows, Row("plain Bernoulli, read by its mean", {"log P": value})]

    def _mass(
        self,
        vae: VAE,
        decoder: nn.Module,
        limit: float | None,
        x: Tensor,
        seed: int,
        device: torch.device,
    ) -> float:
        """log P of the grey levels, by importance sampling from the model's own encoder."""
        net = (
            LatentNet(vae.networks()[0], decoder, vae.code, vae.prior, Binned(), vae.shape)
            .eval()
            .to(device)
        )
        if limit is not None:
            net.decoder = nn.Sequential(net.decoder, Bounded(limit))
        with torch.no_grad(), isolated(mix(seed, "mass"), device):
            return float(torch.cat([importance(net, part, self.k) for part in x.split(100)]).mean())

    def _fit(self, likelihood: Likelihood, x: Tensor, seed: int, device: torch.device) -> VAE:
        hidden = (self.hidden, self.hidden)
        vae = VAE(
            *coders(seed, 2 * self.latent_dim, self.latent_dim, hidden), self.latent_dim, likelihood
        )
        return vae.fit(
            x,
            epochs=self.epochs,
            batch_size=100,
            seed=seed,
            device=device,
            compile=self.compile,
            progress=False,
        )

    def _shared(self, vae: VAE, train: Pair, test: Pair, seed: int) -> dict[str, float]:
        codes, known = vae.encode(test[0]).mean, vae.encode(train[0]).mean
        near = torch.cat(
            [
                torch.cdist(part, known).topk(NEIGHBOURS, largest=False).indices
                for part in codes.split(500)
            ]
        )
        votes = torch.nn.functional.one_hot(train[1][near], 10).sum(1).argmax(-1)
        return {
            "squared error": float((vae.reconstruct(test[0]) - test[0]).square().mean()),
            "sample mean": float(vae.sample(1000, seed=seed).mean()),
            "accuracy": 100.0 * float((votes == test[1]).double().mean()),
        }
