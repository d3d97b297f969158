"""Mean-field variational inference where it is known to fail: underfitting, tempering, and
certainty between clusters.

(a) The same budget of steps from several initial standard deviations and from a pretrained point:
too large a start drowns the data term in noise and never fits, too small a one leaves the KL
unpaid. (b) The weight beta of the KL: below 1 it trades the bound for fit. (c) The function's
spread between two clusters of inputs, against Hamiltonian Monte Carlo (``gap``). ELBOs are at beta
= 1 whatever was trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from credo.bnn import BNN
from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.likelihoods import Gaussian, Likelihood
from credo.nets import mlp
from credo_reproduce import gap
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.li_regression import NOISE, clusters
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import digits

Pair = tuple[Tensor, Tensor]
STARTS = (1e-3, 1e-2, 3e-2, 0.1, 0.3)
BETAS = (0.1, 0.3, 1.0)
PRETRAINED = "pretrained, 0.01"


class Problem(NamedTuple):
    """A data set with its network: sizes, activation, likelihood, and how many epochs in which
    batches.
    """

    name: str
    train: Pair
    test: Pair
    sizes: tuple[int, ...]
    activation: str
    likelihood: str | Likelihood
    epochs: int
    batch: int


class Fit(NamedTuple):
    """One fit: ELBO in nats per data set (at beta = 1), nll per datum, and the ELBO by epoch."""

    elbo: float
    train: float
    test: float
    elbos: list[float]


@experiments.register("mean_field")
@dataclass(frozen=True)
class MeanFieldFailings(Experiment):
    """Underfitting against the start and beta, and uncertainty between clusters against HMC."""

    name: ClassVar[str] = "mean_field"
    title: ClassVar[str] = "Where mean-field variational inference fails"
    reference: ClassVar[str] = (
        "Li, Introduction to Bayesian neural networks (tutorial); Foong et al. 2020, On the "
        "expressiveness of approximate inference."
    )
    cost: ClassVar[str] = "7 minutes on one CPU core"
    needs: ClassVar[tuple[str, ...]] = ("digits",)
    quick_settings: ClassVar[dict[str, Any]] = {"steps": 5, "epochs": 1}

    steps: int = setting(2000, "Training steps of each regression fit in (a) and (b).", ge=1)
    epochs: int = setting(100, "Epochs of each classification fit in (a) and (b).", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """All three parts."""
        tables, figures, checks = [], [], []
        for problem in (self.regression(seed), self.classification(seed)):
            found = self.starts(problem, device, seed, say)
            tables.append(_table(f"(a) {problem.name}: where the standard deviations start", found))
            figures.append(_figure(problem.name, found))
            best = min(found[_label(start)].test for start in STARTS)
            worst = found[_label(STARTS[-1])].test - best
            checks.append(
                Check(
                    f"{problem.name}: a start at {STARTS[-1]} underfits",
                    f"test nll {worst:+.3f} above the best",
                    "above 0",
                    worst > 0,
                )
            )
            tempered = self.betas(problem, device, seed, say)
            tables.append(_table(f"(b) {problem.name}: weight of the KL", tempered))
            fits = [fit.train for fit in tempered.values()]
            told = ", ".join(f"{value:.3f}" for value in fits)
            checks.append(
                Check(
                    f"{problem.name}: training nll rises with beta",
                    told,
                    "increasing",
                    fits == sorted(fits),
                )
            )
        between = gap.compare(gap.QUICK if self.quick else gap.FULL, device, seed, say)
        return Outcome(
            [*tables, *between.tables], [*figures, *between.figures], [*checks, *between.checks]
        )

    def regression(self, seed: int) -> Problem:
        """Two clusters, standardised by the training part; fresh points to test on."""
        data, fresh = clusters(100, seed), clusters(1000, seed + 1)
        x, y = fresh.x * fresh.x_std + fresh.x_mean, fresh.y * fresh.y_std + fresh.y_mean
        test = data.inputs(x[:, 0]), (y - data.y_mean) / data.y_std
        likelihood = Gaussian(std=NOISE / data.y_std)
        return Problem(
            "regression",
            (data.x, data.y),
            test,
            (1, 50, 50, 1),
            "gelu",
            likelihood,
            self.steps,
            100,
        )

    def classification(self, seed: int) -> Problem:
        """The embedded digits."""
        train, test = digits(seed, 360)
        return Problem(
            "digits", train, test, (64, 100, 10), "relu", "categorical", self.epochs, 128
        )

    def starts(self, problem: Problem, device: torch.device, seed: int, say: Say) -> dict[str, Fit]:
        """One fit per initial standard deviation, and one from a point estimate."""
        found = {}
        for start in STARTS:
            say(f"{problem.name}: init_std {start:g}")
            found[_label(start)] = _fit(problem, device, seed, init_std=start)
        say(f"{problem.name}: pretrained start")
        point = _train(problem, "map", device, seed)
        found[PRETRAINED] = _fit(problem, device, seed, init_std=0.01, init=_values(point))
        return found

    def betas(self, problem: Problem, device: torch.device, seed: int, say: Say) -> dict[str, Fit]:
        """One fit per beta."""
        found = {}
        for beta in BETAS:
            say(f"{problem.name}: beta {beta:g}")
            found[f"beta {beta:g}"] = _fit(problem, device, seed, init_std=0.01, beta=beta)
        return found


def _train(problem: Problem, method: str, device: torch.device, seed: int, **settings: Any) -> BNN:
    with isolated(mix(seed, "net")):
        net = mlp(
            problem.sizes[0], problem.sizes[1:-1], problem.sizes[-1], activation=problem.activation
        )
    bnn = BNN(net, problem.likelihood)
    common = {
        "epochs": problem.epochs,
        "batch_size": problem.batch,
        "lr": 3e-3,
        "lr_schedule": "constant",
        "progress": False,
    }
    return bnn.fit(problem.train, method, seed=seed, device=device, **common, **settings)


def _fit(problem: Problem, device: torch.device, seed: int, **settings: Any) -> Fit:
    bnn = _train(problem, "vi", device, seed, **settings)
    return Fit(
        bnn.objective(problem.train, num_samples=50)["elbo"],
        bnn.evaluate(problem.train, num_samples=50)["nll"],
        bnn.evaluate(problem.test, num_samples=50)["nll"],
        [row["elbo"] for row in bnn.history],
    )


def _values(bnn: BNN) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in bnn.posterior.mean().items()}


def _label(start: float) -> str:
    return f"init_std {start:g}"


def _table(title: str, found: dict[str, Fit]) -> Table:
    columns = ["ELBO (nats per data set)", "train nll", "test nll"]
    rows = [Row(label, dict(zip(columns, fit[:3], strict=True))) for label, fit in found.items()]
    return Table(title, columns, rows)


def _figure(name: str, found: dict[str, Fit]) -> dict[str, Any]:
    lines = []
    for label, fit in found.items():
        every = max(1, len(fit.elbos) // 200)
        shown = fit.elbos[::every]
        lines.append(
            line(
                label,
                [1 + place * every for place in range(len(shown))],
                [-value for value in shown],
            )
        )
    return curves(
        f"{name}: negative ELBO in training",
        "epoch",
        "nats per data set",
        lines,
        log_y=True,
        log_x=True,
        caption="The same steps from different initial standard deviations; lower is better.",
    )
