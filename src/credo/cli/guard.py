"""Errors at the command line: the user's are one line and exit code 2, ours a traceback and exit
code 1.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import typer

from credo.core.errors import CredoError, FindingWarning

# Conditions of the user's machine that no code of ours can mend.
_OUTSIDE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
}


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Run a command so that a ``CredoError`` or a full disk ends in ``credo: <message>`` on stderr
    and exit code 2.
    """

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            with said_findings():
                command(*args, **kwargs)
        except CredoError as error:
            _refuse(str(error))
        except BrokenPipeError:  # the reader, such as ``head``, has seen enough
            _close_output()
            raise typer.Exit(0) from None
        except OSError as error:
            if error.errno not in _OUTSIDE:
                _defect(error)
            where = f" ({error.filename})" if error.filename else ""
            _refuse(f"{error.strerror}{where}; free space or choose another place with --out.")
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:  # the last resort: whatever it is, it is ours
            _defect(error)

    return run


def say(message: str) -> None:
    """A line on stderr, so that stdout stays clean for results."""
    typer.echo(message, err=True)


@contextlib.contextmanager
def said_findings() -> Iterator[None]:
    """Findings that are warned of are a line on stderr, without the place in the source."""
    with warnings.catch_warnings():
        plain = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, FindingWarning):
                say(f"credo: {message}")
            else:
                plain(message, category, *where, **more)

        warnings.showwarning = show
        yield


def is_terminal() -> bool:
    """Whether someone is watching stderr, so that progress is worth drawing."""
    return sys.stderr.isatty()


def _close_output() -> None:
    """What is left of stdout goes nowhere, or Python would complain when it flushes it at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(message: str) -> None:
    say(f"credo: {' '.join(message.split())}")
    raise typer.Exit(2)


def _defect(error: BaseException) -> None:
    say("".join(traceback.format_exception(error)))
    say(f"credo: this is a defect in credo, not in your input ({type(error).__name__}: {error}).")
    raise typer.Exit(1)
