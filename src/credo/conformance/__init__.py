"""The checks that every method must pass, shipped so that third parties can run them on methods of
their own.

``python -m credo.conformance`` runs them on every registered method,
``credo.conformance.check("vi")`` on one of them and returns a list of results. A method that is not
registered is given as its class.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from credo.conformance import group_targets  # noqa: F401  (registers targets)
from credo.conformance.problems import Conjugate, conjugate, examples
from credo.conformance.suite import Candidate, Failure, checks
from credo.methods import Method, methods

__all__ = [
    "Candidate",
    "Conjugate",
    "Failure",
    "Result",
    "check",
    "checks",
    "conjugate",
    "examples",
]


@dataclass(frozen=True)
class Result:
    """One check of one method: passed, failed with a reason, or excepted with the method's declared
    reason.
    """

    method: str
    check: str
    status: str
    reason: str
    seconds: float


def check(method: str | type[Method], only: str | None = None) -> list[Result]:
    """Run all checks (or one) on a registered name or a method class."""
    kind = methods[method] if isinstance(method, str) else method
    names = checks.names() if only is None else [only]
    return [_run(kind, name) for name in names]


def _run(kind: type[Method], name: str) -> Result:
    if name in kind.exceptions:
        return Result(kind.name, name, "excepted", kind.exceptions[name], 0.0)
    start = time.perf_counter()
    try:
        checks[name](Candidate(kind))
    except Exception as error:  # a method that raises has failed; the other checks still run
        reason = str(error) if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
        return Result(kind.name, name, "failed", reason, time.perf_counter() - start)
    return Result(kind.name, name, "passed", "", time.perf_counter() - start)
