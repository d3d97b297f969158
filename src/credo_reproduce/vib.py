"""The information bottleneck on MNIST: what a network keeps of an image, and what it tells of the
digit, as the price of a nat rises.

A perceptron with two hidden layers, then a code of K numbers and a linear decoder (Alemi et al.
2017, section 4.1), fitted by ``vib`` for every beta, and the same network with a code without noise
by maximum likelihood. Predictions average the probabilities of several draws of the code. The
default sizes are for a CPU; those of the paper are ``--set hidden=1024 --set latent_dim=256 --set
epochs=200 --set lr=1e-4``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from credo.bnn import BNN
from credo.core.errors import SettingError
from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.nets import Bottleneck
from credo.tasks.information import entropy, information
from credo_reproduce.base import Experiment, Say, experiments, graph_on
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import images

Pair = tuple[Tensor, Tensor]
#: Published test error in % with 1024 units, K = 256 and all training images (table 1).
PAPER = {None: 1.38, 1e-3: 1.13}
PUBLISHED = {"hidden": 1024, "latent_dim": 256, "num_train": 60_000}
# by which a rate may exceed that of the next smaller beta: fits end a little short of their optima
SLACK = 0.05
NOISE = 0.01  # nats by which draws of the code may blur the two bounds
QUIET = (
    0.01  # nats that count as no information; by Pinsker's inequality worth at most 7 % of accuracy
)


class Point(NamedTuple):
    """One fit: error in % and nll of predictions, and both bounds in nats; None where there is no
    noisy code.
    """

    beta: float | None
    error: float
    nll: float
    rate: float | None = None
    lower: float | None = None

    @property
    def label(self) -> str:
        """As the table shows it."""
        return "no noise (mle)" if self.beta is None else f"beta = {self.beta:g}"


@experiments.register("vib")
@dataclass(frozen=True)
class InformationBottleneck(Experiment):
    """The trade-off curve over beta."""

    name: ClassVar[str] = "vib"
    title: ClassVar[str] = (
        "The variational information bottleneck on MNIST: error, and information kept and told, "
        "against beta"
    )
    reference: ClassVar[str] = (
        "Alemi, Fischer, Dillon and Murphy 2017, Deep variational information bottleneck (table "
        "1, figure 1)."
    )
    cost: ClassVar[str] = "8 minutes on one shared CPU core"
    needs: ClassVar[tuple[str, ...]] = ("mnist",)
    quick_settings: ClassVar[dict[str, Any]] = {
        "betas": "1e-3,3",
        "hidden": 16,
        "latent_dim": 4,
        "epochs": 2,
        "num_train": 500,
        "num_test": 200,
        "draws": 4,
    }

    betas: str = setting(
        "1e-5,1e-4,1e-3,1e-2,0.1,0.5,3", "Prices of a nat of the code, with commas between them."
    )
    hidden: int = setting(256, "Units of each of the two hidden layers.", ge=1)
    latent_dim: int = setting(64, "Numbers K of the code.", ge=1)
    epochs: int = setting(10, "Passes over the training images, for every beta.", ge=1)
    batch: int = setting(100, "Images in a step.", ge=1)
    lr: float = setting(
        1e-3, "Learning rate of Adam at the start; it falls along a cosine.", gt=0.0
    )
    draws: int = setting(12, "Draws of the code behind a prediction.", ge=1)
    num_train: int = setting(60_000, "Training images.", ge=1)
    num_test: int = setting(10_000, "Test images.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """One fit without noise, and one for every beta."""
        betas = parse(self.betas)
        train, test = (
            (2.0 * x[:count] - 1.0, y[:count])
            for (x, y), count in zip(
                images("mnist", device), (self.num_train, self.num_test), strict=True
            )
        )
        points = []
        for beta in (None, *betas):
            points.append(point := self._measure(beta, train, test, seed, device))
            bounds = (
                ""
                if point.rate is None
                else f", rate {point.rate:.3f}, at least {point.lower:.3f} nats of y"
            )
            say(f"{point.label}: error {point.error:.2f} %, nll {point.nll:.4f}{bounds}")
        labels = test[1]
        chance = 100.0 * (1.0 - float(labels.bincount().max()) / len(labels))
        return Outcome(
            [self._table(points)],
            [_plane(points, entropy(labels)), _errors(points)],
            _checks(points, chance),
        )

    def _measure(
        self, beta: float | None, train: Pair, test: Pair, seed: int, device: torch.device
    ) -> Point:
        """Fit, predict, measure; all fits start from the same values where their layers are the
        same.
        """
        with isolated(mix(seed, "net")):
            body = [
                nn.Linear(784, self.hidden),
                nn.ReLU(),
                nn.Linear(self.hidden, self.hidden),
                nn.ReLU(),
            ]
            code = (
                nn.Linear(self.hidden, self.latent_dim)
                if beta is None
                else Bottleneck(self.hidden, self.latent_dim)
            )
            net = nn.Sequential(*body, code, nn.Linear(self.latent_dim, 10))
        how: dict[str, Any] = {
            "epochs": self.epochs,
            "batch_size": self.batch,
            "lr": self.lr,
            "seed": seed,
            "device": device,
        }
        how |= {"compile": graph_on(device), "progress": False}
        bnn = (
            BNN(net).fit(train, "mle", **how)
            if beta is None
            else BNN(net).fit(train, "vib", beta=beta, **how)
        )
        predictive = bnn.predict(test[0], self.draws, seed=seed)
        error = 100.0 * float((predictive.label != test[1]).double().mean())
        nll = -float(predictive.log_prob(test[1]).double().mean())
        found = {} if beta is None else information(bnn, test, self.draws, seed)
        return Point(beta, error, nll, found.get("rate"), found.get("lower"))

    def _table(self, points: list[Point]) -> Table:
        comparable = all(getattr(self, name) == value for name, value in PUBLISHED.items())
        rows = [
            Row(
                point.label,
                {
                    "error %": point.error,
                    "nll": point.nll,
                    "rate, nats": point.rate,
                    "rate, bits": None if point.rate is None else point.rate / math.log(2),
                    "told of y, nats": point.lower,
                },
                {"error %": PAPER.get(point.beta)} if comparable else {},
            )
            for point in points
        ]
        note = (
            "On test images. Rate: mean KL of the code to N(0, I), an upper bound on I(X; Z). "
            "Told of y: H(Y) minus the expected nll over draws "
            f"of the code, a lower bound on I(Z; Y). The paper has {PAPER[None]} % without noise "
            f"and {PAPER[1e-3]} % at beta = 0.001, with "
            f"{PUBLISHED['hidden']} units, K = {PUBLISHED['latent_dim']}, 200 epochs and averaged "
            "weights."
        )
        return Table("A price on information", list(rows[0].measured), rows, note)


def parse(text: str) -> list[float]:
    """The betas of a setting, in rising order: different finite numbers, none below 0."""
    try:
        found = sorted(float(part) for part in text.split(","))
    except ValueError:
        found = []
    if not found or not all(0 <= beta < math.inf for beta in found) or len(set(found)) < len(found):
        raise SettingError(
            f"betas={text!r} is not valid; expected different numbers, none below 0, with commas "
            "between them, such as 1e-3,0.1."
        )
    return found


def _noisy(points: list[Point]) -> list[tuple[float, float, float]]:
    """Beta, rate and lower bound of the fits that have them."""
    return [
        (p.beta, p.rate, p.lower)
        for p in points
        if p.beta is not None and p.rate is not None and p.lower is not None
    ]


def _checks(points: list[Point], chance: float) -> list[Check]:
    """What must hold of any information bottleneck, and what the paper found; ``chance``: error in
    % of the commonest label.
    """
    noisy = _noisy(points)
    rates = [rate for _, rate, _ in noisy]
    rise = max((after / before - 1 for before, after in pairwise(rates)), default=0.0)
    gap = max(lower - rate for _, rate, lower in noisy)
    listed = ", ".join(f"{rate:.3g}" for rate in rates)
    out = [
        Check(
            "the rate falls as beta grows",
            f"{listed} nats",
            f"each at most {1 + SLACK:g} times the one before",
            rise <= SLACK,
        ),
        Check(
            "no more is told of y than is kept of x",
            f"told minus kept: {gap:.3f} nats at most",
            f"at most {NOISE}",
            gap <= NOISE,
        ),
    ]
    by_beta = {point.beta: point for point in points}
    last = points[-1]
    if last.beta is not None and last.beta > 1 and last.rate is not None:
        limit = chance - 100.0 * math.sqrt(QUIET / 2)
        measured = f"rate {last.rate:.4f} nats, error {last.error:.1f} %"
        expected = f"rate below {QUIET} nats, error at chance ({chance:.1f} %; above {limit:.1f})"
        out.append(
            Check(
                f"{last.label} shuts the code",
                measured,
                expected,
                last.rate < QUIET and last.error > limit,
            )
        )
    plain, best = by_beta[None], by_beta.get(1e-3)
    if best is not None:
        measured, expected = (
            f"error {best.error:.2f} %",
            f"below {plain.error:.2f} %, without noise",
        )
        out.append(
            Check(
                "beta = 0.001 generalises better than no noise",
                measured,
                expected,
                best.error < plain.error,
            )
        )
    return out


def _plane(points: list[Point], told: float) -> dict[str, Any]:
    """The information plane, with the two limits: nothing is told that is not kept, and no more of
    y than there is.
    """
    noisy = _noisy(points)
    rates = [max(rate, QUIET) for _, rate, _ in noisy]
    grid = torch.logspace(
        math.log10(QUIET), math.log10(max(*rates, 10.0)), 100, dtype=torch.float64
    ).tolist()
    return curves(
        "The information plane",
        "kept of x: rate, nats",
        "told of y: at least, nats",
        [
            line(
                "limit: min(rate, H(Y))",
                grid,
                [min(rate, told) for rate in grid],
                dash=True,
                colour=-1,
            )
        ],
        log_x=True,
        points=[line("vib, one for every beta", rates, [lower for _, _, lower in noisy])],
        caption="From right to left beta grows. The best code would lie on the dashed line: "
        "every nat kept of the image tells a nat of the "
        f"digit. Rates below {QUIET} nats are drawn there.",
    )


def _errors(points: list[Point]) -> dict[str, Any]:
    shown = [point for point in points if point.beta]
    betas = [point.beta for point in shown]
    plain = [points[0].error] * len(betas)
    lines = [
        line("vib", betas, [point.error for point in shown], marks=True),
        line("no noise (mle)", betas, plain, dash=True, colour=-1),
    ]
    return curves(
        "Test error",
        "beta",
        "error in %",
        lines,
        log_x=True,
        log_y=True,
        caption="A moderate price costs nothing or helps; from a price near 1 on a code is not "
        "worth having.",
    )
