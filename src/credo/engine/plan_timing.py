"""A method that runs for a moment, to see what a whole fit by it would take.

The method itself runs, on the model and the data that it would get: a descent on a few batches per
epoch, a sampler with a short warm-up. Its loop says how many steps it has and when one is done
(``FitJob.progress_bar``); after a second it is ended there, so what follows the loop is not run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any, final

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from credo.core.errors import CredoError
from credo.core.tree import num_rows, take, tensors
from credo.data.source import Arrays, Batch, Source
from credo.engine.fit_job import Advance, FitJob
from credo.engine.method import Method
from credo.engine.model import Model

SECONDS, MOVING = 0.7, 1.5  # of the trial of a descent and of a sampler, after its first step
PATIENCE = 20.0  # seconds for a first step
EPOCHS, BATCHES = 20, 8  # of the trial of a descent at most, and batches in each
WARMUP, DRAWS = 20, 40  # moves of the trial of a sampler at most
ROWS = 1_000  # that a method without steps is tried on at most


class _Over(Exception):
    """The trial has run for long enough."""


@final
@dataclass
class TimedJob(FitJob):
    """The fit job of a trial: it takes the time of every step of its loop, and ends it."""

    most: int = 1  #: steps of the loop, of which an epoch of descent is one
    limit: float = SECONDS  #: after the first step
    total: int | None = None  #: steps that the loop would take
    marks: list[float] = field(default_factory=list)  #: before its first step and after every one
    settling: bool = False  #: whether it would end when its objective has settled
    began: float = field(default_factory=time.perf_counter)
    gave_up: bool = False  #: before a first step was done
    synchronise: Callable[[], None] = field(default=lambda: None)

    def is_late(self, seconds: float, cools: bool) -> bool:
        """Never; but a loop says here whether it watches its objective."""
        self.settling = cools
        return False

    @contextmanager
    def progress_bar(self, total: int) -> Iterator[Advance]:
        """Where a loop says that it begins, how many steps it has, and that it has taken one."""
        self.total = total
        self._mark()

        def advance(count: int, text: str | None = None) -> None:
            if not count:
                return
            self._mark()
            taken = len(self.marks) - 1
            if taken >= min(self.most, total) or self.marks[-1] - self.marks[1] > self.limit:
                raise _Over

        yield advance

    def check(self, *_: Any) -> None:
        """Called at every forward pass of a module: a trial does not wait for a step for ever."""
        if len(self.marks) < 2 and time.perf_counter() - self.began > PATIENCE:
            self.gave_up = True
            raise _Over

    @property
    def durations(self) -> list[float]:
        """Of every step of the loop."""
        return [after - before for before, after in pairwise(self.marks)]

    def _mark(self) -> None:
        self.synchronise()
        self.marks.append(time.perf_counter())


@final
@dataclass(frozen=True)
class Timing:
    """What a moment of a method says of a whole fit by it.

    ``batch_size``, ``batches``: those of an epoch, of which the trial had ``few``. ``num_warmup``,
    ``short``: moves of the method's warm-up and of the trial's. ``elapsed``: seconds until the
    loop, or of everything where there is no loop; None where that was on part of the data.
    ``learned``: bytes of parameters, gradients and states of optimizers; ``peak``: on a GPU, of
    everything. ``error``: why it ended, where that was none of its own doing.
    """

    method: Method
    model: Model
    fit_job: FitJob
    ran: TimedJob
    batch_size: int
    batches: int
    few: int
    num_warmup: int
    short: int
    elapsed: float | None
    learned: int
    peak: int
    error: str | None

    @classmethod
    def run(cls, method: Method, model: Model, fit_job: FitJob) -> Timing:
        """Run it; what the method refuses is refused here."""
        size, batches = batching(fit_job)
        few = _few(model, fit_job.source, size, batches) if method.takes_epochs else batches
        closed = method.usual_steps(fit_job.problem, fit_job.batch_size) == 1
        rows = ROWS if closed else few * size
        part = method.takes_epochs and rows < len(fit_job.source.targets())
        num_warmup = method.settings().get("num_warmup") or 0
        short = min(num_warmup, WARMUP)
        given: dict[str, Any] = {n.name: getattr(fit_job, n.name) for n in fields(FitJob)}
        given |= {"history": []}
        if part:
            given |= {"source": _part(fit_job.source, rows, closed), "batch_size": size}
        ran = TimedJob(
            **given,
            most=EPOCHS if method.takes_epochs else short + DRAWS,
            limit=SECONDS if method.takes_epochs else MOVING,
            synchronise=_synchronise(model.device),
        )
        before = _allocated(model.device)
        began = time.perf_counter()
        learned, error = _watched(_brief(method, short), model, ran)
        elapsed = (ran.marks[0] if ran.marks else time.perf_counter()) - began
        return cls(
            method,
            model,
            fit_job,
            ran,
            batch_size=size,
            batches=batches,
            few=few,
            num_warmup=num_warmup,
            short=short,
            elapsed=None if ran.gave_up or (part and not ran.marks) else elapsed,
            learned=learned,
            peak=_peak(model.device, before),
            error=error,
        )

    @property
    def has_epochs(self) -> bool:
        """Whether the loop goes through epochs, in steps of an epoch or of a batch."""
        epochs = self.fit_job.epochs
        total = epochs if self.ran.gave_up else self.ran.total
        return self.method.takes_epochs and total in (epochs, epochs * self.few)

    def steps(self) -> int | None:
        """Steps or moves of a whole fit, or at most; None where there is no loop, or where the
        trial has not come to it.
        """
        if self.has_epochs:
            return self.fit_job.epochs * self.batches
        if self.ran.total is None:
            return None
        return self.ran.total + self.num_warmup - self.short

    def seconds(self) -> float | None:
        """Of a whole fit; None where the trial cannot tell."""
        steps, durations = self.steps(), self.ran.durations
        if self.elapsed is None or compiles(self.method):
            return None
        if steps is None or not durations:
            return self.elapsed
        if self.has_epochs and self.ran.total == self.fit_job.epochs:
            return self.elapsed + self.fit_job.epochs * self._epoch(durations)
        whole, short = (0, 0) if self.method.takes_epochs else (self.num_warmup, self.short)
        early, late = durations[1:short], durations[max(short, 1) :]
        late = late or durations[len(durations) // 2 :]
        return self.elapsed + whole * fmean(early or late) + (steps - whole) * fmean(late)

    def _epoch(self, durations: list[float]) -> float:
        """Seconds of an epoch: those of its batches, and what is done once in each."""
        rows = [row["seconds"] for row in self.ran.history]
        pairs = list(zip(durations, rows, strict=False))
        pairs = pairs[1:] or pairs  # the first does what is done once in a fit
        batch = median(row for _, row in pairs) / self.few
        rest = median(whole - row for whole, row in pairs)
        return self.batches * batch + max(rest, 0.0)

    def leapfrog_steps(self) -> float | None:
        """Per move after the warm-up, or in the last half of what there was."""
        rows = [row for row in self.ran.history if "steps" in row]
        late = [row for row in rows if not row["warmup"]] or rows[len(rows) // 2 :]
        return fmean(row["steps"] for row in late) if late else None

    def memory(self) -> int:
        """Bytes: the network twice, what is learned, and the draws that are stored."""
        values = [*self.model.net.parameters(), *self.model.net.buffers()]
        settings, sites = self.method.settings(), self.model.random.values()
        chains = settings.get("num_chains", 1) if self.method.is_sampler else 1
        draws = chains * settings.get("num_draws", 0) + (settings.get("num_particles") or 0)
        stored = draws * sum(site.numel * site.dtype.itemsize for site in sites)
        return max(2 * sum(map(_bytes, values)) + self.learned + stored, self.peak)


def batching(fit_job: FitJob) -> tuple[int, int]:
    """Examples in a batch, and batches in an epoch; a loader has its own of both."""
    source, asked = fit_job.source, fit_job.batch_size
    total, batches = len(source.targets()), source.num_batches(asked)
    size = min(asked or total, total)
    return (size if math.ceil(total / size) == batches else math.ceil(total / batches)), batches


def compiles(method: Method) -> bool:
    """Whether it compiles its step, which takes longer than a trial may."""
    return method.settings().get("compile") is True


def _brief(method: Method, warmup: int) -> Method:
    """The method with a short warm-up, nothing compiled, and no draws on disk."""
    settings = method.settings()
    changed: dict[str, Any] = {"num_warmup": warmup} if "num_warmup" in settings else {}
    changed |= {"compile": False} if compiles(method) else {}
    changed |= {"store": "memory"} if "store" in settings else {}
    return replace(method, **changed)


def _watched(method: Method, model: Model, ran: TimedJob) -> tuple[int, str | None]:
    """Run until it is over; bytes that its optimizers had, and the error that ended it."""
    optimizers: dict[int, torch.optim.Optimizer] = {}

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        optimizers[id(optimizer)] = optimizer

    error = None
    hooks = register_optimizer_step_post_hook(note), register_module_forward_pre_hook(ran.check)
    try:
        method.fit(model, ran)
    except _Over:
        pass
    except CredoError as raised:
        if len(ran.marks) < 2:  # not a number that went wrong on the way: it is refused
            raise
        error = str(raised)
    finally:
        for hook in hooks:
            hook.remove()
    ran.synchronise()
    return sum(map(_learned, optimizers.values())), error


def _few(model: Model, source: Source, size: int, batches: int) -> int:
    """Batches of an epoch of the trial: fewer where one takes long."""
    x = source.example(size)
    began = time.perf_counter()
    model.probe(x)
    seconds = time.perf_counter() - began
    return max(1, min(batches, BATCHES, int(SECONDS / (4 * seconds))))


def _part(source: Source, rows: int, alone: bool) -> Source:
    """So many examples of the data, evenly spaced where all are in memory, with the N of all, or
    ``alone`` with their own.
    """
    arrays = source.arrays()
    count = rows if alone and source.num_data == len(source.targets()) else source.num_data
    if arrays is None:
        return Source(_First(source, rows), count)
    x, y = arrays
    chosen = torch.arange(rows, device=y.device) * len(y) // rows
    return Source(Arrays(take(x, chosen), y[chosen]), count)


@final
class _First:
    """A feed of the first ``rows`` examples of every pass."""

    def __init__(self, source: Source, rows: int) -> None:
        self.source, self.rows = source, rows

    def batches(self, generator: torch.Generator | None, batch_size: int | None) -> Iterator[Batch]:
        """One pass; the last batch may be smaller."""
        left = self.rows
        for x, y in self.source(generator, batch_size):
            yield (x, y) if num_rows(x) <= left else (take(x, slice(0, left)), y[:left])
            left -= num_rows(x)
            if left <= 0:
                return


# --- bytes ----------------------------------------------------------------------------------------


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _learned(optimizer: torch.optim.Optimizer) -> int:
    """Of its parameters, of their gradients and of its state."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state = tensors([list(each.values()) for each in optimizer.state.values()])
    return 2 * sum(map(_bytes, params)) + sum(map(_bytes, state))


def _allocated(device: torch.device) -> tuple[int, int]:
    """In use on a GPU, now and at most."""
    if device.type != "cuda":
        return 0, 0
    return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)


def _peak(device: torch.device, before: tuple[int, int]) -> int:
    """By how much use has grown at most; 0 where an earlier peak hides it."""
    (used, highest), highest_now = before, _allocated(device)[1]
    return highest_now - used if highest_now > highest else 0


def _synchronise(device: torch.device) -> Callable[[], None]:
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else lambda: None
