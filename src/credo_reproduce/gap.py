"""Uncertainty between two clusters of inputs: every approximation beside Hamiltonian Monte Carlo on
the same small network.

Network 1-H-1 with tanh, weights N(0, 1), noise known. The spread of the function across draws, on
the clusters and in the gap between them, is compared with the reference's, and so is the whole
predictive density: total variation 1/2 int |p - q| dy, averaged over x.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from credo.bnn import BNN
from credo.core.seeds import isolated, mix
from credo.likelihoods import Gaussian
from credo.metrics import chains
from credo.nets import mlp
from credo.priors import FanIn
from credo_reproduce.li_regression import NOISE, Clusters, clusters
from credo_reproduce.outcome import Check, Row, Table
from credo_reproduce.plots import curves, line


class Sizes(NamedTuple):
    """How much work: width, data, chains, warm-up, draws, leapfrog steps, and steps and draws of
    the approximations.
    """

    hidden: int
    num_data: int
    chains: int
    warmup: int
    draws: int
    leapfrog: int
    epochs: int
    samples: int


FULL = Sizes(20, 40, 8, 300, 600, 80, 4000, 500)
QUICK = Sizes(4, 10, 2, 10, 20, 3, 20, 20)
SLOPE = (
    math.sqrt(math.pi) / 2
)  # erf(SLOPE z) rises as tanh(z) does at 0, and stays within 0.04 of it


def network(data: Clusters, sizes: Sizes, seed: int, double: bool = False) -> BNN:
    """The model of the reference: tanh, weights N(0, 1)."""
    with isolated(mix(seed, "net")):
        net = mlp(1, (sizes.hidden,), 1, activation="tanh")
    return BNN(
        net.double() if double else net, Gaussian(std=NOISE / data.y_std), prior=Normal(0.0, 1.0)
    )


def wide_network(data: Clusters, sizes: Sizes, seed: int) -> BNN:
    """What has a limit and is nearest: erf for tanh, with the slope in the first layer's prior, and
    output weights of variance H / fan-in.
    """
    with isolated(mix(seed, "net")):
        net = mlp(1, (sizes.hidden,), 1, activation="erf")
    prior = {
        "0.*": Normal(0.0, SLOPE),
        "2.weight": FanIn(math.sqrt(sizes.hidden)),
        "2.bias": Normal(0.0, 1.0),
    }
    return BNN(net, Gaussian(std=NOISE / data.y_std), prior=prior)


class Kind(NamedTuple):
    """An approximation: method, settings, and whether it starts at the mean-field solution (its own
    start needs far more steps).
    """

    method: str
    settings: dict[str, Any]
    lr: float = 1e-2
    continued: bool = False
    bound: bool = True  # whether its ELBO bounds the evidence of the whole network
    model: Callable[[Clusters, Sizes, int], BNN] = network


ALL_TOGETHER = {"posterior": "full", "estimator": "weights", "train_samples": 4}
#: Length and scale at which the process's own evidence of these data is about largest.
PROCESS = {"function_prior": "gp", "length_scale": 0.5, "output_scale": 2.0}
KINDS = {
    "mean-field": Kind("vi", {}),
    "low rank (10)": Kind(
        "vi",
        {
            "posterior": "low_rank",
            "rank": 10,
            "estimator": "weights",
            "train_samples": 4,
            "init_std": 0.05,
        },
        3e-3,
        True,
    ),
    "full covariance": Kind("vi", ALL_TOGETHER | {"init_std": 0.05}, 3e-3, True),
    "mixture of 5 mean-fields": Kind("bnn_ensemble", {"num_members": 5}),
    "last layer": Kind("last_layer", {}, bound=False),
    "Laplace": Kind("laplace", {"structure": "full", "tune": "none"}, bound=False),
    "function space": Kind("fvi", {}, bound=False),
    "function space, full covariance": Kind("fvi", ALL_TOGETHER, bound=False),
    "function space, GP prior": Kind("fvi", ALL_TOGETHER | PROCESS, bound=False),
    "infinitely wide": Kind("nngp", {}, bound=False, model=wide_network),
}
GAP, FLANKS = (-1.0, 1.0), ((-2.75, -1.25), (1.25, 2.75))  # in the data's units
MIXED = 1.1  # R-hat of function values below which chains are taken to agree


class Gap(NamedTuple):
    """What the comparison brings to the outcome."""

    tables: list[Table]
    figures: list[dict[str, Any]]
    checks: list[Check]


def reference(data: Clusters, grid: Tensor, sizes: Sizes, seed: int) -> tuple[Tensor, float, float]:
    """Function values ``(S, N)`` on the grid from the true posterior, the largest R-hat over the
    grid, and the acceptance rate.
    """
    moves: dict[str, Any] = {
        "num_warmup": sizes.warmup,
        "num_draws": sizes.draws,
        "num_steps": sizes.leapfrog,
        "num_chains": sizes.chains,
    }
    bnn = network(data, sizes, seed, double=True)
    bnn.fit(
        (data.x.double(), data.y.double()), "hmc", seed=seed, progress=False, init="prior", **moves
    )
    values = bnn.functions(data.inputs(grid).double(), sizes.chains * sizes.draws)[:, :, 0]
    rates = [row["acceptance"] for row in bnn.history if not row["warmup"]]
    worst = chains.rhat(values.reshape(sizes.chains, sizes.draws, -1)).max()
    return values, float(worst), sum(rates) / len(rates)


def compare(sizes: Sizes, device: torch.device, seed: int, say: Any) -> Gap:
    """All approximations against the reference."""
    data = clusters(sizes.num_data, seed)
    grid = torch.linspace(-4.0, 4.0, 81)
    say("HMC reference")
    true, worst, rate = reference(data, grid, sizes, seed)
    base, noise = _gap_and_flank(true, grid), NOISE / data.y_std
    figures, ratios, contrasts, start = [], {}, {}, None
    rows = [Row("HMC", _sizes(base, data))]
    for label, kind in KINDS.items():
        say(f"gap: {label}")
        bnn = _fit(kind, data, sizes, start if kind.continued else None, device, seed)
        start = start or {
            name: value.detach().clone() for name, value in bnn.posterior.mean().items()
        }
        values = bnn.functions(data.inputs(grid), sizes.samples)[:, :, 0].double().cpu()
        gap, flank = _gap_and_flank(values, grid)
        ratios[label] = gap / base[0]
        contrasts[label] = gap / flank
        measured = _sizes((gap, flank), data) | {
            "gap, of HMC's": ratios[label],
            "clusters, of HMC's": flank / base[1],
        }
        measured |= {"total variation": float(total_variation(values, true, noise).mean())}
        rows.append(
            Row(
                label,
                measured
                | ({"ELBO": bnn.objective((data.x, data.y))["elbo"]} if kind.bound else {}),
            )
        )
        figures.append(_figure(label, data, grid, values, true))
    note = (
        f"sd: of the function across draws. HMC: {sizes.chains} chains, acceptance {rate:.2f}, "
        f"largest R-hat {worst:.3f}. "
        "A family with a lower ELBO than one it contains is not at its optimum yet. Laplace is "
        "linearised. The last two are other models: the prior "
        "over functions is a Gaussian process, and the network has erf for tanh and infinitely "
        "many units that give outputs of the same variance."
    )
    columns = [
        "sd in the gap",
        "sd on the clusters",
        "gap over clusters",
        "gap, of HMC's",
        "clusters, of HMC's",
        "total variation",
        "ELBO",
    ]
    sure, flat = ratios["mean-field"], contrasts["mean-field"]
    told = f"{flat:.1f} times wider than on the clusters (HMC {base[0] / base[1]:.1f})"
    checks = [
        Check("HMC chains agree", f"largest R-hat {worst:.3f}", f"below {MIXED}", worst < MIXED),
        Check("mean-field too sure in the gap", f"{sure:.2f} of HMC's sd", "below 1", sure < 1.0),
        Check(
            "mean-field tells gap from clusters less well",
            told,
            "a smaller contrast than HMC",
            flat < base[0] / base[1],
        ),
        *(
            _better(label, contrasts[label], flat)
            for label in ("Laplace", "function space", "infinitely wide")
        ),
    ]
    return Gap(
        [Table("(c) Uncertainty between two clusters, against HMC", columns, rows, note)],
        figures,
        checks,
    )


def _better(label: str, contrast: float, than: float) -> Check:
    told = f"{contrast:.1f} times wider than on the clusters"
    return Check(
        f"{label} tells gap from clusters better than mean-field",
        told,
        f"above {than:.1f}",
        contrast > than,
    )


def total_variation(ours: Tensor, theirs: Tensor, noise: float) -> Tensor:
    """1/2 int |p - q| dy of two predictive densities at every input ``(N,)``, each a mixture of
    normals over draws ``(S, N)``.
    """
    both = torch.cat([ours, theirs.to(ours)])
    y = torch.linspace(
        float(both.min()) - 4 * noise, float(both.max()) + 4 * noise, 400, dtype=ours.dtype
    )
    width = float(y[1] - y[0])
    return (
        0.5 * width * (_density(ours, y, noise) - _density(theirs.to(ours), y, noise)).abs().sum(0)
    )


def _density(values: Tensor, y: Tensor, noise: float) -> Tensor:
    """``(Y, N)``: the mixture at each y, a few hundred draws at a time."""
    parts = [
        torch.exp(-0.5 * ((y[:, None, None] - part) / noise).square()).sum(1)
        for part in values.split(200)
    ]
    return torch.stack(parts).sum(0) / (len(values) * noise * math.sqrt(2 * math.pi))


def _fit(
    kind: Kind, data: Clusters, sizes: Sizes, start: Any, device: torch.device, seed: int
) -> BNN:
    bnn = kind.model(data, sizes, seed)
    given = kind.settings if start is None else kind.settings | {"init": start}
    common = {
        "epochs": sizes.epochs,
        "batch_size": sizes.num_data,
        "seed": seed,
        "device": device,
        "progress": False,
    }
    return bnn.fit((data.x, data.y), kind.method, lr=kind.lr, **common, **given)


def _sizes(stds: tuple[float, float], data: Clusters) -> dict[str, float]:
    gap, flank = stds
    return {
        "sd in the gap": gap * data.y_std,
        "sd on the clusters": flank * data.y_std,
        "gap over clusters": gap / flank,
    }


def _gap_and_flank(values: Tensor, grid: Tensor) -> tuple[float, float]:
    """Root mean square deviation across draws, in the gap and on the clusters."""
    inside = (grid >= GAP[0]) & (grid <= GAP[1])
    flanks = torch.stack([(grid >= low) & (grid <= high) for low, high in FLANKS]).any(0)
    variance = values.var(0)
    return math.sqrt(float(variance[inside].mean())), math.sqrt(float(variance[flanks].mean()))


def _figure(
    label: str, data: Clusters, grid: Tensor, ours: Tensor, theirs: Tensor
) -> dict[str, Any]:
    bands, lines = [], []
    for name, values, colour in (("HMC", theirs, -1), (label, ours, 0)):
        mean, wide = (
            v * data.y_std for v in (values.mean(0) + data.y_mean / data.y_std, 2 * values.std(0))
        )
        edges = {"lower": (mean - wide).tolist(), "upper": (mean + wide).tolist()}
        bands.append({"name": f"{name}, ± 2 sd", "x": grid.tolist(), "colour": colour} | edges)
        lines.append(line(f"{name}, mean", grid.tolist(), mean.tolist(), colour=colour))
    points = {
        "x": (data.x[:, 0] * data.x_std + data.x_mean).tolist(),
        "y": (data.y[:, 0] * data.y_std + data.y_mean).tolist(),
    }
    return curves(
        f"{label} against HMC",
        "x",
        "y",
        lines,
        bands=bands,
        points=[{"name": "data", "colour": 1} | points],
        y_range=[-2.5, 2.5],
        caption="Bands hold the function, without observation noise.",
    )
