"""Finite networks become Gaussian processes as they widen, before they have seen data and after.

(a) Prior. Given its hidden layers a network's output is Gaussian with covariance K^ = sigma_w^2 phi
phi^T / width + sigma_b^2. Across networks K^ scatters about the limit's kernel K by width^-1/2,
which makes f(x) a mixture of normals with excess kurtosis 3 Var(K^) / E(K^)^2 of order 1 / width:
both are measured from K^ itself, without the noise of drawing f. (b) Posterior. Hamiltonian Monte
Carlo on twelve points with known noise, against the exact posterior of the limit (``nngp``) on a
grid: errors of the mean in the limit's deviations, and of the logarithm of the deviation, root mean
squares over the grid, beside what Monte Carlo alone leaves of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from credo.bnn import BNN
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.likelihoods import Gaussian
from credo.metrics import chains
from credo.nets import mlp
from credo.posteriors.wide_kernel import wide_kernel
from credo.priors import FanIn
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line

PRIOR_WIDTHS = (8, 32, 128, 512)
WIDTHS = {1: (4, 16, 64, 256), 2: (4, 16, 64, 128)}  # by the number of hidden layers
STD = math.sqrt(2.0)  # of the prior: sigma_w = sigma_b
NOISE, NUM_CHAINS = 0.3, 8
MIXED = 1.05  # R-hat of function values below which chains are taken to agree
WITHIN = 2.0  # times the Monte Carlo error: what an error of nothing but Monte Carlo rarely exceeds
SLOPE = 0.15  # by how much a power law may differ from the expected one over these widths


class Distance(NamedTuple):
    """Of a finite network's posterior from the limit's, with Monte Carlo errors, R-hat and
    seconds.
    """

    mean: float
    mean_error: float
    sd: float
    sd_error: float
    rhat: float
    seconds: float


@experiments.register("wide")
@dataclass(frozen=True)
class Wide(Experiment):
    """Prior and posterior of finite perceptrons against their infinitely wide limit."""

    name: ClassVar[str] = "wide"
    title: ClassVar[str] = "Networks become Gaussian processes as they widen"
    reference: ClassVar[str] = (
        "Neal 1996, Bayesian learning for neural networks; Lee et al. 2018, Deep neural networks "
        "as Gaussian processes; Matthews et al. 2018, "
        "Gaussian process behaviour in wide deep neural networks (no table is repeated)."
    )
    cost: ClassVar[str] = "3.5 minutes on one CPU core"
    quick_settings: ClassVar[dict[str, Any]] = {"networks": 20, "num_warmup": 5, "num_draws": 8}

    networks: int = setting(1000, "Networks drawn from the prior at every width.", ge=2)
    num_warmup: int = setting(200, "Warm-up of each of the eight chains.", ge=1)
    num_draws: int = setting(500, "Draws of each chain.", ge=8)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Both parts."""
        x, y = toy()
        found = {name: self.prior(name, x, device, seed, say) for name in ("relu", "erf")}
        tables, checks, figures = (
            [_prior_table(found)],
            _prior_checks(found),
            [_prior_figure(found)],
        )
        posterior, bands = {}, []
        for depth, widths in WIDTHS.items():
            chosen = widths[:2] if self.quick else widths
            posterior[depth], more = self.posterior(depth, chosen, (x, y), device, seed, say)
            bands += more
            tables.append(_posterior_table(depth, posterior[depth]))
            checks += _posterior_checks(depth, posterior[depth])
        return Outcome(tables, [*figures, _posterior_figure(posterior), *bands], checks)

    def prior(
        self, activation: str, x: Tensor, device: torch.device, seed: int, say: Say
    ) -> dict[int, dict[str, float]]:
        """Kernel error and excess kurtosis at the last input, by width, of two hidden layers."""
        numbers = [STD**2] * 3, [STD**2] * 3, [activation] * 2
        limit = wide_kernel(x, x, *numbers)
        found = {}
        for width in PRIOR_WIDTHS[:2] if self.quick else PRIOR_WIDTHS:
            say(f"prior: {activation}, width {width}")
            body = nn.Sequential(*list(_net(width, 2, activation, seed))[:-1])
            bnn = BNN(body.to(device), Gaussian(std=NOISE), prior=FanIn(STD))
            units = (
                bnn.functions(x.to(device), self.networks, seed=seed, source="prior").double().cpu()
            )
            kernels = STD**2 * (units @ units.mT) / width + STD**2
            error = (kernels - limit).square().sum(
                (-1, -2)
            ).mean().sqrt() / limit.square().sum().sqrt()
            var = kernels[:, -1, -1]
            found[width] = {
                "kernel error": float(error),
                "excess kurtosis": float(3 * var.var() / var.mean().square()),
            }
        return found

    def posterior(
        self,
        depth: int,
        widths: Sequence[int],
        data: tuple[Tensor, Tensor],
        device: torch.device,
        seed: int,
        say: Say,
    ) -> tuple[dict[int, Distance], list[dict[str, Any]]]:
        """Distances from the limit by width, and the bands of the narrowest and the widest
        network.
        """
        grid = torch.linspace(-3.0, 3.0, 61, dtype=torch.float64).unsqueeze(1)
        exact = _bnn(widths[0], depth, seed).fit(data, "nngp", progress=False).posterior.process
        mean, var = exact.marginals_at(grid)  # type: ignore[union-attr]
        mean, sd = mean[:, 0], var[:, 0].sqrt()
        found, bands = {}, []
        moves: dict[str, Any] = {
            "num_chains": NUM_CHAINS,
            "num_warmup": self.num_warmup,
            "num_draws": self.num_draws,
        }
        for width in widths:
            say(f"posterior: {_layers(depth)} of {width}")
            started = time.perf_counter()
            bnn = _bnn(width, depth, seed)
            bnn.fit(
                data,
                "hmc",
                seed=seed,
                device=device,
                progress=False,
                init="prior",
                compile=not self.quick,
                **moves,
            )
            seconds = time.perf_counter() - started
            values = bnn.functions(grid, NUM_CHAINS * self.num_draws)[:, :, 0].double().cpu()
            found[width] = distance(
                values.reshape(NUM_CHAINS, self.num_draws, -1), mean, sd, seconds
            )
            if width in (widths[0], widths[-1]):
                title = f"{_layers(depth)} of {width} against the limit"
                bands.append(
                    _bands(title, data, grid[:, 0], (mean, sd), (values.mean(0), values.std(0)))
                )
        return found, bands


