"""Every method, one line each."""

from credo.engine.method import Method, make_method, methods
from credo.methods.exact import Exact
from credo.methods.map import MAP
from credo.methods.mle import MLE
from credo.methods.vi import VI

__all__ = ["MAP", "MLE", "VI", "Exact", "Method", "make_method", "methods", "names"]


def names() -> list[str]:
    """Names of all registered methods."""
    return methods.names()
