"""One cell of the panel of defaults: a method, a problem and a seed, fitted with no setting changed
(or with one trial of a search), and what came of it in a small file.
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from credo.bnn import BNN
from credo.core.atomic import write_json
from credo.core.errors import CredoError, RunError
from credo.core.seeds import isolated
from credo.engine.diagnose import checks
from credo.generative import VAE
from credo.methods import make_method, methods
from credo_reproduce.defaults_problems import LATENT, OBSERVED, PROBLEMS, Problem, base_nll
from credo_reproduce.defaults_search import prior_of, trial
from credo_reproduce.defaults_targets import distance, exact_nll

FORMAT = 1  # of the files; a new number makes old ones count for nothing


@final
@dataclass(frozen=True)
class Cell:
    """What is fitted; ``trial`` 0 is the defaults, from 1 on one of the search."""

    method: str
    problem: str
    seed: int
    trial: int = 0

    def digest(self) -> str:
        """A short name of what the method's defaults are: other ones make another cell."""
        settings = make_method(self.method, {}).settings()
        text = json.dumps([FORMAT, self.method, settings], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def file(self, store: Path) -> Path:
        """Where it is kept."""
        name = f"{self.problem}-{self.method}-{self.seed}-{self.trial:02d}-{self.digest()}.json"
        return store / name

    def result(self, status: str, **what: Any) -> dict[str, Any]:
        """The content of the file: "fitted", "refused" before the fit, "gave up" in it with a
        sentence, "failed" or "time".
        """
        findings = {} if status == "fitted" else {"findings": []}
        return asdict(self) | {"digest": self.digest(), "status": status} | findings | what


class OutOfTime(BaseException):
    """The fit has taken longer than a cell may; no ``except Exception`` stops it."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise :class:`OutOfTime` in the block after so many seconds; in a main thread only."""

    def ring(number: int, frame: Any) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def timed_checks(spent: list[float]) -> Iterator[None]:
    """Add the seconds of every check of a fit to ``spent``."""

    def timed(check: Any) -> Any:
        def run(*case: Any) -> Any:
            started = time.perf_counter()
            try:
                return check(*case)
            finally:
                spent.append(time.perf_counter() - started)

        return run

    before = dict(checks)
    checks.update({n: replace(check, run=timed(check.run)) for n, check in before.items()})
    try:
        yield
    finally:
        checks.update(before)


def measure(cell: Cell, limit: float) -> dict[str, Any]:
    """Fit for at most ``limit`` seconds and judge by the test part."""
    problem = PROBLEMS[cell.problem](cell.seed)
    given: dict[str, Any] = {}
    if cell.trial:
        count = len(problem.train[1])
        given = trial(cell.method, cell.problem, cell.seed, cell.trial, count)
    stated = {"settings": dict(given), "limit": limit}
    spent: list[float] = []
    started = time.perf_counter()
    try:
        with warnings.catch_warnings(), at_most(limit), timed_checks(spent):
            warnings.simplefilter("ignore")  # findings are read from the fit
            model = fit(cell, problem, given)
    except OutOfTime:
        return cell.result("time", seconds=time.perf_counter() - started, **stated)
    except CredoError as error:
        # what cannot be fitted is refused by a kind of its own, what goes wrong in a fit is not
        status = "gave up" if type(error) is CredoError else "refused"
        return cell.result(status, why=reason(error), **stated)
    except Exception as error:  # whatever a fit may raise is what the panel is to find
        return cell.result("failed", why=reason(error), **stated)
    stated |= {"seconds": time.perf_counter() - started, "diagnose_seconds": sum(spent)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cell.result("fitted", **stated, **judged(cell, problem, model))
    except Exception as error:
        return cell.result("failed", why=f"after the fit: {reason(error)}", **stated)


def reason(error: BaseException) -> str:
    """One line: the message of an error that says what to do, else its kind too."""
    text = (str(error).splitlines() or [""])[0]
    return text if isinstance(error, CredoError) else f"{type(error).__name__}: {text}"


def fit(cell: Cell, problem: Problem, given: dict[str, Any]) -> BNN | VAE:
    """The model of a problem, fitted with nothing but what is given."""
    if problem.kind == "generative":
        with isolated(cell.seed):
            encoder, decoder = nn.Linear(OBSERVED, 2 * LATENT), problem.network()
        model = VAE(encoder, decoder, LATENT, problem.likelihood)
        return model.fit(problem.train[0], cell.method, seed=cell.seed, progress=False, **given)
    bnn = problem.bnn(prior_of(given))
    return bnn.fit(problem.train, cell.method, seed=cell.seed, progress=False, **given)


def judged(cell: Cell, problem: Problem, model: BNN | VAE) -> dict[str, Any]:
    """Findings, how the fit ended, and its predictions on the test part."""
    bnn = model if isinstance(model, BNN) else model.bnn
    found: dict[str, Any] = {
        "findings": [
            {"name": f.name, "severity": f.severity, "evidence": f.evidence} for f in bnn.diagnose()
        ],
        "ended": bnn.history[-1].get("ended") if bnn.history else None,
        "base_nll": base_nll(problem),
    }
    exact = exact_nll(problem)
    found |= {} if exact is None else {"exact_nll": exact}
    if isinstance(model, VAE):
        samples = 1 if cell.method in ("map", "mle") else 20
        density = model.log_marginal(problem.test[0], k=500, samples=samples, seed=cell.seed)
        scores = {"nll": -float(density.mean())}
    else:
        scores = model.evaluate(problem.test, seed=cell.seed)
    if problem.kind == "conjugate" and not cell.trial:
        units = bnn.standardised  # the posterior's, as the network sees its inputs
        if units is not None:
            x, y = problem.train
            problem = problem._replace(train=(units.inputs(x, x.dtype), y))
        scores |= distance(cell.method, problem, bnn.posterior, cell.seed)
    return found | {name: finite(value) for name, value in scores.items()}


def finite(value: float) -> float | None:
    """What JSON can hold."""
    return value if math.isfinite(value) else None


def keep(store: Path, cell: Cell, limit: float) -> None:
    """Measure a cell on one thread and write its file, whole or not at all."""
    torch.set_num_threads(1)
    write_json(cell.file(store), measure(cell, limit))


def finished(store: Path, limit: float = 0.0) -> tuple[dict[Cell, dict[str, Any]], int]:
    """The cells in a directory, and how many files are of other defaults than those of now.

    A cell that ran out of time counts as not finished where ``limit`` allows it more.
    """
    found: dict[Cell, dict[str, Any]] = {}
    others = 0
    for path in sorted(store.glob("*.json")):
        try:
            result = json.loads(path.read_text())
            cell = Cell(*(result[key] for key in ("method", "problem", "seed", "trial")))
            known = (
                cell.method in methods
                and cell.problem in PROBLEMS
                and result["digest"] == cell.digest()
            )
            late = result["status"] == "time" and result["limit"] < limit
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path} is not the file of a cell ({error!r}); move it away."
            ) from error
        if known and not late:
            found[cell] = result
        others += not known
    return found, others
