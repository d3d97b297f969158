"""The training ELBO of a small VAE, epoch by epoch, beside a tutorial's log.

1,000 MNIST images (the first 100 of each class), 784-500-500-20 and back with ReLU, batches of 100,
Adam at 1e-3, one draw of z, grey pixels under a Bernoulli likelihood, weights started as the
tutorial's library starts them (Glorot, no biases). On grey pixels that likelihood is a
cross-entropy and no density; the continuous Bernoulli is the right one, and its course stands
beside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from credo.core.settings import setting
from credo.generative import VAE
from credo.likelihoods import Bernoulli, ContinuousBernoulli, Likelihood
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import coders, glorot, images

SOURCE = (-400.2, -218.9, -206.1, -202.2, -200.2, -197.6)
LIMIT = -198.0  # for the last epoch


@experiments.register("vae_tutorial")
@dataclass(frozen=True)
class VAETutorial(Experiment):
    """ELBO by epoch, several seeds."""

    name: ClassVar[str] = "vae_tutorial"
    title: ClassVar[str] = "The training ELBO of a VAE on 1,000 images"
    reference: ClassVar[str] = (
        "Tutorial on implementing VAE, MC dropout and concrete dropout: its training log."
    )
    cost: ClassVar[str] = "15 seconds on one CPU core"
    needs: ClassVar[tuple[str, ...]] = ("mnist",)
    quick_settings: ClassVar[dict[str, Any]] = {"per_class": 5, "seeds": 1, "hidden": 10}

    per_class: int = setting(100, "Images of each class.", ge=1)
    hidden: int = setting(500, "Units of each hidden layer.", ge=1)
    epochs: int = setting(6, "Passes over the images.", ge=1)
    seeds: int = setting(5, "Fits, each from its own initial weights.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Fit with both likelihoods."""
        (x, y), _ = images("mnist", device)
        x = x[torch.cat([(y == label).nonzero()[: self.per_class, 0] for label in range(10)])]
        likelihoods: dict[str, Likelihood] = {
            "Bernoulli": Bernoulli(grey=True),
            "continuous Bernoulli": ContinuousBernoulli(),
        }
        found: dict[str, list[list[float]]] = {name: [] for name in likelihoods}
        for name, likelihood in likelihoods.items():
            for place in range(seed, seed + self.seeds):
                vae = VAE(
                    *coders(place, 40, 20, (self.hidden, self.hidden), start=glorot), 20, likelihood
                )
                vae.fit(
                    x,
                    epochs=self.epochs,
                    batch_size=100,
                    lr=1e-3,
                    lr_schedule="constant",
                    seed=place,
                    device=device,
                    progress=False,
                )
                found[name].append([row["bound"] for row in vae.history])
                say(f"{name}, seed {place}: {[round(value, 1) for value in found[name][-1]]}")
        return self._outcome(found, seed)

    def _outcome(self, found: dict[str, list[list[float]]], seed: int) -> Outcome:
        columns = [f"epoch {epoch}" for epoch in range(1, self.epochs + 1)]
        source = dict(zip(columns, SOURCE, strict=False))
        rows = []
        for name, runs in found.items():
            means = torch.tensor(runs).mean(0).tolist()
            rows.append(
                Row(
                    name,
                    dict(zip(columns, means, strict=True)),
                    source if name == "Bernoulli" else {},
                )
            )
        last = [run[-1] for run in found["Bernoulli"]]
        mean = sum(last) / len(last)
        text = f"{mean:.1f} (from {min(last):.1f} to {max(last):.1f})"
        checks = [Check(f"ELBO of epoch {self.epochs}", text, f"at least {LIMIT:g}", mean >= LIMIT)]
        epochs = list(range(1, self.epochs + 1))
        lines = [
            line("the tutorial's log", epochs[: len(SOURCE)], SOURCE[: self.epochs], dash=True)
        ]
        lines += [
            line(f"seed {seed + place}", epochs, run, marks=True)
            for place, run in enumerate(found["Bernoulli"])
        ]
        figure = curves(
            "Training ELBO with the Bernoulli likelihood",
            "epoch",
            "ELBO (nats per image)",
            lines,
            caption="The average over the steps of each epoch.",
        )
        note = (
            f"Nats per image, average over each epoch, mean of {self.seeds} fits. The two "
            "likelihoods' values do not compare."
        )
        return Outcome([Table("Training ELBO", columns, rows, note, digits=4)], [figure], checks)
