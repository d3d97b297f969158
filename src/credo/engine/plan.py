"""What a fit would do, before it runs: its length, what the problem chooses, its time and memory.

Everything but time and memory is read off the same objects that a fit is given; these two come from
a trial on them (``plan_timing.py``). Nothing of the user's is changed by it.
"""

from __future__ import annotations

import json
import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import numpy as np
import torch

from credo.core.errors import DataError, SettingError
from credo.core.seeds import put_state, take_state
from credo.data.checks import Asked
from credo.engine.fit_job import FitJob, FitOptions
from credo.engine.method import Method
from credo.engine.model import Model
from credo.engine.plan_timing import PATIENCE, Timing, compiles
from credo.engine.trial import alternatives


@final
@dataclass(frozen=True)
class Plan:
    """What ``BNN.fit`` would do with the same arguments.

    ``batch_size``: examples per step. ``epochs`` and ``steps`` are the most that there may be, and
    with ``settles`` there are fewer where the objective has settled; the steps of a sampler are its
    moves, which have no epochs, and a closed form has neither. ``settings``: all of the method's,
    with the values that the problem ``chosen``. ``seconds``: of all steps, from a trial on this
    machine; None where it cannot be told. ``memory`` in bytes: the network twice, what is learned
    with its gradient and the optimizer's state, and the draws that are stored; without data and
    activations, except on a GPU, where it is at least the peak of the trial.
    """

    method: str
    num_data: int
    num_weights: int
    num_points: int
    batch_size: int
    batches: int
    epochs: int | None
    steps: int | None
    settles: bool
    lr: float | None
    settings: Mapping[str, Any]
    chosen: tuple[str, ...]
    num_chains: int | None
    num_draws: int | None
    seconds: float | None
    memory: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return json.loads(json.dumps(asdict(self)))

    def rows(self) -> list[tuple[str, str]]:
        """What it is about, and what is to be said of it."""
        batch = f"{self.batch_size:,}" if self.batches > 1 else f"all {self.batch_size:,}"
        out = [("batch size", f"{batch}, {_count(self.batches, 'batch', 'batches')} per epoch")]
        most = "at most " if self.settles else ""
        if self.steps is None:
            out.append(("length", "no steps: a closed form" if self.lr is None else "not known"))
        elif self.epochs is None:
            out.append(("length", _count(self.steps, "move")))
        else:
            epochs = f"{most}{_count(self.epochs, 'epoch')}"
            out.append(("length", f"{epochs}, {_count(self.steps, 'step')}"))
        if self.num_draws is not None:
            chains = "" if self.num_chains is None else f" of each of {self.num_chains} chains"
            out.append(("draws", f"{self.num_draws:,}{chains}"))
        if self.lr is not None:
            out.append(("lr", f"{self.lr:.4g}"))
        values = [(name, self.settings[name]) for name in self.chosen]
        out += [(name, f"{_number(value)}, chosen by the problem") for name, value in values]
        took = "not known" if self.seconds is None else f"{most}about {_duration(self.seconds)}"
        return [*out, ("time", took), ("memory", f"about {_size(self.memory)}")]

    def __str__(self) -> str:
        weights = _count(self.num_weights, "random weight")
        points = f" and {_count(self.num_points, 'point parameter')}" if self.num_points else ""
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        lines = [f"{self.method} on {_count(self.num_data, 'example')}, {weights}{points}"]
        lines += [f"  {name:{width}}  {text}" for name, text in rows]
        return "\n".join([*lines, *self.notes])


