"""What a sampler is to the loop over its moves, and that loop: chains go on from where they start,
a schedule says which moves give draws, draws go to memory or to disk, and a killed run is resumed
at the next move.

Move t takes its random numbers from (seed, t) alone and everything else from the state and from
what is fitted alongside, so a checkpoint is these two, as named tensors.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, final, get_type_hints

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo.core.errors import CredoError
from credo.core.seeds import generator, isolated, mix
from credo.engine.fit_job import FitJob
from credo.methods.sampling.parts.fitted_alongside import FittedAlongside


class Record(Protocol):
    """A named tuple of tensors and records: the state of a sampler, or the info of a move.

    Flat, by the names of the innermost fields, it is what a checkpoint stores:
    ``from_tensors(type(r), named_tensors(r))`` equals ``r``.
    """

    def _asdict(self) -> dict[str, Any]: ...


R = TypeVar("R")
S = TypeVar("S", bound=Record)


class Moves(ABC, Generic[S]):
    """Moves of C chains at once.

    A state is a record of all that the next move needs, so that a checkpoint
    is the state and what is fitted alongside. The info of a move is a record of diagnostics, per
    chain ``(C,)`` or for all ``()``, ``log_density`` among them. Random numbers come from
    ``source`` alone.
    """

    state_type: type[S]
    fitted_alongside: FittedAlongside

    @abstractmethod
    def start(self, position: Tensor, source: torch.Generator) -> S:
        """The state before the first move, of chains at ``position`` ``(C, P)``."""

    @abstractmethod
    def move(self, state: S, index: int, source: torch.Generator) -> tuple[S, Record]:
        """The state after move ``index``, and its info."""

    @abstractmethod
    def drawn(self, state: S) -> Tensor:
        """The positions ``(C, P)`` that are a draw of every chain."""

    def gradients(self, info: Any) -> float:
        """Gradients of all chains at once that the move with this info took."""
        return 1.0


@dataclass(frozen=True)
class DrawSchedule(ABC):
    """``num_warmup`` moves, then those that ``num_draws`` draws of every chain take."""

    num_warmup: int
    num_draws: int

    @abstractmethod
    def num_moves(self) -> int:
        """Moves in all."""

    @abstractmethod
    def draw_after(self, index: int) -> int | None:
        """The number of the draw that is taken after move ``index``, if one is."""

    @abstractmethod
    def row_after(self, index: int) -> bool:
        """Whether move ``index`` makes a row of the history; every draw does."""

    @abstractmethod
    def row_number(self, index: int) -> int:
        """The number of the last row up to move ``index``."""


@final
@dataclass(frozen=True)
class SteadySchedule(DrawSchedule):
    """A draw after every ``thin`` moves, and rows of the warm-up at the same pace."""

    thin: int = 1

    def num_moves(self) -> int:
        return self.num_warmup + self.num_draws * self.thin

    def draw_after(self, index: int) -> int | None:
        draw, rest = divmod(index - self.num_warmup + 1, self.thin)
        return draw - 1 if draw >= 1 and rest == 0 else None

    def row_after(self, index: int) -> bool:
        return (index - self.num_warmup + 1) % self.thin == 0

    def row_number(self, index: int) -> int:
        return index


@final
@dataclass(frozen=True)
class CyclicalSchedule(DrawSchedule):
    """Draws in the last part of each of ``num_cycles`` cycles, after a share of ``exploration``."""

    thin: int = 1
    num_cycles: int = 1
    exploration: float = 0.0

    @property
    def sampling(self) -> int:
        """Moves of a cycle that give draws."""
        return self.num_draws // self.num_cycles * self.thin

    @property
    def period(self) -> int:
        """Moves of a cycle."""
        return math.ceil(round(self.sampling / (1 - self.exploration), 6))

    def num_moves(self) -> int:
        return self.num_warmup + self.num_cycles * self.period

    def samples(self, index: int) -> bool:
        """Whether move ``index`` belongs to the sampling part of a cycle."""
        place = index - self.num_warmup
        return place >= 0 and place % self.period >= self.period - self.sampling

    def draw_after(self, index: int) -> int | None:
        cycle, place = divmod(index - self.num_warmup, self.period)
        draw, rest = divmod(place - (self.period - self.sampling) + 1, self.thin)
        return (
            cycle * (self.num_draws // self.num_cycles) + draw - 1
            if self.samples(index) and rest == 0
            else None
        )

    def row_after(self, index: int) -> bool:
        return self.draw_after(index) is not None or (
            not self.samples(index) and (index + 1) % self.thin == 0
        )

    def row_number(self, index: int) -> int:
        return index


@final
@dataclass(frozen=True)
class EpochSchedule(DrawSchedule):
    """One draw, with the last of ``num_warmup`` + 1 moves; a row after every epoch of
    ``num_batches`` moves.
    """

    num_batches: int = 1

    def num_moves(self) -> int:
        return self.num_warmup + 1

    def draw_after(self, index: int) -> int | None:
        """At the end of every epoch, so that a callback may stop there; the last one counts."""
        return 0 if self.row_after(index) else None

    def row_after(self, index: int) -> bool:
        return (index + 1) % self.num_batches == 0

    def row_number(self, index: int) -> int:
        """Epochs, not moves."""
        return (index + 1) // self.num_batches - 1


class Watch(Protocol):
    """Decides when chains of no given length end."""

    def end(self, draws: Tensor, spent: float, last: bool) -> dict[str, Any] | None:
        """Entries of the history's last row, ``ended`` among them, where chains end with these
        draws ``(C, D, P)`` after ``spent`` gradients; None where they go on.
        """
        ...

    def measured(self, draws: Tensor) -> dict[str, float]:
        """How well these have mixed."""
        ...


BY_CHAIN = ("log_density", "energy", "divergent")  # in rows chain by chain; the rest is averaged
_STATE, _ALONGSIDE, _SPENT = "state/", "more/", "spent"  # in the names of a checkpoint


def run_moves(
    name: str,
    moves: Moves[S],
    schedule: DrawSchedule,
    positions: Tensor,
    fit_job: FitJob,
    score: Callable[[Tensor], dict[str, float]] = lambda _: {},
    watch: Watch | None = None,
) -> Tensor:
    """Draws ``(C, D, P)`` of the method ``name``, by chains that start at ``positions`` ``(C, P)``,
    or where an earlier run was when it was killed.

    ``score`` adds to the last row of the history what it says of all draws; ``watch`` may end the
    chains before the schedule does. A network that draws random numbers by itself leaves the
    caller's alone.
    """
    device = positions.device
    state, first, spent = _restored(schedule, moves, fit_job)
    if state is None:
        with isolated(mix(fit_job.seed, "start"), device):
            state = moves.start(positions, generator(fit_job.seed, "start", device=device))
        _check_start(name, moves, state)
    state = pytree.tree_map(lambda tensor: tensor.to(device), state)
    draws = _room(moves.drawn(state), schedule.num_draws, fit_job)
    taken = [schedule.draw_after(index) for index in range(first)]
    count = max([draw + 1 for draw in taken if draw is not None], default=0)
    if watch is not None and fit_job.ended:  # the process died between its last move and its result
        return draws[:, :count].clone()
    began, saved, started = time.monotonic(), time.monotonic(), time.perf_counter()
    with fit_job.progress_bar(schedule.num_moves()) as advance:
        advance(first)
        for index in range(first, schedule.num_moves()):
            source = generator(fit_job.seed, "move", index, device=device)
            with isolated(mix(fit_job.seed, "ambient", index), device):
                state, info = moves.move(state, index, source)
            spent += 0.0 if watch is None else moves.gradients(info)
            draw = schedule.draw_after(index)
            if draw is not None:
                draws[:, draw] = moves.drawn(state).to(draws.device)
                count = draw + 1
            late = fit_job.is_late(time.monotonic() - began, False)
            if late and not count:
                raise CredoError(
                    f"{name}: max_seconds={fit_job.max_seconds:g} were over in move {index} of the "
                    f"warm-up; give more, or less than num_warmup={schedule.num_warmup}."
                )
            row, stop = None, False
            if schedule.row_after(index):
                seconds, started = time.perf_counter() - started, time.perf_counter()
                warm = index < schedule.num_warmup
                row = _row(schedule.row_number(index), warm, info, seconds)
                _check_row(name, row, draw is not None)
                last = index == schedule.num_moves() - 1
                told = {"ended": "draws"} if last else None
                if watch is not None and draw is not None:
                    told = watch.end(draws[:, :count], spent, last)
                if late and told is None:
                    told = {"ended": "seconds"}
                    told |= {} if watch is None else watch.measured(draws[:, :count])
                if told is not None:
                    row |= told | score(draws[:, :count])
                stop = fit_job.note(row) or (told is not None and not last)
            if fit_job.run is not None and (
                stop or time.monotonic() - saved >= fit_job.checkpoint_seconds
            ):
                fit_job.run.checkpoint(_checkpoint(state, moves, spent), index)
                saved = time.monotonic()
            advance(1, _text(row))
            if stop and not count:
                raise CredoError(
                    f"A callback stopped {name} at move {index}, before the first draw; nothing "
                    "was kept."
                )
            if stop:
                return draws[:, :count].clone()
    return draws


def _room(positions: Tensor, num_draws: int, fit_job: FitJob) -> Tensor:
    """Memory for draws ``(C, D, P)``: in a run, mapped from its file."""
    size = torch.Size((len(positions), num_draws, positions.shape[1]))
    if fit_job.run is None:
        return torch.empty(size, dtype=positions.dtype, device=positions.device)
    return fit_job.run.draws(size.numel(), positions.dtype).reshape(size)


def _checkpoint(state: Record, moves: Moves[Any], spent: float) -> dict[str, Tensor]:
    """The state, what is fitted alongside and the gradients so far, as named tensors."""
    alongside = moves.fitted_alongside.named_tensors()
    return (
        {f"{_STATE}{n}": t for n, t in named_tensors(state).items()}
        | {f"{_ALONGSIDE}{n}": t for n, t in alongside.items()}
        | {_SPENT: torch.tensor(spent, dtype=torch.float64)}
    )


def _restored(
    schedule: DrawSchedule, moves: Moves[S], fit_job: FitJob
) -> tuple[S | None, int, float]:
    """The state of the last checkpoint, if there is one, the move to go on with, and the gradients
    before it.
    """
    found = None if fit_job.run is None else fit_job.run.restore()
    if fit_job.run is not None:
        last = -1 if found is None else schedule.row_number(found[1])
        fit_job.history[:] = fit_job.run.history(last)
    if found is None:
        return None, 0, 0.0
    tensors, index = found
    moves.fitted_alongside.restore(_below(_ALONGSIDE, tensors))
    state = from_tensors(moves.state_type, _below(_STATE, tensors))
    return state, index + 1, float(tensors.get(_SPENT, 0.0))


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _not_finite(values: Any) -> list[int]:
    return [chain for chain, value in enumerate(values) if not math.isfinite(value)]


def _check_start(name: str, moves: Moves[S], state: S) -> None:
    """A chain that starts where there is no density would slow down the others, whose step size it
    shares.
    """
    sums = moves.drawn(state).double().sum(1).tolist()
    value = named_tensors(state).get("value")  # moves on batches do not evaluate their start
    bad = {*_not_finite(sums), *_not_finite(() if value is None else value.tolist())}
    if bad:
        raise CredoError(
            f"{name}: chains {sorted(bad)} start where the log density is not finite; choose "
            "another init."
        )


def _check_row(name: str, row: dict[str, Any], drawn: bool) -> None:
    """A warm-up may lose a chain for a while; a draw may not, and not all of them at once."""
    bad = _not_finite(row["log_density"])
    if len(bad) == len(row["log_density"]) or (bad and drawn):
        raise CredoError(
            f"{name}: the log density of chains {bad} is not finite at move {row['epoch']}; use a "
            "smaller lr, a longer warm-up or another init."
        )


def _row(number: int, warm: bool, info: Record, seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"epoch": number, "warmup": warm}
    for key, value in named_tensors(info).items():
        value = value.double()
        row[key] = value.reshape(-1).tolist() if key in BY_CHAIN else float(value.mean())
    return row | {"seconds": seconds}


def _text(row: dict[str, Any] | None) -> str | None:
    if row is None:
        return None
    values = row["log_density"]
    text = f"{'warm-up' if row['warmup'] else 'draws'}, log density {sum(values) / len(values):.4g}"
    return text + (f", acceptance {row['acceptance']:.2f}" if "acceptance" in row else "")


# --- records as named tensors: what a checkpoint stores -------------------------------------------


def named_tensors(record: Record) -> dict[str, Tensor]:
    """The tensors of a record and of the records in it, by field name; a field that is None is left
    out.
    """
    out: dict[str, Tensor] = {}
    for name, value in record._asdict().items():
        if value is None:
            continue
        inner = {name: value} if isinstance(value, Tensor) else named_tensors(value)
        twice = sorted(out.keys() & inner.keys())
        if twice:
            raise ValueError(
                f"{type(record).__name__} has two fields called {', '.join(twice)}; rename one, or "
                "a checkpoint would lose it."
            )
        out |= inner
    return out


def from_tensors(kind: type[R], tensors: Mapping[str, Tensor]) -> R:
    """The record of type ``kind`` with these tensors; names that it does not have are ignored."""
    return kind(
        **{
            name: tensors[name] if field is Tensor else from_tensors(field, tensors)
            for name, field in get_type_hints(kind).items()
        }
    )
