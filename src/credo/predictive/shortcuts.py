"""Shortcuts: ways to predict without drawing weights, found by name.

Each is registered in the module that implements it, and that module is imported when the shortcut
is asked for: a prediction by draws loads none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from torch import Tensor

from credo.core.errors import SettingError
from credo.core.registry import Registry


@dataclass(frozen=True)
class Shortcut:
    """``outputs(model, posterior, x, buffers, samples, batch_size=...)`` gives outputs ``(S, N,
    F)`` that stand for the posterior's.

    ``functions(model, posterior, draws, x, buffers, batch_size)`` gives draws of functions that
    belong to the same prediction, where those of the network itself do not.
    """

    outputs: Callable[..., Tensor]
    functions: Callable[..., Tensor] | None = None


shortcuts: Registry[Shortcut] = Registry("shortcut")

#: Where credo's own shortcuts are registered.
MODULES = {
    "moments": "credo.engine.moment_outputs",
    "moments_full": "credo.engine.moment_outputs",
    "linear": "credo.curvature.linearised",
    "probit": "credo.curvature.linearised",
}


def shortcut_named(name: str) -> Shortcut:
    """The shortcut of this name, whose module is imported if it was not."""
    if name in MODULES:
        import_module(MODULES[name])
    return shortcuts[name]


def chosen_shortcut(asked: str | None, source: str, preferred: str | None) -> str | None:
    """The name of the shortcut to predict with: the one ``asked`` for, else what the method
    ``preferred``; None for draws of the weights.

    "mean", one pass with E[w], is a single draw and needs no :class:`Shortcut`.
    """
    known = ("mean", "weights", *dict.fromkeys([*MODULES, *shortcuts]))
    if asked is not None and asked not in known:
        raise SettingError(
            f"shortcut={asked!r}; expected None or one of {', '.join(map(repr, known))}."
        )
    if asked is None:
        return preferred if source == "posterior" else None
    if asked != "weights" and source != "posterior":
        raise SettingError(
            f"shortcut={asked!r} is about the posterior; with source={source!r} leave it out."
        )
    return None if asked == "weights" else asked
