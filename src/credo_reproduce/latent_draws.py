"""Why an encoder: log p(x) of a VAE by draws of z from the prior and from the encoder, over the
number of draws.

p(x) = E_p(z)[p(x given z)] can be estimated by plain draws from the prior. For nearly all of them
p(x given z) is next to nothing, so the estimate stays far below the truth until the draws are
countless; draws from q(z given x), weighted by p(z) / q(z given x), are there at once. Annealed
importance sampling, which does not use the encoder, stands beside as a check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from credo.core.settings import setting
from credo.generative import VAE
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import coders, images

PROPOSALS = {"prior": "draws from the prior", "encoder": "draws from the encoder"}


@experiments.register("latent_draws")
@dataclass(frozen=True)
class LatentDraws(Experiment):
    """Two estimates of log p(x) by number of draws."""

    name: ClassVar[str] = "latent_draws"
    title: ClassVar[str] = "log p(x) by draws from the prior and from the encoder"
    reference: ClassVar[str] = (
        "The argument for an encoder in lectures on variational autoencoders (after Doersch 2016)."
    )
    cost: ClassVar[str] = "1 minute on a GPU"
    needs: ClassVar[tuple[str, ...]] = ("mnist",)
    quick_settings: ClassVar[dict[str, Any]] = {
        "epochs": 1,
        "num_train": 200,
        "num_test": 5,
        "most": 100,
        "chains": 2,
        "steps": 5,
    }

    epochs: int = setting(10, "Passes over the training images.", ge=1)
    num_train: int = setting(60_000, "Training images.", ge=1)
    latent_dim: int = setting(20, "Latent variables.", ge=1)
    num_test: int = setting(50, "Test images.", ge=1)
    most: int = setting(100_000, "The largest number of draws; from 1 in powers of ten.", ge=10)
    chains: int = setting(16, "Annealed chains per image.", ge=1)
    steps: int = setting(500, "Temperatures of a chain.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Fit, then estimate over the grid."""
        (train, _), (test, _) = images("mnist", device, self.num_train)
        pair = coders(seed, 2 * self.latent_dim, self.latent_dim, (500, 500))
        vae = VAE(*pair, self.latent_dim, "bernoulli", binarise=True)
        vae.fit(train, epochs=self.epochs, batch_size=100, seed=seed, device=device, progress=False)
        say(f"fitted, training bound {vae.history[-1]['bound']:.2f}")
        x = test[: self.num_test]
        grid = [10**power for power in range(len(str(self.most)))]
        grid = [k for k in grid if k <= self.most]
        found: dict[str, list[float]] = {}
        for proposal in PROPOSALS:
            found[proposal] = [
                float(vae.log_marginal(x, k=k, seed=seed, proposal=proposal).mean()) for k in grid
            ]
            say(f"{PROPOSALS[proposal]}: {[round(value, 1) for value in found[proposal]]}")
        anneal = float(vae.annealed(x, chains=self.chains, steps=self.steps, seed=seed).mean())
        elbo = float(vae.elbo(x, draws=100, seed=seed).mean())
        say(f"annealed {anneal:.2f}, ELBO {elbo:.2f}")
        return self._outcome(grid, found, anneal, elbo)

    def _outcome(
        self, grid: list[int], found: dict[str, list[float]], anneal: float, elbo: float
    ) -> Outcome:
        columns = [f"{k:,}" for k in grid]
        rows = [
            Row(PROPOSALS[name], dict(zip(columns, values, strict=True)))
            for name, values in found.items()
        ]
        note = (
            f"Nats per image, mean of {self.num_test} test images, by number of draws. ELBO "
            f"{elbo:.2f}, annealed {anneal:.2f}."
        )
        lines: list[dict[str, Any]] = [
            line(PROPOSALS[name], grid, values, marks=True) for name, values in found.items()
        ]
        lines.append(
            line(
                "annealed importance sampling",
                [grid[0], grid[-1]],
                [anneal, anneal],
                dash=True,
                colour=-1,
            )
        )
        figure = curves(
            "log p(x) by importance sampling",
            "draws of z per image",
            "log p(x) (nats per image)",
            lines,
            log_x=True,
            caption="Both estimates are lower bounds in expectation, and both are right in the "
            "end; the prior's end is far away.",
        )
        prior, encoder = found["prior"], found["encoder"]
        checks = [
            Check(
                f"{grid[-1]:,} prior draws against 10 encoder draws",
                f"{prior[-1]:.2f} and {encoder[1]:.2f}",
                "fewer encoder draws say more",
                encoder[1] > prior[-1],
            ),
            Check(
                "Encoder and annealing agree",
                f"{encoder[-1]:.2f} and {anneal:.2f}",
                "within 1 nat",
                abs(encoder[-1] - anneal) < 1.0,
            ),
        ]
        return Outcome(
            [Table("log p(x) by number of draws", columns, rows, note, digits=4)], [figure], checks
        )
