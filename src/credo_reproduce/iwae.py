"""Importance-weighted autoencoders on binarised MNIST (Burda, Grosse and Salakhutdinov 2016, one
stochastic layer).

Encoder 784-200-200, decoder 200-200-784, tanh, 50 latent variables; a binary image is drawn from
the grey values at every step. Each model is trained with K draws of z on the ELBO (VAE) or on the
importance-weighted bound (IWAE); the test log-likelihood is estimated with 5,000 draws from the
encoder on binary test images drawn once. The source takes 3,280 epochs of batches of 20 with a
learning rate that falls in eight stages; here batches are larger, epochs fewer, and the learning
rate falls along a cosine. A latent variable is active where its posterior mean varies over the data
by more than 0.01.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.settings import setting
from credo.generative import VAE
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import coders, glorot, images

ACTIVE = (
    0.01  # variance over data of the posterior mean above which a latent variable counts as used
)
PAPER = {"vae": 86.76, "iwae50": 84.78}
AGAIN = {"vae": 87.78, "iwae50": 84.59}  # a published replication
LIMITS = {"vae": 87.8, "iwae50": 85.5}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "vae": ("VAE", {}),
    "iwae5": ("IWAE, K = 5", {"bound": "iwae", "draws": 5}),
    "iwae50": ("IWAE, K = 50", {"bound": "iwae", "draws": 50}),
    "doubly50": (
        "IWAE, K = 50, doubly reparameterised",
        {"bound": "iwae", "draws": 50, "gradient": "doubly"},
    ),
}


@experiments.register("iwae")
@dataclass(frozen=True)
class IWAE(Experiment):
    """Test log-likelihoods of one VAE and several IWAEs."""

    name: ClassVar[str] = "iwae"
    title: ClassVar[str] = "Importance-weighted autoencoders on binarised MNIST"
    reference: ClassVar[str] = (
        "Burda, Grosse and Salakhutdinov 2016, Importance weighted autoencoders, table 1."
    )
    cost: ClassVar[str] = "8 minutes a model on an H200 that others share"
    needs: ClassVar[tuple[str, ...]] = ("mnist",)
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "models": "vae,iwae5",
        "epochs": 2,
        "num_train": 200,
        "num_test": 50,
        "hidden": 20,
        "latent_dim": 5,
        "k": 20,
        "compile": False,
    }

    models: str = setting(
        "vae,iwae5,iwae50,doubly50", f"Which, separated by commas: {', '.join(KINDS)}."
    )
    epochs: int = setting(1100, "Passes over the training images.", ge=1)
    batch: int = setting(100, "Images in a step.", ge=1)
    lr: float = setting(1e-3, "Learning rate of Adam, falling along a cosine.", gt=0.0)
    hidden: int = setting(200, "Units of each hidden layer.", ge=1)
    latent_dim: int = setting(50, "Latent variables.", ge=1)
    k: int = setting(5000, "Draws for the test log-likelihood.", ge=1)
    num_train: int = setting(60_000, "Training images.", ge=1)
    num_test: int = setting(10_000, "Test images.", ge=1)
    compile: bool = setting(True, "Compile the step (one CUDA graph on a GPU).")

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Fit and measure each."""
        chosen = self.models.split(",")
        for name in chosen:
            if name not in KINDS:
                raise SettingError(
                    f"models={self.models!r}: {name!r} is none of {', '.join(KINDS)}."
                )
        (train, _), (test, _) = images("mnist", device)
        train, test = train[: self.num_train], test[: self.num_test]
        found = {}
        for name in chosen:
            found[name] = self._measure(name, train, test, device, seed)
            say(
                f"{KINDS[name][0]}: "
                f"{ ({k: round(v, 3) for k, v in found[name].items() if isinstance(v, float)}) }"
            )
        return self._outcome(found)

    def _measure(
        self, name: str, train: Tensor, test: Tensor, device: torch.device, seed: int
    ) -> dict[str, Any]:
        width = (self.hidden, self.hidden)
        pair = coders(
            seed, 2 * self.latent_dim, self.latent_dim, width, activation="tanh", start=glorot
        )  # as the source starts
        vae = VAE(*pair, self.latent_dim, "bernoulli", binarise=True)
        options: dict[str, Any] = {
            "epochs": self.epochs,
            "batch_size": self.batch,
            "lr": self.lr,
            "compile": self.compile,
        }
        vae.fit(train, seed=seed, device=device, progress=False, **options, **KINDS[name][1])
        mean = vae.encode(test).mean
        later = vae.history[1:] or vae.history  # the first epoch pays for compilation
        return {
            "nll": -float(vae.log_marginal(test, k=self.k, seed=seed).mean()),
            "train nll": -float(
                vae.log_marginal(train[: self.num_test], k=self.k, seed=seed).mean()
            ),
            "-ELBO": -float(vae.elbo(test, draws=10, seed=seed).double().mean()),
            "active": int((mean.var(0, correction=0) > ACTIVE).sum()),
            "seconds per epoch": sum(row["seconds"] for row in later) / len(later),
            "curve": [-row["bound"] for row in vae.history],
        }

    def _outcome(self, found: dict[str, dict[str, Any]]) -> Outcome:
        columns = ["nll", "-ELBO", "train nll", "active", "seconds per epoch"]
        rows = [
            Row(
                KINDS[name][0],
                {c: row[c] for c in columns},
                {"nll": PAPER[name]} if name in PAPER else {},
            )
            for name, row in found.items()
        ]
        again = ", ".join(f"{KINDS[name][0]} {value}" for name, value in AGAIN.items())
        note = f"Nats per image; nll with {self.k} draws. A published replication has {again}."
        lines = [
            line(KINDS[name][0], range(1, len(row["curve"]) + 1), row["curve"])
            for name, row in found.items()
        ]
        low = min(min(line["y"]) for line in lines)
        figure = curves(
            "Training bound",
            "epoch",
            "-bound (nats per image)",
            lines,
            log_x=True,
            y_range=[low - 1, low + 40],
            caption="The average over each epoch, of the bound that is climbed: more draws "
            "make it tighter.",
        )
        checks = [
            Check(
                f"{KINDS[name][0]}: test nll",
                f"{found[name]['nll']:.2f}",
                f"at most {limit}",
                found[name]["nll"] <= limit,
            )
            for name, limit in LIMITS.items()
            if name in found
        ]
        order = [found[name]["nll"] for name in ("vae", "iwae5", "iwae50") if name in found]
        if len(order) > 1:
            text = ", ".join(f"{value:.2f}" for value in order)
            checks.append(
                Check(
                    "More draws fit better", text, "falling", all(a > b for a, b in pairwise(order))
                )
            )
        return Outcome(
            [Table("Test log-likelihood", columns, rows, note, digits=4)], [figure], checks
        )
