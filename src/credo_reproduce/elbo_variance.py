"""Variance of the data term's estimate against the batch size: shared weights level off, separate
noise keeps falling.

With L_i the log-likelihood of example i under one draw, the estimate (N / M) sum L_i over M
examples has variance N^2 [Var(L_i) / M + (M - 1) / M Cov(L_i, L_j)]. One draw of the weights for
the whole batch makes the examples covary, so that more examples stop helping once M passes Var /
Cov; noise of its own for every example (local, or a weight sample each) makes Cov zero. Var and Cov
are estimated apart, from the log-likelihoods of all data under many draws; batches are drawn with
replacement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from credo.bnn import BNN
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.nets import mlp
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import digits, minibatches, probe

KINDS = {"local": "local", "separate samples": "per_example", "single sample": "weights"}
SIZES = (1, 3, 10, 30, 100, 300, 1000)
# allowed distance of the local slope from -1; the standard error of the slope is about 0.03 at the
# default settings
SLOPE = 0.1
# allowed relative distance of the single-sample curve from theory; both sides have errors of about
# 5 %
PLATEAU = 0.25


class Spread(NamedTuple):
    """A variance with its standard error."""

    value: float
    error: float


@experiments.register("elbo_variance")
@dataclass(frozen=True)
class ElboVariance(Experiment):
    """Variance of the ELBO's data term by batch size under three estimators, with theory."""

    name: ClassVar[str] = "elbo_variance"
    title: ClassVar[str] = "Variance of the ELBO estimate against the batch size"
    reference: ClassVar[str] = (
        "Kingma, Salimans and Welling 2015, Variational dropout and the local reparameterization "
        "trick, section 2."
    )
    cost: ClassVar[str] = "1 minute on one CPU core"
    needs: ClassVar[tuple[str, ...]] = ("digits",)
    quick_settings: ClassVar[dict[str, Any]] = {
        "hidden": 10,
        "epochs": 2,
        "repeats": 30,
        "draws": 50,
    }

    hidden: int = setting(50, "Units of the hidden layer.", ge=1)
    epochs: int = setting(5, "Epochs of the fit whose posterior is examined.", ge=1)
    init_std: float = setting(
        0.1,
        "Standard deviation of every weight where it starts; a short fit leaves it near.",
        gt=0.0,
    )
    repeats: int = setting(1000, "Estimates per batch size and estimator.", ge=10)
    draws: int = setting(4000, "Weight draws behind the theory's Var and Cov.", ge=10)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Fit briefly, estimate Var and Cov, then the variance at every batch size."""
        (x, y), _ = digits(seed, 360)
        say("fitting")
        with isolated(mix(seed, "net")):
            net = mlp(64, (self.hidden,), 10)
        bnn = BNN(net, "categorical").fit(
            (x, y),
            "vi",
            epochs=self.epochs,
            lr=1e-2,
            init_std=self.init_std,
            seed=seed,
            device=device,
            progress=False,
        )
        x, y = x.to(device), y.to(device)
        var, cov = self.moments(bnn, x, y, seed)
        count = len(y)
        found = {}
        for label, estimator in KINDS.items():
            say(f"estimates under {label}")
            found[label] = [self.variance(bnn, estimator, x, y, size, seed) for size in SIZES]
        theory = {
            "single sample": [count**2 * (var / m + (m - 1) / m * cov) for m in SIZES],
            "local": [count**2 * var / m for m in SIZES],
        }
        theory["separate samples"] = theory["local"]
        return Outcome(
            [_table(found, theory)],
            [_figure(found, theory, count**2 * cov)],
            _checks(found, theory),
            [_note(var, cov)],
        )

    def moments(self, bnn: BNN, x: Tensor, y: Tensor, seed: int) -> tuple[float, float]:
        """Var(L_i) over data and draws, and Cov(L_i, L_j): the variance over draws of the mean over
        data.
        """
        predictive = bnn.predict(x, num_samples=self.draws, seed=mix(seed, "theory"))
        logs = predictive.likelihood.log_prob(predictive.outputs, y).double()
        return float(logs.var(correction=0)), float(logs.mean(1).var())

    def variance(
        self, bnn: BNN, estimator: str, x: Tensor, y: Tensor, size: int, seed: int
    ) -> Spread:
        """Sample variance of (N / M) sum log p over batches and noise."""
        elbo = probe(bnn, estimator)
        batches = minibatches(x, y, size, generator(seed, "batches", size))
        with torch.no_grad(), isolated(mix(seed, estimator, size), bnn.model.device):
            values = torch.stack(
                [elbo(*next(batches))[0] for _ in range(self.repeats)]
            ).double() * (len(y) / size)
        squares = (values - values.mean()).square() * (self.repeats / (self.repeats - 1))
        return Spread(float(squares.mean()), float(squares.std()) / math.sqrt(self.repeats))


def _table(found: dict[str, list[Spread]], theory: dict[str, list[float]]) -> Table:
    columns = [name for label in KINDS for name in (label, f"{label}, theory")]
    rows = []
    for place, size in enumerate(SIZES):
        cells: dict[str, Any] = {}
        for label in KINDS:
            cells |= {label: found[label][place].value, f"{label}, theory": theory[label][place]}
        rows.append(Row(f"M = {size}", cells))
    return Table("Variance of the estimated data term, nats squared per data set", columns, rows)


def _figure(
    found: dict[str, list[Spread]], theory: dict[str, list[float]], plateau: float
) -> dict[str, Any]:
    sizes = list(SIZES)
    lines = [
        line(label, sizes, [s.value for s in found[label]], marks=True, colour=place)
        for place, label in enumerate(KINDS)
    ]
    lines += [
        line(f"theory, {label}", sizes, theory[label], dash=True, colour=colour)
        for label, colour in (("local", 0), ("single sample", 2))
    ]
    lines.append(line("N² Cov", sizes, [plateau] * len(sizes), dash=True, colour=-1))
    caption = (
        "Noise of its own for every example lets the variance fall as 1/M; one weight sample for "
        "the batch leaves N² Cov, "
        "however large the batch."
    )
    return curves(
        "Variance of the data term",
        "batch size M",
        "variance (nats²)",
        lines,
        log_x=True,
        log_y=True,
        caption=caption,
    )


def _checks(found: dict[str, list[Spread]], theory: dict[str, list[float]]) -> list[Check]:
    checks = []
    for label in ("local", "separate samples"):
        slope = _slope([s.value for s in found[label]])
        checks.append(
            Check(f"slope of {label}", f"{slope:.3f}", f"-1 within {SLOPE}", abs(slope + 1) < SLOPE)
        )
    last, expected = found["single sample"][-1], theory["single sample"][-1]
    ratio = last.value / expected
    told = f"{ratio:.2f} of theory (± {last.error / expected:.2f})"
    checks.append(
        Check(
            f"single sample at M = {SIZES[-1]}",
            told,
            f"1 within {PLATEAU}",
            abs(ratio - 1) < PLATEAU,
        )
    )
    gain = last.value / found["local"][-1].value
    checks.append(
        Check("single against local at the largest batch", f"{gain:.0f} times", "above 1", gain > 1)
    )
    return checks


def _slope(values: list[float]) -> float:
    """Least-squares slope of log variance against log M."""
    u = torch.tensor(SIZES, dtype=torch.float64).log()
    v = torch.tensor(values, dtype=torch.float64).log()
    u, v = u - u.mean(), v - v.mean()
    return float((u @ v) / (u @ u))


def _note(var: float, cov: float) -> str:
    return (
        f"Per example and draw: Var = {var:.3g}, Cov = {cov:.3g} nats², so a shared draw stops "
        f"helping near M = {var / cov:.0f}."
    )
