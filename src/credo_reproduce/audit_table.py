"""How far every method is from the truth, and at what cost: all registered methods on three fixed
problems, against a long HMC reference.

Distances are of predictions at test inputs (see ``credo.audit.compare``), each beside the
reference's distance from itself, which is what an exact method would reach with as many draws.
Noise and prior are fixed, so that all methods approximate one posterior per problem.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from credo import audit
from credo.bnn import BNN
from credo.core.errors import CredoError, SettingError, nearest
from credo.core.settings import setting
from credo.methods import methods
from credo_reproduce.audit_problems import DESCENT, NOT_APPLICABLE, PROBLEMS, SETTINGS, Problem
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table
from credo_reproduce.plots import bars

COLUMNS = (
    "total variation",
    "±",
    "Wasserstein",
    "sd ratio",
    "mean error",
    "nll difference",
    "calibration difference",
    "seconds",
)
KEYS = (
    "total_variation",
    "total_variation_error",
    "wasserstein",
    "sd_ratio",
    "mean_shift",
    "nll_difference",
    "calibration_difference",
)
STOCHASTIC = ("sgld", "psgld", "sghmc", "csgmcmc")
FEW = {
    "epochs": 3,
    "num_warmup": 4,
    "num_draws": 8,
    "thin": 1,
    "num_proposals": 100,
    "num_moves": 5,
    "num_particles": 4,
    "num_members": 3,
    "num_cycles": 2,
    "start": 0.0,
    "compile": False,
}


@experiments.register("audit")
@dataclass(frozen=True)
class AuditTable(Experiment):
    """Every method against the truth."""

    name: ClassVar[str] = "audit"
    title: ClassVar[str] = "How far every method is from the true posterior"
    reference: ClassVar[str] = (
        "Izmailov et al. 2021, What are Bayesian neural network posteriors really like? (the "
        "measures)"
    )
    cost: ClassVar[str] = "an hour on one CPU core"
    needs: ClassVar[tuple[str, ...]] = ("uci_yacht",)
    quick_settings: ClassVar[dict[str, Any]] = {"epochs": 3, "num_warmup": 20, "num_draws": 20}

    problems: Any = setting(
        "all", "Which problems: names with commas between them, or all.", kind=(str, tuple, list)
    )
    methods: Any = setting("all", "Which methods, likewise.", kind=(str, tuple, list))
    epochs: int = setting(4000, "Steps of methods that descend.", ge=1)
    num_warmup: int = setting(1000, "Warm-up of the reference.", ge=1)
    num_draws: int = setting(2000, "Draws of each of the reference's four chains.", ge=8)

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """One table per problem."""
        tables, figures, checks = [], [], []
        names = chosen("problems", self.problems, list(PROBLEMS))
        audited = chosen("methods", self.methods, methods.names())
        for name in names:
            problem = PROBLEMS[name]()
            say(f"{name}: reference")
            started = time.perf_counter()
            truth = self._reference(problem, device, seed)
            seconds = time.perf_counter() - started
            mixed = audit.converged(truth, problem.test[0])
            checks.append(
                Check(
                    f"{name}: the reference has converged",
                    mixed.text,
                    "R-hat below 1.05, 100 effective draws",
                    mixed.ok,
                )
            )
            rows = [self._row(problem, method, truth, device, seed, say) for method in audited]
            tables.append(_table(problem, rows, mixed.text, seconds))
            figures.append(_figure(problem, rows))
            checks += _checks(problem, rows)
        return Outcome(tables, figures, checks)

    def _reference(self, problem: Problem, device: torch.device, seed: int) -> BNN:
        moves = {
            "num_warmup": self.num_warmup,
            "num_draws": self.num_draws,
            "compile": not self.quick,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # convergence is a check of its own
            return audit.reference(
                problem.bnn(), problem.train, seed=seed + 1, progress=False, device=device, **moves
            )

    def _row(
        self, problem: Problem, method: str, truth: BNN, device: torch.device, seed: int, say: Say
    ) -> Row:
        if method in NOT_APPLICABLE:
            return Row(method, {"total variation": NOT_APPLICABLE[method]})
        given: dict[str, Any] = dict(SETTINGS.get(method, DESCENT)) | (
            {"lr": problem.lr} if method in STOCHASTIC else {}
        )
        if methods[method].takes_epochs:
            given["epochs"] = self.epochs
        if self.quick:
            given |= {key: value for key, value in FEW.items() if key in given}
        started = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                given = {"batch_size": len(problem.train[1])} | given
                bnn = problem.bnn().fit(
                    problem.train, method, seed=seed, progress=False, device=device, **given
                )
        except CredoError as error:
            return Row(
                method, {"total variation": str(error).split(";")[0].split(". ")[0].rstrip(".")}
            )
        seconds = time.perf_counter() - started
        found = audit.compare(bnn, truth, *problem.test)
        say(
            f"{problem.name}: {method}, total variation {found['total_variation']:.3f}, "
            f"{seconds:.0f} s"
        )
        measured: dict[str, Any] = {
            label: found[key] for label, key in zip(COLUMNS, KEYS, strict=False)
        }
        measured |= {
            "agreement": found.get("agreement"),
            "ceiling": found["total_variation_ceiling"],
            "seconds": seconds,
        }
        return Row(method, measured)


def chosen(setting: str, given: Any, known: list[str]) -> list[str]:
    """The names in a setting: all of them, or those given; an unknown one is refused with the
    nearest.
    """
    names = (
        known
        if given == "all"
        else [part.strip() for part in given.split(",")]
        if isinstance(given, str)
        else list(given)
    )
    for name in names:
        if name not in known:
            raise SettingError(
                f"Unknown {setting.removesuffix('s')} {name!r}.{nearest(name, known)}"
            )
    return names


def _value(row: Row) -> float | None:
    value = row.measured["total variation"]
    return None if isinstance(value, str) or value is None else float(value)


def _table(problem: Problem, rows: list[Row], mixed: str, seconds: float) -> Table:
    rows = sorted(rows, key=lambda row: (_value(row) is None, _value(row) or 0.0))
    ceiling = next((row.measured["ceiling"] for row in rows if "ceiling" in row.measured), None)
    columns = [
        *(["agreement"] if any(row.measured.get("agreement") is not None for row in rows) else []),
        *COLUMNS,
    ]
    halves = (
        f" Two halves of the reference's chains differ by a total variation of {ceiling:.4f}."
        if ceiling is not None
        else ""
    )
    note = f"Reference: HMC, {seconds:.0f} s; {mixed}{halves}"
    return Table(
        f"{problem.name}: distance from the true posterior's predictions", columns, rows, note
    )


def _figure(problem: Problem, rows: list[Row]) -> dict[str, Any]:
    known = sorted((value, row.label) for row in rows if (value := _value(row)) is not None)
    return bars(
        f"{problem.name}: total variation from the truth",
        [label for _, label in known],
        [value for value, _ in known],
        "total variation",
        caption="Of the predictive distributions at test inputs; 0 is the truth.",
    )


def _checks(problem: Problem, rows: list[Row]) -> list[Check]:
    """Methods that are exact in the limit come nearer than mean-field variational inference and
    than a point.
    """
    known = {row.label: value for row in rows if (value := _value(row)) is not None}
    pairs = [
        (exact, other)
        for exact in ("hmc", "nuts")
        for other in ("vi", "map")
        if exact in known and other in known
    ]
    return [
        Check(
            f"{problem.name}: {exact} is nearer than {other}",
            f"{known[exact]:.4f} against {known[other]:.4f}",
            "less",
            known[exact] < known[other],
        )
        for exact, other in pairs
    ]
