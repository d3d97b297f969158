"""What went wrong in a fit, as far as its own records tell: findings with evidence and remedy.

Each check reads the history, the posterior and the targets, or the outputs on some training rows,
which are drawn once for all. Where nothing is wrong there is no finding. A check is a function from
a :class:`~credo.engine.findings.Case` to a finding or None, registered in ``fit_checks``,
``chain_checks`` or ``network_checks`` under the name that its finding carries.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from credo.core.errors import CredoError, Finding, FindingError, FindingWarning
from credo.core.registry import Registry
from credo.engine import chain_checks, fit_checks, network_checks
from credo.engine.findings import Case, Check

#: name -> check, in the order in which findings are told
checks: Registry[Check] = Registry(
    "check of a fit", fit_checks.checks | chain_checks.checks | network_checks.checks
)


def diagnose(case: Case) -> list[Finding]:
    """The findings of all checks; empty where nothing is wrong. A check that cannot be made, as of
    a likelihood that cannot be copied, is a finding itself: a fit that is done must not be lost.
    """
    found = []
    for name, check in checks.items():
        if name in chain_checks.checks and not case.method.is_sampler:
            continue
        try:
            finding = check(case)
        except (RuntimeError, CredoError) as error:
            evidence = f"{name!r} could not be checked: {str(error).splitlines()[0]}"
            finding = Finding("not checked", "warning", evidence, "look at predictions yourself")
        found += [] if finding is None else [finding]
    return found


def tell(findings: Sequence[Finding], strict: bool = False) -> None:
    """Warn of each finding; with ``strict`` all of them are one error, and the fit is kept."""
    if strict and findings:
        raise FindingError(" ".join(finding.sentence for finding in findings))
    for finding in findings:
        warnings.warn(finding.sentence, FindingWarning, stacklevel=4)
