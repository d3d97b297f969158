"""Run a network on many weights or examples at once by vmap, or in a loop where vmap cannot.

vmap has no rule for some operations (recurrent layers, branches on the data, writing in place), and
only trying tells. Both ways compute the same numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, final

import torch

T = TypeVar("T")
Undo = Callable[[], None]

#: What vmap raises where it has no rule; which of them depends on the operation.
UNSUPPORTED = (RuntimeError, NotImplementedError, ValueError)


@final
@dataclass
class VmapOrLoop:
    """``run(at_once, in_turn)``: the result of the first, or of the second from the time on when
    vmap could not run the first. That it loops is said in one warning.

    ``looping``: what a loop does, as the warning's first words ("Predicting draw by draw"); None
    says nothing. ``looped``: loop from the start. ``out_of_memory``: a GPU whose memory does not
    suffice for all at once is a reason to loop too; without it that error is raised.
    """

    looping: str | None
    looped: bool = False
    out_of_memory: bool = False
    _succeeded: bool = field(default=False, init=False)

    def __call__(
        self,
        at_once: Callable[[], T],
        in_turn: Callable[[], T],
        snapshot: Callable[[], Undo] | None = None,
        stacklevel: int = 2,
    ) -> T:
        """``snapshot``, for functions that change something: called before the first attempt, it
        gives a function that undoes what a failed attempt has changed. After the first success
        nothing is noted any more, and errors are raised. ``stacklevel``: of the warning, counted
        from the caller.
        """
        if self.looped:
            return in_turn()
        if self._succeeded and snapshot is not None:
            return at_once()
        undo = None if snapshot is None else snapshot()
        try:
            result = at_once()
        except UNSUPPORTED as error:
            if isinstance(error, torch.cuda.OutOfMemoryError) and not self.out_of_memory:
                raise
            reason = str(error).splitlines()[0]
        else:
            self._succeeded = True
            return result
        self.looped = True
        if undo is not None:
            undo()
        result = in_turn()  # if this fails too, its error is the one to see
        if self.looping is not None:
            warnings.warn(
                f"{self.looping}: vmap cannot run this network ({reason}).",
                stacklevel=stacklevel + 1,
            )
        return result
