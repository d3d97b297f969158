"""The loop over moves: chains go on from where they start, draws go to memory or to disk, and a
killed run is resumed at the next move.

Move t takes its random numbers from (seed, t) alone and everything else from the state and from
what is fitted alongside, so a checkpoint is these two, as named tensors.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo.core.errors import CredoError
from credo.core.records import Record, from_tensors, named_tensors
from credo.core.seeds import generator, isolated, mix
from credo.engine.fit_job import FitJob
from credo.methods.sampling.parts.draw_schedule import DrawSchedule
from credo.methods.sampling.parts.moves import Moves

S = TypeVar("S", bound=Record)

BY_CHAIN = ("log_density", "energy", "divergent")  # in rows chain by chain; the rest is averaged
_STATE, _ALONGSIDE = "state/", "more/"  # in the names of a checkpoint


def run_moves(
    name: str,
    moves: Moves[S],
    schedule: DrawSchedule,
    positions: Tensor,
    fit_job: FitJob,
    score: Callable[[Tensor], dict[str, float]] = lambda _: {},
) -> Tensor:
    """Draws ``(C, D, P)`` of the method ``name``, by chains that start at ``positions`` ``(C, P)``,
    or where an earlier run was when it was killed.

    ``score`` adds to the last row of the history what it says of all draws. A network that draws
    random numbers by itself leaves the caller's alone.
    """
    device = positions.device
    state, first = _restored(schedule, moves, fit_job)
    if state is None:
        with isolated(mix(fit_job.seed, "start"), device):
            state = moves.start(positions, generator(fit_job.seed, "start", device=device))
        _check_start(name, moves, state)
    state = pytree.tree_map(lambda tensor: tensor.to(device), state)
    draws = _room(moves.drawn(state), schedule.num_draws, fit_job)
    taken = [schedule.draw_after(index) for index in range(first)]
    count = max([draw + 1 for draw in taken if draw is not None], default=0)
    saved, started = time.monotonic(), time.perf_counter()
    with fit_job.progress_bar(schedule.num_moves()) as advance:
        advance(first)
        for index in range(first, schedule.num_moves()):
            source = generator(fit_job.seed, "move", index, device=device)
            with isolated(mix(fit_job.seed, "ambient", index), device):
                state, info = moves.move(state, index, source)
            draw = schedule.draw_after(index)
            if draw is not None:
                draws[:, draw] = moves.drawn(state).to(draws.device)
                count = draw + 1
            row, stop = None, False
            if schedule.row_after(index):
                seconds, started = time.perf_counter() - started, time.perf_counter()
                warm = index < schedule.num_warmup
                row = _row(schedule.row_number(index), warm, info, seconds)
                _check_row(name, row, draw is not None)
                row |= score(draws) if index == schedule.num_moves() - 1 else {}
                stop = fit_job.note(row)
            if fit_job.run is not None and (
                stop or time.monotonic() - saved >= fit_job.checkpoint_seconds
            ):
                fit_job.run.checkpoint(_checkpoint(state, moves), index)
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


def _checkpoint(state: Record, moves: Moves[Any]) -> dict[str, Tensor]:
    """The state, and what is fitted alongside, as named tensors."""
    alongside = moves.fitted_alongside.named_tensors()
    return {f"{_STATE}{n}": t for n, t in named_tensors(state).items()} | {
        f"{_ALONGSIDE}{n}": t for n, t in alongside.items()
    }


def _restored(schedule: DrawSchedule, moves: Moves[S], fit_job: FitJob) -> tuple[S | None, int]:
    """The state of the last checkpoint, if there is one, and the move to go on with."""
    found = None if fit_job.run is None else fit_job.run.restore()
    if fit_job.run is not None:
        last = -1 if found is None else schedule.row_number(found[1])
        fit_job.history[:] = fit_job.run.history(last)
    if found is None:
        return None, 0
    tensors, index = found
    moves.fitted_alongside.restore(_below(_ALONGSIDE, tensors))
    return from_tensors(moves.state_type, _below(_STATE, tensors)), index + 1


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
