"""MNIST with weight uncertainty, and how many weights the posterior gives away (Blundell et al.

2015, table 1 and figure 5).

Perceptrons with two hidden layers under maximum likelihood, dropout, a Gaussian prior and the scale
mixture of two Gaussians. Pixels are divided by 126 as in the paper. Mixture, learning rate and
warm-up were chosen on the last 10,000 training images (``num_data=50000``); the table is then
trained on all of them. The KL's weight rises to 1 over the whole fit: with weight 1 from the start
(``schedule="constant"``) it underfits, which is what others found when they ran this table again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from credo.bnn import BNN
from credo.core.errors import SettingError
from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.nets import mlp
from credo.posteriors import MeanField
from credo.priors import scale_mixture
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import curves, line
from credo_reproduce.probes import images

#: Test error in per cent by number of units: of the paper, and of independent runs of the 1200-unit
#: nets.
PAPER: dict[str, dict[int, float]] = {
    "maximum likelihood": {400: 1.83, 800: 1.84, 1200: 1.88},
    "dropout": {400: 1.51, 800: 1.33, 1200: 1.36},
    "Gaussian prior": {400: 1.82, 800: 1.99, 1200: 2.04},
    "scale mixture": {400: 1.36, 800: 1.34, 1200: 1.32},
}
LIMIT = 1.4  # per cent, for the mixture with 800 or 1200 units
REMOVED = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)


@experiments.register("blundell")
@dataclass(frozen=True)
class Blundell(Experiment):
    """Four ways to fit the same perceptron to MNIST, and pruning by signal-to-noise."""

    name: ClassVar[str] = "blundell"
    title: ClassVar[str] = "Weight uncertainty on MNIST, and pruning by signal-to-noise"
    reference: ClassVar[str] = "Blundell et al. 2015, Weight uncertainty in neural networks."
    cost: ClassVar[str] = "6 minutes on one H200; a day on a CPU"
    needs: ClassVar[tuple[str, ...]] = ("mnist",)
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "widths": "20,30",
        "epochs": 2,
        "num_data": 500,
        "num_test": 500,
        "samples": 3,
    }

    widths: str = setting("400,800,1200", "Units of the two hidden layers, one column each.")
    epochs: int = setting(100, "Passes over the training images.", ge=1)
    batch: int = setting(128, "Examples in a step.", ge=1)
    lr: float = setting(1e-3, "Learning rate of Adam, falling along a cosine.", gt=0.0)
    weight: float = setting(0.75, "Share of the mixture's wide component.", gt=0.0, le=1.0)
    std1: float = setting(
        1.0, "Standard deviation of the wide component, and of the Gaussian prior.", gt=0.0
    )
    std2: float = setting(0.0025, "Standard deviation of the narrow one.", gt=0.0)
    schedule: str = setting(
        "linear", "KL weight schedule.", choices=("constant", "linear", "cosine", "blundell")
    )
    num_data: int = setting(
        60_000, "Training images; what is left of the 60,000 is a validation set.", ge=100
    )
    num_test: int = setting(10_000, "Test images, and at most as many for validation.", ge=1)
    samples: int = setting(50, "Posterior draws per prediction.", ge=1)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Fit every cell, then prune the largest mixture."""
        train, test = [(x * (255.0 / 126.0), y) for x, y in images("mnist", device)]
        held_out, test = [
            (x[: self.num_test], y[: self.num_test])
            for x, y in (_after(train, self.num_data), test)
        ]
        train = (train[0][: self.num_data], train[1][: self.num_data])
        widths = self._widths()
        errors: dict[str, dict[int, float]] = {label: {} for label in PAPER}
        valid: dict[str, dict[int, float]] = {label: {} for label in PAPER}
        parts: list[Row] = []
        last: BNN | None = None
        for width in widths:
            for label, fit in self._cells(width, seed, device).items():
                bnn = fit(train)
                errors[label][width] = _error(bnn, test, self.samples)
                if len(held_out[1]):
                    valid[label][width] = _error(bnn, held_out, self.samples)
                row = bnn.history[-1]
                parts.append(Row(f"{label}, {width}", {"nll": row["nll"], "KL": row["kl"] + 0.0}))
                say(
                    f"{label}, {width} units: {errors[label][width]:.2f} % test error, nll "
                    f"{row['nll']:.0f}, KL {row['kl']:.0f}"
                )
                last = bnn if label == "scale mixture" else last
        assert last is not None
        curve = self._prune(last, test)
        return Outcome(
            [_table("Test error, per cent", errors, widths, True)]
            + (
                [_table("Validation error, per cent", valid, widths, False)]
                if len(held_out[1])
                else []
            )
            + [
                _pruned(curve, widths[-1]),
                Table("Where the fits ended, nats per data set", ["nll", "KL"], parts),
            ],
            [_figure(curve, widths[-1])],
            _checks(errors, curve),
            [
                "Independent runs of the paper's 1200-unit nets report 2.60 (Gaussian), 2.38 "
                "(mixture) and 1.58 (MAP) per cent.",
                "The KL of the mixture is far above its minimum: the fit is stopped by its "
                "schedule, not by the ELBO's optimum.",
            ],
        )

    def _widths(self) -> list[int]:
        try:
            return [int(part) for part in self.widths.split(",")]
        except ValueError:
            raise SettingError(
                f"widths={self.widths!r}; expected whole numbers with commas, e.g. '400,800'."
            ) from None

    def _cells(
        self, width: int, seed: int, device: torch.device
    ) -> dict[str, Callable[[Any], BNN]]:
        """Label -> what fits that cell."""
        common: dict[str, Any] = {
            "epochs": self.epochs,
            "batch_size": self.batch,
            "lr": self.lr,
            "seed": seed,
            "device": device,
            "progress": False,
            "compile": device.type == "cuda",
        }
        vi = common | {"estimator": "local", "kl_schedule": self.schedule, "kl_warmup": self.epochs}

        def net(drop: bool = False) -> nn.Module:
            with isolated(mix(seed, width)):
                plain = mlp(784, (width, width), 10)
            if not drop:
                return plain
            layers = [nn.Dropout(0.2)]
            for layer in plain:
                layers += [layer, nn.Dropout(0.5)] if isinstance(layer, nn.ReLU) else [layer]
            return nn.Sequential(*layers)

        mixture = scale_mixture(self.weight, self.std1, self.std2)
        return {
            "maximum likelihood": lambda data: BNN(net()).fit(data, "mle", **common),
            "dropout": lambda data: BNN(net(True)).fit(data, "mle", **common),
            "Gaussian prior": lambda data: BNN(net(), prior=Normal(0.0, self.std1)).fit(
                data, "vi", **vi
            ),
            "scale mixture": lambda data: BNN(net(), prior=mixture).fit(data, "vi", **vi),
        }

    def _prune(self, bnn: BNN, test: tuple[Tensor, Tensor]) -> list[tuple[float, float]]:
        """(share removed, test error) with the weights of lowest abs(mean) / std set to zero."""
        family = next(f for f in bnn.posterior.factors if isinstance(f, MeanField))
        mean, raw = family.flat_mean.clone(), family.raw_std.clone()
        order = (mean.abs().log() - raw).argsort()
        curve = []
        for share in REMOVED:
            gone = order[: int(share * len(order))]
            family.flat_mean.data.copy_(mean)
            family.raw_std.data.copy_(raw)
            family.flat_mean.data[gone] = 0.0
            family.raw_std.data[gone] = -40.0  # exp of it is zero beside any weight
            curve.append((share, _error(bnn, test, self.samples)))
        family.flat_mean.data.copy_(mean)
        family.raw_std.data.copy_(raw)
        return curve