def plan_of(
    method: Method,
    model: Model,
    data: Any,
    options: FitOptions,
    asked: Asked,
    dtype: torch.dtype | None,
    open_prior: bool,
) -> Plan:
    """The plan of a fit to these data with these options; the model is a plan's own.
    ``asked``: of standardising; ``open_prior``: whether the user gave no prior.
    """
    _check_repeatable(data, options.validation)
    silent = replace(options, run=None, progress=False, callbacks=(), max_seconds=None)
    with _unchanged(model.device, data, options.validation), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit will say it
        fit_job = FitJob.on(data, silent, method, model, asked, dtype)
        filled = method.for_problem(fit_job.problem)
        if options.run is None and method.settings().get("store") == "disk":
            raise SettingError(
                "store='disk' keeps draws in the run's directory; give one with run=."
            )
        timing = Timing.run(filled, model, fit_job)
        tried = alternatives(method, model, fit_job.source, options) if open_prior else {}
    before, settings = method.settings(), filled.settings()
    steps, seconds, limit = timing.steps(), timing.seconds(), options.max_seconds
    return Plan(
        method=filled.name,
        num_data=fit_job.source.num_data,
        num_weights=fit_job.problem.num_weights,
        num_points=sum(site.numel for site in model.point.values()),
        batch_size=timing.batch_size,
        batches=timing.batches,
        epochs=fit_job.epochs if timing.has_epochs else None,
        steps=steps,
        settles=timing.ran.settling,
        lr=None if steps is None and not timing.ran.gave_up else fit_job.lr,
        settings=settings,
        chosen=tuple(name for name in settings if settings[name] != before[name]),
        num_chains=settings.get("num_chains") if filled.is_sampler else None,
        num_draws=settings.get("num_draws") if filled.is_sampler else None,
        seconds=seconds if seconds is None or limit is None else min(seconds, limit),
        memory=timing.memory(),
        notes=(*_notes(timing, options), *_trial_notes(tried)),
    )


def _notes(timing: Timing, options: FitOptions) -> Iterator[str]:
    """What ends the fit, and what the estimate of its time assumes."""
    if timing.ran.settling:
        yield (
            f"The budget is {timing.steps():,} steps; it ends sooner when the objective has "
            "settled."
        )
    elif timing.has_epochs and options.epochs is None:
        yield "It takes all of its epochs, settled or not; epochs= gives another number."
    if options.max_seconds is not None:
        yield f"max_seconds={options.max_seconds:g} ends it, if it would take longer."
    leapfrog, moves = timing.leapfrog_steps(), len(timing.ran.durations)
    if leapfrog is not None:
        yield (
            f"The time is that of about {leapfrog:.3g} leapfrog steps per move, as in a trial of "
            f"{_count(moves, 'move')}."
        )
    if 0 < moves <= timing.short and not timing.method.takes_epochs:
        yield "The trial was over in its warm-up: moves may take another time after it."
    if compiles(timing.method):
        yield "Not timed: compile=True, and compiling alone takes longer than a plan may."
    elif timing.ran.gave_up:
        yield f"Not timed: in {PATIENCE:g} seconds of the trial not one step was done."
    elif timing.elapsed is None:
        yield "Not timed: it takes no steps, and part of the data does not tell of all."
    if timing.method.afterwards is not None and timing.steps() is not None:
        yield f"Not in time and memory: {timing.method.afterwards}."
    if timing.error is not None:
        yield f"The trial ended early: {timing.error}"


def _trial_notes(tried: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """What is chosen on held-out rows before, where anything is."""
    if tried:
        count = 1 + sum(map(len, tried.values()))
        names = " and ".join(name for name, values in tried.items() if values)
        yield (
            f"Before it, up to {count} fits to four fifths of the rows choose {names}; their time "
            "is not counted."
        )


def _check_repeatable(*data: Any) -> None:
    if any(isinstance(each, Iterator) for each in data):
        raise DataError(
            "The data can be iterated once only, and a plan would use them up; give them as "
            "tensors, a Dataset, a DataLoader or a list of batches."
        )


@contextmanager
def _unchanged(device: torch.device, *data: Any) -> Iterator[None]:
    """Put back all global random states, and those of the generators that loaders were given."""
    own = [each for loader in data for each in _generators(loader)]
    states = [each.get_state() for each in own]
    ours, numbers, python = take_state(device), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        put_state(device, ours)
        np.random.set_state(numbers)
        random.setstate(python)
        for each, before in zip(own, states, strict=True):
            each.set_state(before)


def _generators(loader: Any) -> list[torch.Generator]:
    samplers = (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    found = [getattr(each, "generator", None) for each in (loader, *samplers)]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    for most, unit, divisor in ((90, "s", 1), (5_400, "min", 60), (math.inf, "h", 3_600)):
        if seconds < most:
            return f"{seconds / divisor:.2g} {unit}"
    return "for ever"


def _size(count: int) -> str:
    value, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}"