def toy() -> tuple[Tensor, Tensor]:
    """Twelve points of a tilted V with noise 0.3 and a gap in the middle, in double precision:
    ``(12, 1)`` each.
    """
    side = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)
    x = torch.cat([-side.flip(0), side]).unsqueeze(1)
    noise = torch.randn(12, 1, generator=generator("wide", "toy"), dtype=torch.float64)
    return x, 2 * x.abs() + x - 1 + NOISE * noise


def distance(values: Tensor, mean: Tensor, sd: Tensor, seconds: float = 0.0) -> Distance:
    """Of draws ``(C, D, N)`` from a Gaussian with this mean and deviation ``(N,)``."""
    flat = values.flatten(0, 1)
    own = flat.std(0)
    return Distance(
        _rms((flat.mean(0) - mean) / sd),
        _rms(chains.mcse_mean(values) / sd),
        _rms((own / sd).log()),
        _rms(chains.mcse_sd(values) / own),
        float(chains.rhat(values).max()),
        seconds,
    )


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def slope(found: dict[int, float]) -> float:
    """The exponent of the power law through values by width, by least squares of the logarithms."""
    x, y = (torch.tensor(list(part), dtype=torch.float64).log() for part in (found, found.values()))
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


def _layers(depth: int) -> str:
    return "1 hidden layer" if depth == 1 else f"{depth} hidden layers"


def _net(width: int, depth: int, activation: str, seed: int) -> nn.Sequential:
    with isolated(mix(seed, "net")):
        return mlp(1, (width,) * depth, 1, activation=activation).double()


def _bnn(width: int, depth: int, seed: int) -> BNN:
    return BNN(_net(width, depth, "relu", seed), Gaussian(std=NOISE), prior=FanIn(STD))


def _prior_table(found: dict[str, dict[int, dict[str, float]]]) -> Table:
    names = list(found)
    rows = [
        Row(
            f"width {width}",
            {
                f"{name}: {key}": value
                for name in names
                for key, value in found[name][width].items()
            },
        )
        for width in found[names[0]]
    ]
    note = (
        "Two hidden layers. Kernel error: of the covariance that one network gives its output at "
        "twelve inputs, relative Frobenius norm, root mean "
        "square over networks. Excess kurtosis: of f(2) across networks."
    )
    return Table(
        "(a) Prior: one network's kernel, and the distribution of its output",
        list(rows[0].measured),
        rows,
        note,
    )


def _prior_checks(found: dict[str, dict[int, dict[str, float]]]) -> list[Check]:
    checks = []
    for name, rows in found.items():
        for key, expected in (("kernel error", -0.5), ("excess kurtosis", -1.0)):
            power = slope({width: row[key] for width, row in rows.items()})
            told = f"{expected:g} within {SLOPE}"
            checks.append(
                Check(
                    f"{name}: power of the width in the {key}",
                    f"{power:.2f}",
                    told,
                    abs(power - expected) < SLOPE,
                )
            )
    return checks


