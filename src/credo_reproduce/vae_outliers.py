"""Telling digits from clothes by a model of clothes: log p(x) fails, the right likelihood ratio
does not.

A VAE is fitted to Fashion-MNIST and asked which of Fashion-MNIST's and MNIST's test images are
strange. Digits are mostly empty, and their log p(x) is as high as that of clothes or higher
(Nalisnick et al. 2019), so that a low log p(x) points nowhere or the wrong way. Two ratios are
tried: to a second VAE, fitted to images with some pixels replaced at random (Ren et al. 2019, there
with autoregressive models), and to the code length of a general-purpose compressor (Serra et al.
2020). Scores are judged by AUROC, 0.5 being chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.settings import setting
from credo.generative import VAE, Compressor, LikelihoodRatio, perturb
from credo.likelihoods import Bernoulli, ContinuousBernoulli, Likelihood, Pixels
from credo.metrics import auroc
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import coders, images

LIKELIHOODS: dict[str, Callable[[int], Likelihood]] = {
    "pixels": Pixels,
    "continuous_bernoulli": lambda _: ContinuousBernoulli(),
    "bernoulli": lambda _: Bernoulli(grey=True),
}
BLIND = 0.6  # AUROC up to which a score counts as blind; chance is 0.5
PERTURBED, COMPRESSED = "ratio to perturbed data", "ratio to a compressor"
NAMES = {"fashion_mnist": "Fashion-MNIST", "mnist": "MNIST"}


@experiments.register("vae_outliers")
@dataclass(frozen=True)
class VAEOutliers(Experiment):
    """AUROC of three scores, both ways round."""

    name: ClassVar[str] = "vae_outliers"
    title: ClassVar[str] = (
        "Out-of-distribution images by the ELBO, by log p(x), and by a likelihood ratio"
    )
    reference: ClassVar[str] = (
        "Nalisnick et al. 2019, Do deep generative models know what they don't know?; Ren et al. "
        "2019, Likelihood ratios."
    )
    cost: ClassVar[str] = "2 minutes on a GPU"
    needs: ClassVar[tuple[str, ...]] = tuple(NAMES)
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "epochs": 1,
        "num_train": 200,
        "num_test": 30,
        "hidden": 10,
        "k": 5,
        "compile": False,
    }

    likelihood: str = setting("pixels", "Of grey pixels.", choices=tuple(LIKELIHOODS))
    levels: int = setting(32, "Grey levels of the 'pixels' likelihood.", ge=2, le=256)
    rate: float = setting(
        0.2, "Share of pixels that the background model sees replaced.", gt=0.0, le=0.9
    )
    epochs: int = setting(50, "Passes over the training images.", ge=1)
    hidden: int = setting(500, "Units of each hidden layer.", ge=1)
    latent_dim: int = setting(20, "Latent variables.", ge=1)
    k: int = setting(200, "Draws for log p(x).", ge=1)
    num_train: int = setting(60_000, "Training images.", ge=1)
    num_test: int = setting(10_000, "Test images of each set.", ge=1)
    compile: bool = setting(True, "Compile the step (one CUDA graph on a GPU).")

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Train on each set in turn."""
        sets = {name: images(name, device) for name in NAMES}
        rows, figures, checks = [], [], []
        for inside, outside in (("fashion_mnist", "mnist"), ("mnist", "fashion_mnist")):
            train = sets[inside][0][0][: self.num_train]
            pair = [sets[name][1][0][: self.num_test] for name in (inside, outside)]
            scores = self._scores(train, pair, seed, device)
            # a low score is strange, and larger must mean stranger here
            found = {label: float(auroc(-own, -other)) for label, (own, other) in scores.items()}
            label = f"{NAMES[inside]} to {NAMES[outside]}"
            say(f"{label}: { ({k: round(v, 4) for k, v in found.items()}) }")
            rows.append(Row(label, found))
            figures += [
                self._figure(label, kind, inside, outside, values)
                for kind, values in scores.items()
                if kind != "ELBO"
            ]
            if inside == "fashion_mnist":
                checks = self._checks(found, scores)
        note = (
            "AUROC of telling the second set's test images from the first's, by a model of the "
            "first; 0.5 is chance, below it the wrong way round."
        )
        columns = ["ELBO", "log p(x)", PERTURBED, COMPRESSED]
        return Outcome([Table("Detection", columns, rows, note)], figures, checks)

    def _scores(
        self, train: Tensor, pair: list[Tensor], seed: int, device: torch.device
    ) -> dict[str, tuple[Tensor, Tensor]]:
        model = self._fit(self._levels(train), seed, device)
        perturbed = LikelihoodRatio(
            model, self._fit(self._levels(perturb(train, self.rate, seed)), seed, device)
        )
        counted = self.likelihood == "pixels"
        compressed = LikelihoodRatio(
            model, Compressor(self.levels if counted else 256, unit=not counted)
        )
        pair = [self._levels(x) for x in pair]
        found: dict[str, list[Tensor]] = {
            "ELBO": [model.elbo(x, draws=10, seed=seed) for x in pair],
            "log p(x)": [model.log_marginal(x, k=self.k, seed=seed) for x in pair],
            PERTURBED: [perturbed.score(x, k=self.k, seed=seed) for x in pair],
            COMPRESSED: [compressed.score(x, k=self.k, seed=seed) for x in pair],
        }
        return {label: (own.cpu(), other.cpu()) for label, (own, other) in found.items()}

    def _levels(self, x: Tensor) -> Tensor:
        """Grey values as the likelihood wants them."""
        return (x * (self.levels - 1)).round() if self.likelihood == "pixels" else x

    def _fit(self, x: Tensor, seed: int, device: torch.device) -> VAE:
        likelihood = LIKELIHOODS[self.likelihood](self.levels)
        outputs = likelihood.num_outputs(x[:1])
        hidden = (self.hidden, self.hidden)
        vae = VAE(
            *coders(seed, 2 * self.latent_dim, self.latent_dim, hidden, outputs=outputs),
            self.latent_dim,
            likelihood,
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

    def _figure(
        self, label: str, kind: str, inside: str, outside: str, values: tuple[Tensor, Tensor]
    ) -> dict[str, Any]:
        """Shares of both sets over the score."""
        both = torch.cat(values)
        low, high = (float(both.double().quantile(q)) for q in (0.002, 0.998))
        edges = torch.linspace(low, high, 61, dtype=torch.float64)
        middle = ((edges[1:] + edges[:-1]) / 2).tolist()
        lines = [
            line(NAMES[name], middle, (torch.histogram(v.double(), edges).hist / len(v)).tolist())
            for name, v in zip((inside, outside), values, strict=True)
        ]
        return curves(
            f"{label}: {kind}",
            f"{kind} (nats per image)",
            "share of test images",
            lines,
            caption=f"A model of {NAMES[inside]}. Strange images should lie to the left.",
        )

    def _checks(
        self, found: dict[str, float], scores: dict[str, tuple[Tensor, Tensor]]
    ) -> list[Check]:
        blind = max(found["ELBO"], found["log p(x)"])
        best = max(found[PERTURBED], found[COMPRESSED])
        own, other = (float(v.median()) for v in scores["log p(x)"])
        return [
            Check(
                "Clothes: AUROC by ELBO and log p(x)",
                f"{blind:.3f} at best",
                f"at most {BLIND}: the known failure",
                blind <= BLIND,
            ),
            Check(
                "Clothes: median log p(x), digits against clothes",
                f"{other:.0f} against {own:.0f}",
                "within 10 % or above",
                other > own - 0.1 * abs(own),
            ),
            Check("Clothes: AUROC by the better ratio", f"{best:.3f}", "above 0.9", best > 0.9),
        ]