def _after(data: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
    return data[0][count:], data[1][count:]


def _error(bnn: BNN, data: tuple[Tensor, Tensor], samples: int) -> float:
    predictive = bnn.predict(data[0], samples, batch_size=5000)
    return 100.0 * float((predictive.label != data[1]).double().mean())


def _table(
    title: str, errors: dict[str, dict[int, float]], widths: list[int], beside: bool
) -> Table:
    columns = {width: f"{width} units" for width in widths}
    rows = [
        Row(
            label,
            {columns[w]: value for w, value in cells.items()},
            {columns[w]: PAPER[label].get(w) for w in widths} if beside else {},
        )
        for label, cells in errors.items()
    ]
    return Table(title, list(columns.values()), rows)


def _pruned(curve: list[tuple[float, float]], width: int) -> Table:
    columns = {share: f"{100 * share:.0f} %" for share, _ in curve}
    row = Row("test error, per cent", {columns[share]: error for share, error in curve})
    note = "The paper reports that 75 % go for nothing and 95 % for about 0.05 points."
    return Table(
        f"Scale mixture, {width} units: weights removed by signal-to-noise",
        list(columns.values()),
        [row],
        note,
    )


def _figure(curve: list[tuple[float, float]], width: int) -> dict[str, Any]:
    shares = [100 * share for share, _ in curve]
    return curves(
        f"Pruning by signal-to-noise, {width} units",
        "weights removed, per cent",
        "test error, per cent",
        [line("scale mixture", shares, [error for _, error in curve])],
        caption="Weights go in order of abs(mean) / std, lowest first.",
    )


def _checks(errors: dict[str, dict[int, float]], curve: list[tuple[float, float]]) -> list[Check]:
    wide = {w: e for w, e in errors["scale mixture"].items() if w >= 800} or errors["scale mixture"]
    best = min(wide, key=lambda w: wide[w])
    gap = min(
        errors["Gaussian prior"][w] - errors["scale mixture"][w] for w in errors["scale mixture"]
    )
    table = dict(curve)
    cost = table[0.75] - table[0.0]
    return [
        Check(
            "scale mixture",
            f"{wide[best]:.2f} % with {best} units",
            f"at most {LIMIT} %",
            wide[best] <= LIMIT,
        ),
        Check("mixture below Gaussian", f"by at least {gap:.2f} points", "at every width", gap > 0),
        Check("75 % of the weights removed", f"{cost:+.2f} points", "at most +0.1", cost <= 0.1),
    ]
