"""The first part of ``dark_knowledge``: twenty points in the plane, and the true predictive
distribution to compare with.

Two overlapping clouds, a network 2-10-2 under N(0, 1), and long HMC chains as the truth. Distances
are KL(truth, prediction) in nats, averaged over a grid that reaches well beyond the data, where a
single network is sure of itself and the posterior is not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from credo.audit import converged
from credo.bnn import BNN
from credo.core.seeds import generator, isolated, mix
from credo.nets import mlp
from credo.tasks.distill import distill
from credo_reproduce.base import Say
from credo_reproduce.outcome import Check, Row, Table
from credo_reproduce.plots import curves, line

REACH = 6.0  # of the grid; the data lie within 3
PAPER = {"point": 0.246, "sampler": 0.007, "student": 0.009}
TINY = 1e-12


class Toy(NamedTuple):
    """Sizes: cells of the grid a side, moves and draws of the truth's chains, the sampler's, and
    how the student is taught.
    """

    cells: int
    truth_warmup: int
    truth_draws: int
    draws: int
    points: int
    epochs: int
    hidden: tuple[int, ...]


class Found(NamedTuple):
    """Table, figures and checks of a part."""

    table: Table
    figures: list[dict[str, Any]]
    checks: list[Check]


def clouds(seed: int) -> tuple[Tensor, Tensor]:
    """Ten points about (-1, -1) and ten about (1, 1), with deviation 1."""
    y = torch.arange(20) % 2
    centre = 2.0 * y.unsqueeze(1) - 1.0
    return centre + torch.randn(20, 2, generator=generator("dark knowledge", seed)), y


def divergence(truth: Tensor, prediction: Tensor) -> float:
    """Mean over inputs of sum_c p_c log(p_c / q_c), for probabilities ``(N, C)``; those below 1e-12
    count as that.
    """
    p, q = truth.double().clamp_min(TINY), prediction.double().clamp_min(TINY)
    return float((p * (p.log() - q.log())).sum(-1).mean())


def toy(sizes: Toy, seed: int, say: Say) -> Found:
    """Truth, a point, a sampler and its student, on a CPU: a network of 52 weights gains nothing
    from a GPU.
    """
    data = clouds(seed)
    axis = torch.linspace(-REACH, REACH, sizes.cells)
    grid = torch.cartesian_prod(axis, axis)
    common: dict[str, Any] = {"progress": False, "seed": seed, "device": "cpu"}
    long: dict[str, Any] = {
        "num_chains": 8,
        "num_warmup": sizes.truth_warmup,
        "num_draws": sizes.truth_draws,
    }
    other: dict[str, Any] = common | {"seed": mix(seed, "truth")}
    truth = _bnn(seed).fit(data, "hmc", **long, **other)
    mixed = converged(truth, grid)
    say(f"toy, truth: {mixed.text}")
    point = _bnn(seed).fit(data, "map", epochs=2000, lr=1e-2, **common)
    sampler = _bnn(seed).fit(
        data,
        "sgld",
        batch_size=10,
        lr=0.02,
        num_warmup=4 * sizes.draws,
        num_draws=sizes.draws,
        thin=20,
        **common,
    )
    area = REACH * (2.0 * torch.rand(sizes.points, 2, generator=generator("area", seed)) - 1.0)
    with isolated(mix(seed, "student")):
        net = mlp(2, sizes.hidden, 2)
    taught = distill(
        sampler,
        net,
        area,
        inputs="perturbed",
        num_samples=20,
        epochs=sizes.epochs,
        batch_size=50,
        lr=1e-2,
        test=grid,
        **common,
    )
    models = {"point": point, "sampler": sampler, "student": taught.student}
    predictions = {
        name: bnn.predict(grid, bnn.posterior.atoms or 1, batch_size=500)
        for name, bnn in models.items()
    }
    actual = truth.predict(grid, truth.posterior.atoms or 1, batch_size=500).mean
    distances = {name: divergence(actual, p.mean) for name, p in predictions.items()}
    say(
        "toy, KL from the truth: "
        f"{ ({name: round(value, 5) for name, value in distances.items()}) }"
    )
    passes = {name: bnn.posterior.atoms or 1 for name, bnn in models.items()}
    maps = {"truth": actual} | {name: p.mean for name, p in predictions.items()}
    entropies = predictions["sampler"].entropy, predictions["student"].entropy
    figures = [_maps(maps, sizes.cells), against("Toy: entropy at the grid", *entropies)]
    return Found(
        _table(distances, passes, sizes, taught.fidelity["kl"]),
        figures,
        [_truth_converged(mixed), *_checks(distances)],
    )


def _bnn(seed: int) -> BNN:
    with isolated(mix(seed, "toy net")):
        return BNN(mlp(2, (10,), 2), prior=Normal(0.0, 1.0))


def _table(
    distances: dict[str, float], passes: dict[str, int], sizes: Toy, from_teacher: float
) -> Table:
    shape = "-".join(map(str, (2, *sizes.hidden, 2)))
    labels = {"point": "point (map)", "sampler": "sampler (sgld)", "student": f"student ({shape})"}
    rows = [
        Row(
            labels[name],
            {"KL from the truth": value, "passes per prediction": passes[name]},
            {"KL from the truth": PAPER[name]},
        )
        for name, value in distances.items()
    ]
    note = (
        "Nats, mean over the grid; data of the same kind as the paper's, not the same; its "
        "student is the best of three. The student's KL "
        f"from its teacher: {from_teacher:.2g}."
    )
    return Table(
        "Twenty points in the plane", ["KL from the truth", "passes per prediction"], rows, note
    )


def _truth_converged(mixed: Any) -> Check:
    return Check(
        "toy: the truth has converged", mixed.text, "R-hat, draws, energies in order", mixed.ok
    )


def _checks(distances: dict[str, float]) -> list[Check]:
    point, sampler, student = (distances[name] for name in PAPER)
    return [
        Check(
            "toy: the student is near the truth",
            f"{student:.4f}",
            f"at most {PAPER['student']}",
            student <= PAPER["student"],
        ),
        Check(
            "toy: so is the sampler",
            f"{sampler:.4f}",
            f"at most {PAPER['sampler']}",
            sampler <= PAPER["sampler"],
        ),
        Check(
            "toy: a point is not",
            f"{point:.4f}",
            "more than 10 times the student's",
            point > 10 * student,
        ),
    ]


def _maps(maps: dict[str, Tensor], cells: int) -> dict[str, Any]:
    """The probability of the second class, with the second coordinate upwards."""
    pictures = [probs[:, 1].reshape(cells, cells).T.flip(0) for probs in maps.values()]
    return {
        "kind": "mosaic",
        "title": f"Toy: p(class 2) for both inputs from -{REACH:g} to {REACH:g}",
        "rows": 1,
        "columns": len(maps),
        "height": cells,
        "width": cells,
        "pixels": torch.stack(pictures).double().clamp(0, 1).flatten().tolist(),
        "column_labels": list(maps),
        "caption": "Black: surely class 1; white: surely class 2. The data lie within 3 of the "
        "middle.",
    }


def against(title: str, teacher: Tensor, student: Tensor) -> dict[str, Any]:
    """Entropies of a student's predictions against its teacher's, a point per input."""
    x, y = (values.double().cpu().tolist() for values in (teacher, student))
    top = max([*x, *y])
    return curves(
        title,
        "teacher, nats",
        "student, nats",
        [line("equal", [0.0, top], [0.0, top], dash=True, colour=-1)],
        points=[line("inputs", x, y, colour=0)],
        caption="On the dashed line the student states its teacher's uncertainty.",
    )
