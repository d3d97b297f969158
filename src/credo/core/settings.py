"""What users give by name. Settings are frozen dataclasses; the metadata of a field drives
validation, CLI flags and docs. Arguments and settings may have other names: a short form for good,
or an earlier one, accepted for a release with a warning.

For example::

    @dataclass(frozen=True)
    class Config:
        lr: float = setting(1e-3, "Learning rate.", gt=0.0)
        estimator: str = setting("local", "How noise enters.", choices=("local", "weights"))
        num_particles: int = setting(20, "Particles.", ge=1, formerly="particles")
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import warnings
from abc import ABCMeta
from collections.abc import Callable, Container, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from credo.core.errors import SettingError, nearest
from credo.core.synonyms import suggest

P = ParamSpec("P")
R = TypeVar("R")


def setting(
    default: Any,
    help: str,
    *,
    gt: float | None = None,
    ge: float | None = None,
    le: float | None = None,
    choices: tuple[Any, ...] | None = None,
    kind: type | tuple[type, ...] | None = None,
    short: str | None = None,
    formerly: str | None = None,
) -> Any:
    """A dataclass field with its documentation and its bounds; None is always allowed where it is
    the default.

    ``short``: another name that is accepted too; ``formerly``: one that is accepted with a warning.
    """
    bounds = {"gt": gt, "ge": ge, "le": le, "short": short, "formerly": formerly}
    if kind is None and default is not None:
        kind = (int, float) if isinstance(default, float) else type(default)
    metadata = {"help": help, "choices": choices, "kind": kind} | {
        k: v for k, v in bounds.items() if v is not None
    }
    return field(default=default, metadata=metadata)


def describe(config: type | Any) -> list[dict[str, Any]]:
    """One row per setting: name, default, help and the values it takes; and the other names that
    are accepted for it.
    """
    return [
        {
            "name": f.name,
            "default": f.default,
            "help": f.metadata.get("help", ""),
            "range": _range(f),
            "kind": f.metadata.get("kind"),
            "short": f.metadata.get("short"),
            "formerly": f.metadata.get("formerly"),
        }
        for f in fields(config)
        if f.metadata
    ]


def validate(config: Any, owner: str) -> None:
    """Check every field that carries metadata; the error names the setting, the value and what
    would do.
    """
    for f in fields(config):
        if f.metadata:
            _check(f, getattr(config, f.name), owner)


def other_names(config: type) -> dict[str, str]:
    """Short and former names of settings, each with the present one."""
    named = ((f.metadata.get(key), f.name) for f in fields(config) for key in ("short", "formerly"))
    return {other: name for other, name in named if other is not None}


def present_settings(
    given: Mapping[str, Any],
    config: type,
    owner: str,
    *,
    beside: tuple[str, ...] = (),
    warn: bool = True,
) -> dict[str, Any]:
    """``given`` under the present names of settings; unknown names are refused with a suggestion,
    which may be one of the names ``beside`` them.

    Former names are warned about, unless they are those of a stored config (``warn=False``).
    """
    known = [f.name for f in fields(config)]
    others = other_names(config)
    for name in given:
        if name not in known and name not in others:
            hint = suggest(name, [*known, *beside])
            raise SettingError(f"{owner} has no setting {name!r}.{hint}")
    if not others.keys() & given.keys():
        return dict(given)
    former = {f.metadata.get("formerly") for f in fields(config)} if warn else ()
    return present_names(given, others, owner, former)


class Configurable(ABCMeta):
    """The type of a class of settings: its calls take settings under their short and former names
    too, and answer an unknown name with the right one.
    """

    if not TYPE_CHECKING:  # for a type checker the arguments are the fields, under present names

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            others = other_names(cls)
            given = dict(kwargs)
            if set(kwargs) >= {f.name for f in fields(cls)}:
                # dataclasses.replace gives every field the value it has: what is said beside
                # them is the change.
                for name in kwargs.keys() & others.keys():
                    given.pop(others[name], None)
            taken = inspect.signature(cls).parameters
            unknown = [name for name in given if name not in taken and name not in others]
            if unknown:
                hint = suggest(unknown[0], taken)
                raise SettingError(f"{cls.__name__} has no setting {unknown[0]!r}.{hint}")
            former = {f.metadata.get("formerly") for f in fields(cls)}
            if others.keys() & given.keys():
                given = present_names(given, others, cls.__name__, former)
            return super().__call__(*args, **given)

    @property
    def __signature__(cls) -> inspect.Signature:
        """That of ``__init__``, which the call above would hide."""
        made = inspect.signature(cls.__init__)
        return made.replace(parameters=list(made.parameters.values())[1:])


def _check(f: Field[Any], value: Any, owner: str) -> None:
    meta = f.metadata
    if value is None and f.default is None:
        return
    ok = True
    kind = meta.get("kind")
    if kind is not None:
        wants_bool = kind is bool or (isinstance(kind, tuple) and bool in kind)
        ok = isinstance(value, kind) and not (isinstance(value, bool) and not wants_bool)
    if ok and isinstance(value, float):
        ok = math.isfinite(value)
    if ok and meta.get("choices") is not None and isinstance(value, str):
        ok = value in meta["choices"]
    if ok and isinstance(value, (int, float)) and not isinstance(value, bool):
        ok = (
            value > meta.get("gt", -math.inf)
            and value >= meta.get("ge", -math.inf)
            and value <= meta.get("le", math.inf)
        )
    if not ok:
        hint = ""
        if isinstance(value, str) and meta.get("choices"):
            hint = nearest(value, meta["choices"])
        raise SettingError(f"{owner}: {f.name}={value!r} is not valid; expected {_range(f)}.{hint}")


def _range(f: Field[Any]) -> str:
    meta = f.metadata
    kind = meta.get("kind")
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if meta.get("choices"):
        switch = ("true", "false") if bool in kinds else ()
        return "one of " + ", ".join(map(str, (*switch, *meta["choices"])))
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if float in kinds:
        kinds = tuple(k for k in kinds if k is not int)
    text = (
        " or ".join(words.get(k, getattr(k, "__name__", str(k))) for k in kinds if k is not None)
        or "a value"
    )
    signs = {"gt": ">", "ge": ">=", "le": "<="}
    limits = [f"{sign} {meta[k]}" for k, sign in signs.items() if k in meta]
    if limits:
        text += " " + " and ".join(limits)
    if f.default is None or f.default is MISSING:
        text += " or None"
    return text


def whole(name: str, value: Any) -> int:
    """``value``, refused by ``name`` unless it is a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingError(f"{name}={value!r} is not valid; expected a whole number.")
    return value


def positive(name: str, value: Any, default: Any) -> Any:
    """``value`` or the default, refused by ``name`` unless it is finite, above 0, and whole where
    the default is.
    """
    value = default if value is None else value
    only_whole = isinstance(default, int) and not isinstance(default, bool)
    if (
        isinstance(value, bool)
        or not isinstance(value, int if only_whole else (int, float))
        or not 0 < value < math.inf
    ):
        raise SettingError(
            f"{name}={value!r} is not valid; expected a {'whole ' if only_whole else ''}number "
            "above 0."
        )
    return value


def check_share(name: str, value: float | None, example: float) -> None:
    """Refuse what is not above 0 and below 1."""
    if value is not None and not 0.0 < value < 1.0:
        raise SettingError(
            f"{name} {value} is not valid; expected a number above 0 and below 1, such as "
            f"{example:g}."
        )


def check_sizes(owner: str, **sizes: int) -> None:
    """Refuse sizes of a network that are not whole numbers above zero, naming the first bad one."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise SettingError(
                f"{owner}: {name}={size!r} is not valid; expected a whole number above 0."
            )


# --- other names of arguments and settings --------------------------------------------------------


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
