"""``--set name=value``: text from the command line, read as the kind its setting declares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from credo.cli.guard import say
from credo.core.errors import SettingError
from credo.core.synonyms import suggest, synonym

#: What commands that fit have options for: not to be given by --set.
FIT_OPTIONS = ("epochs", "batch_size", "lr", "seed")
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


def parse_settings(method: str, assignments: list[str]) -> dict[str, Any]:
    """Settings of a method from NAME=VALUE."""
    from credo.core.settings import describe
    from credo.methods import methods

    return parse_assignments(
        assignments, describe(methods[method]), f"Method {method!r}", FIT_OPTIONS
    )


def parse_assignments(
    pairs: Iterable[str], rows: list[dict[str, Any]], owner: str, options: tuple[str, ...] = ()
) -> dict[str, Any]:
    """``{"name": value}`` of texts ``name=value``; ``rows`` are the settings as
    ``core.settings.describe`` gives them, ``options`` what has an option of its own, such as "lr".

    Refuses text without ``=``, a name given twice, a name the owner does not have (naming the right
    or the nearest one), and a value that is not of the setting's kind. Short and former names are
    replaced by present ones.
    """
    known = {row["name"]: row for row in rows}
    others = {row[key]: row["name"] for row in rows for key in ("short", "formerly") if row[key]}
    former = {row["formerly"] for row in rows}
    values: dict[str, Any] = {}
    for pair in pairs:
        name, mark, text = pair.partition("=")
        name = name.strip()
        if not mark or not name:
            raise SettingError(
                f"--set {pair!r} is not of the form name=value, such as --set "
                f"{next(iter(known), 'name')}=1."
            )
        if name in former:
            say(f"credo: --set {name} is called {others[name]} now; use that name.")
        name = others.get(name, name)
        if name not in known:
            option = synonym(name, options)
            hint = f" Use --{option}.".replace("_", "-") if option else suggest(name, known)
            raise SettingError(f"{owner} has no setting {name!r}.{hint}")
        if name in values:
            raise SettingError(f"--set {name} is given twice; give it once.")
        values[name] = _read(name, text.strip(), known[name], owner)
    return values


def _read(name: str, text: str, row: dict[str, Any], owner: str) -> Any:
    if text.lower() in ("none", "null") and row["default"] is None:
        return None
    kind = row["kind"]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    for reader in (_READERS[k] for k in _ORDER if k in kinds):
        try:
            return reader(text)
        except ValueError:
            continue
    if any(k not in _READERS for k in kinds):
        return _json_or_text(text)
    raise SettingError(f"{owner}: {name}={text!r} is not valid; expected {row['range']}.")


def _bool(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise ValueError(text)


def _numbers(text: str) -> tuple[float, ...]:
    """``-1,0,1`` or ``[-1, 0, 1]``."""
    return tuple(float(part) for part in text.strip("[]() ").split(","))


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


_READERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: _bool,
    tuple: _numbers,
    str: str,
}
_ORDER = (bool, int, float, str, tuple)  # the narrowest kind that takes the text wins