def _posterior_table(depth: int, found: dict[int, Distance]) -> Table:
    columns = [
        "mean",
        "mean, Monte Carlo",
        "log sd",
        "log sd, Monte Carlo",
        "largest R-hat",
        "seconds",
    ]
    rows = [
        Row(f"width {width}", dict(zip(columns, each, strict=True)))
        for width, each in found.items()
    ]
    note = (
        "Errors of the predictive mean, in deviations of the limit, and of the logarithm of its "
        "deviation: root mean squares over 61 inputs from "
        "-3 to 3, each beside what Monte Carlo leaves."
    )
    return Table(f"(b) Posterior: HMC against the limit, {_layers(depth)}", columns, rows, note)


def _posterior_checks(depth: int, found: dict[int, Distance]) -> list[Check]:
    label, every = _layers(depth), list(found.values())
    worst, last = max(each.rhat for each in every), every[-1]
    falls = all(b.mean < max(a.mean, WITHIN * b.mean_error) for a, b in pairwise(every))
    told = ", ".join(f"{each.mean:.3f}" for each in every)
    checks = [
        Check(
            f"{label}: chains agree", f"largest R-hat {worst:.3f}", f"below {MIXED}", worst < MIXED
        ),
        Check(
            f"{label}: the mean's error falls with the width",
            told,
            "decreasing, until within Monte Carlo error",
            falls,
        ),
    ]
    for what, error, chance in (
        ("mean", last.mean, last.mean_error),
        ("log sd", last.sd, last.sd_error),
    ):
        ok = error < WITHIN * chance
        measured, limit = (
            f"{error:.3f}, Monte Carlo {chance:.3f}",
            f"below {WITHIN:g} times Monte Carlo",
        )
        checks.append(
            Check(
                f"{label}, width {[*found][-1]}: {what} within Monte Carlo error",
                measured,
                limit,
                ok,
            )
        )
    return checks


def _prior_figure(found: dict[str, dict[int, dict[str, float]]]) -> dict[str, Any]:
    lines = []
    for name, rows in found.items():
        for key in ("kernel error", "excess kurtosis"):
            how = {"marks": True, "colour": len(lines) // 2, "dash": key == "excess kurtosis"}
            values = [row[key] for row in rows.values()]
            lines.append(line(f"{name}: {key}", rows, values, **how))
    caption = (
        "One network's kernel approaches the limit's as width^-1/2, the output's distribution a "
        "Gaussian as 1 / width."
    )
    return curves(
        "Prior: distance from the limit",
        "width",
        "error",
        lines,
        log_x=True,
        log_y=True,
        caption=caption,
    )


def _posterior_figure(found: dict[int, dict[int, Distance]]) -> dict[str, Any]:
    lines = []
    for place, (depth, rows) in enumerate(found.items()):
        for name, values, dash in (
            ("mean", [each.mean for each in rows.values()], False),
            ("Monte Carlo error", [each.mean_error for each in rows.values()], True),
        ):
            lines.append(
                line(
                    f"{_layers(depth)}: {name}",
                    rows,
                    values,
                    marks=not dash,
                    colour=place,
                    dash=dash,
                )
            )
    return curves(
        "Posterior: error of the predictive mean",
        "width",
        "deviations of the limit",
        lines,
        log_x=True,
        log_y=True,
        caption="HMC against the exact posterior of the limit; dashed: what Monte Carlo leaves.",
    )


def _bands(
    title: str,
    data: tuple[Tensor, Tensor],
    grid: Tensor,
    limit: tuple[Tensor, Tensor],
    ours: tuple[Tensor, Tensor],
) -> dict[str, Any]:
    bands, lines = [], []
    for name, (mean, sd), colour in (("limit", limit, -1), ("HMC", ours, 0)):
        edges = {"lower": (mean - 2 * sd).tolist(), "upper": (mean + 2 * sd).tolist()}
        bands.append({"name": f"{name}, ± 2 sd", "x": grid.tolist(), "colour": colour} | edges)
        lines.append(line(f"{name}, mean", grid.tolist(), mean.tolist(), colour=colour))
    points = [line("data", data[0][:, 0].tolist(), data[1][:, 0].tolist(), colour=1)]
    return curves(
        title,
        "x",
        "y",
        lines,
        bands=bands,
        points=points,
        caption="Bands hold the function, without observation noise.",
    )
