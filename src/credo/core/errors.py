"""Every error a user can cause, and what a fit may be found to suffer from.

A message says what was given, what was expected, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


class CredoError(Exception):
    """Base of all errors that the caller can mend; the command line turns it into exit code 2."""


class DataError(CredoError):
    """The data cannot be used as given: NaN, wrong shape, unseen category, ..."""


class SettingError(CredoError):
    """A setting is unknown or out of range."""


class RunError(CredoError):
    """A run directory cannot be read, written or resumed."""


class NetworkError(CredoError):
    """The network cannot be given a posterior as asked."""


def nearest(given: str, known: Iterable[str]) -> str:
    """``" Did you mean 'x'?"`` where something close exists, and the whole list in any case."""
    known = sorted(known)
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Known: {', '.join(known) or 'none'}."


class FindingWarning(UserWarning):
    """A fit has findings, or the inputs of a prediction."""


class FindingError(CredoError):
    """A fit has findings, and ``strict=True`` takes none."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: its name, how bad it is ("warning", or "serious" where predictions
    should not be used), what shows it, and what to do.
    """

    name: str
    severity: str
    evidence: str
    remedy: str
