"""A fully Bayesian VAE on few data: a posterior over the decoder's weights too, by several methods,
judged by log p(x) of new data.

Binary 8 x 8 digits, a small perceptron each way. The objective is E_q(w)[sum_n ELBO(x_n; w)] -
KL[q(w), p(w)], one method of the library after another taking the place of maximum likelihood. log
p(x) of test data averages p(x given w) over draws of the weights; it is estimated by importance
sampling and by annealed importance sampling, and for data drawn from the fitted model itself
bounded from both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.settings import setting
from credo.generative import VAE
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import coders, digits, sizes

METHODS = {
    "mle": "maximum likelihood",
    "map": "MAP",
    "vi": "mean field",
    "concrete_dropout": "concrete dropout",
}
POINTS = ("mle", "map")
MOST, SLACK = (
    0.5,
    0.05,
)  # nats that the two bounds may lie apart, and that noise may put the upper below the lower


@experiments.register("bayesian_vae")
@dataclass(frozen=True)
class BayesianVAE(Experiment):
    """Test log p(x) by method and number of data."""

    name: ClassVar[str] = "bayesian_vae"
    title: ClassVar[str] = "A posterior over the decoder's weights, on few data"
    reference: ClassVar[str] = (
        "Kingma and Welling 2014, appendix F (full variational Bayes); Wu et al. 2017 (annealing "
        "and bounds for decoders)."
    )
    cost: ClassVar[str] = "7 minutes on one CPU core"
    needs: ClassVar[tuple[str, ...]] = ("digits",)
    quick_settings: ClassVar[dict[str, Any]] = {
        "sizes": "20,40",
        "steps": 10,
        "hidden": 8,
        "num_test": 20,
        "k": 5,
        "samples": 2,
        "chains": 2,
        "temperatures": 5,
        "num_annealed": 5,
    }

    sizes: str = setting("50,100,300,1000", "Training data, one column each.")
    steps: int = setting(3000, "Steps of every fit, on batches of 50 and in whole epochs.", ge=1)
    lr: float = setting(2e-3, "Learning rate of Adam, falling along a cosine.", gt=0.0)
    hidden: int = setting(100, "Units of the hidden layers.", ge=1)
    latent_dim: int = setting(8, "Latent variables.", ge=1)
    num_test: int = setting(797, "Test data.", ge=1, le=1700)
    k: int = setting(300, "Draws of z for importance sampling.", ge=1)
    samples: int = setting(20, "Draws of the weights.", ge=1)
    chains: int = setting(8, "Annealed chains per datum.", ge=1)
    temperatures: int = setting(300, "Steps of a chain.", ge=1)
    num_annealed: int = setting(50, "Data for annealing.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Every method on every size; annealing for the last size."""
        (train, _), (test, _) = digits(seed, self.num_test)
        counts = sizes("sizes", self.sizes, len(train))
        train, test = ((x > 0.5).float().to(device) for x in (train, test))
        found: dict[str, dict[str, float]] = {name: {} for name in METHODS}
        checked = []
        for method in METHODS:
            for size in counts:
                vae = self._fit(train[:size], method, seed, device)
                value = float(
                    vae.log_marginal(
                        test, k=self.k, samples=self._samples(method), seed=seed
                    ).mean()
                )
                found[method][f"{size}"] = value
                say(f"{METHODS[method]}, {size} data: test log p(x) {value:.2f}")
            checked.append(self._anneal(METHODS[method], vae, method, test, seed))
            say(
                f"{checked[-1].label}: "
                f"{ ({k: round(float(v or 0), 2) for k, v in checked[-1].measured.items()}) }"
            )
        return self._outcome(counts, found, checked)

    def _samples(self, method: str) -> int:
        return 1 if method in POINTS else self.samples

    def _fit(self, x: Tensor, method: str, seed: int, device: torch.device) -> VAE:
        vae = VAE(
            *coders(seed, 2 * self.latent_dim, self.latent_dim, (self.hidden,), 64),
            self.latent_dim,
            "bernoulli",
        )
        size = min(50, len(x))
        epochs = max(1, round(self.steps / math.ceil(len(x) / size)))
        return vae.fit(
            x,
            method,
            epochs=epochs,
            batch_size=size,
            lr=self.lr,
            seed=seed,
            device=device,
            progress=False,
        )

    def _anneal(self, label: str, vae: VAE, method: str, test: Tensor, seed: int) -> Row:
        """Both estimates on the same data, and the two bounds on simulated ones."""
        x, chain = (
            test[: self.num_annealed],
            {"chains": self.chains, "steps": self.temperatures, "seed": seed},
        )
        samples = min(4, self._samples(method))
        low, high = vae.bracket(self.num_annealed, **chain)
        return Row(
            label,
            {
                "importance sampling": float(
                    vae.log_marginal(x, k=self.k, samples=samples, seed=seed).mean()
                ),
                "annealed": float(vae.annealed(x, samples=samples, **chain).mean()),
                "simulated: lower": float(low.mean()),
                "simulated: upper": float(high.mean()),
            },
        )

    def _outcome(
        self, counts: list[int], found: dict[str, dict[str, float]], checked: list[Row]
    ) -> Outcome:
        columns = [f"{size}" for size in counts]
        rows = [Row(METHODS[name], values) for name, values in found.items()]
        tables = [
            Table(
                "Test log p(x) by number of training data",
                columns,
                rows,
                "Nats per datum.",
                digits=4,
            ),
            Table(
                f"Two estimates of log p(x), after {counts[-1]} data",
                list(checked[0].measured),
                checked,
                f"Nats per datum, {self.num_annealed} data, at most 4 draws of the weights; the "
                "bounds are for data drawn from the fitted model.",
                digits=4,
            ),
        ]
        gaps = [
            float(row.measured["simulated: upper"] or 0)
            - float(row.measured["simulated: lower"] or 0)
            for row in checked
        ]
        text = ", ".join(f"{gap:.3f}" for gap in gaps)
        checks = [
            Check(
                "The bounds meet",
                text,
                f"from {-SLACK} to {MOST} nats apart",
                all(-SLACK < gap < MOST for gap in gaps),
            )
        ]
        first = columns[0]
        plain, others = (
            found["mle"][first],
            {METHODS[n]: v[first] for n, v in found.items() if n != "mle"},
        )
        best = max(others, key=lambda name: others[name])
        checks.append(
            Check(
                f"With {first} data a prior on the weights helps",
                f"{best} {others[best]:.2f}, maximum likelihood {plain:.2f}",
                "above maximum likelihood",
                others[best] > plain,
            )
        )
        figure = curves(
            "Test log p(x)",
            "training data",
            "log p(x) (nats per datum)",
            [line(METHODS[n], counts, v.values(), marks=True) for n, v in found.items()],
            log_x=True,
            caption="Importance sampling, averaged over draws of the weights where there are any.",
        )
        return Outcome(tables, [figure], checks)
