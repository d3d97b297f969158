"""Arguments under earlier names: accepted for one release with a warning, or for good where a short
form is worth having.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Container, Mapping
from typing import Any, ParamSpec, TypeVar

from credo.core.errors import SettingError
from credo.core.synonyms import suggest

P = ParamSpec("P")
R = TypeVar("R")


def present_names(
    given: Mapping[str, Any], names: Mapping[str, str], owner: str, warned: Container[str] = ()
) -> dict[str, Any]:
    """``given`` with other names replaced by present ones (``names``: other -> present), in the
    same order.

    A use of one that is in ``warned`` is warned about. One thing under both names is refused.
    """
    out: dict[str, Any] = {}
    for name, value in given.items():
        now = names.get(name, name)
        if now in out or (now != name and now in given):
            raise SettingError(f"{owner}: {name} and {now} are the same; give {now} alone.")
        if name in warned:
            warnings.warn(
                f"{owner}: {name} is called {now} now; the old name goes with the next release.",
                FutureWarning,
                stacklevel=_level_of_caller(),
            )
        out[now] = value
    return out


def _level_of_caller() -> int:
    """The ``stacklevel`` for ``warnings`` of the first frame that is not in a file of credo."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("credo."):
        level, frame = level + 1, frame.f_back
    return level


def renamed(*, warn: bool = True, **names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of a function that also takes arguments under other names:
    ``@renamed(samples="num_samples")``.

    With ``warn`` each use of one is warned about. The signature shows the present names only. An
    argument that the function does not have is refused with a suggestion.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        missing = [name for name in names.values() if name not in parameters]
        if missing:
            raise TypeError(f"{function.__qualname__} has no argument {missing[0]!r} to rename to")
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            owner = function.__name__
            given = present_names(kwargs, names, owner, names if warn else ())
            for name in given:
                if name not in parameters and not takes_any:
                    known = [known for known in parameters if known != "self"]
                    raise SettingError(f"{owner} has no argument {name!r}.{suggest(name, known)}")
            return function(*args, **given)  # pyright: ignore[reportCallIssue]

        call.__dict__["other_arguments"] = dict(names)
        return call

    return decorate


def other_arguments(function: Callable[..., Any]) -> dict[str, str]:
    """What a :func:`renamed` function calls its arguments beside the present names: other ->
    present; nothing for any other function.
    """
    return dict(function.__dict__.get("other_arguments", {}))
