"""What all samplers share: chains that start apart, a loop of moves, draws kept in memory or on
disk, and resuming at the next draw.

Move t takes its random numbers from (seed, t) alone and everything else from a dictionary of
tensors, so a checkpoint is that dictionary.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from credo.core.errors import CredoError, SettingError
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.engine.draws import prior_draws
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.initial_posterior import with_points
from credo.engine.method import Method
from credo.engine.model import Model
from credo.engine.progress import progress
from credo.kernels.annealing import anneal
from credo.kernels.leapfrog import Integrator
from credo.kernels.target import State
from credo.methods.sampling.parts.density import Density, FullBatch
from credo.posteriors import Posterior, Samples

INFO = ("log_density", "energy", "divergent")  # kept chain by chain; other diagnostics are averaged


class Transition(ABC):
    """Moves all chains at once.

    The state holds ``position`` ``(C, P)`` and whatever else the next move needs.
    """

    @abstractmethod
    def start(self, position: Tensor, source: torch.Generator) -> State:
        """The state before the first move."""

    @abstractmethod
    def move(self, state: State, index: int, source: torch.Generator) -> tuple[State, State]:
        """The state after move ``index``, and diagnostics per chain ``(C,)`` or for all ``()``."""

    def kept(self, state: State) -> Tensor:
        """The positions ``(C, P)`` a draw consists of."""
        return state["position"]

    def record(self) -> State:
        """Tensors outside the state that a resumed run needs, by name."""
        return {}

    def recall(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of ``record``."""


@dataclass(frozen=True)
class Course:
    """How many moves there are, and which of them give draws and rows of the history."""

    name: str
    num_warmup: int
    num_draws: int
    thin: int = 1

    def moves(self) -> int:
        """Moves in all."""
        return self.num_warmup + self.num_draws * self.thin

    def draw_after(self, index: int) -> int | None:
        """The number of the draw that is taken after move ``index``, if one is."""
        draw, rest = divmod(index - self.num_warmup + 1, self.thin)
        return draw - 1 if draw >= 1 and rest == 0 else None

    def noted(self, index: int) -> bool:
        """Whether move ``index`` makes a row of the history: every draw does, and the warm-up at
        the same pace.
        """
        return (index - self.num_warmup + 1) % self.thin == 0

    def number(self, index: int) -> int:
        """The number of the last row up to move ``index``: the move's own."""
        return index


@dataclass(frozen=True)
class Sampler(Method):
    """A method that draws: chains, warm-up, draws, thinning."""

    takes_epochs: ClassVar[bool] = False
    batch_size: ClassVar[int | None] = None

    num_chains: int = setting(4, "Chains, run at once.", ge=1)
    num_warmup: int = setting(
        1000, "Moves of every chain before the first draw, during which it adapts.", ge=0
    )
    num_draws: int = setting(1000, "Draws kept of every chain.", ge=1)
    thin: int = setting(1, "Moves per draw.", ge=1)
    init: Any = setting(
        "random",
        "Start of each chain: 'random' (as the network's modules initialise themselves), "
        "'annealing' (a mode found by simulated annealing "
        "from there), 'prior', 'pretrained' (all at the network's values), or a state dict whose "
        "tensors may have a leading axis of chains.",
        kind=(str, Mapping),
        choices=("random", "annealing", "prior", "pretrained"),
    )
    store: str = setting(
        "memory",
        "Where draws are kept after the fit: in 'memory', or on 'disk' with run=.",
        choices=("memory", "disk"),
    )

    @abstractmethod
    def transition(self, density: Density, fit_job: FitJob) -> Transition:
        """How chains move."""

    def course(self) -> Course:
        """Warm-up, then draws."""
        return Course(self.name, self.num_warmup, self.num_draws, self.thin)

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Run the chains and keep their draws."""
        if self.store == "disk" and fit_job.run is None:
            raise SettingError(
                "store='disk' keeps draws in the run's directory; give one with run=."
            )
        starts = start_values(model, self.init, self.num_chains, fit_job.seed)
        density = Density(model, {n: v[0] for n, v in starts.items()})
        transition = self.transition(density, fit_job)

        flat = density.layout.join({n: starts[n] for n in model.random})
        if self.init == "annealing" and (fit_job.run is None or fit_job.run.restore() is None):
            target = FullBatch.of(density, fit_job.source, fit_job.batch_size)
            flat = anneal(
                Integrator(target), flat, generator(fit_job.seed, "annealing", device=flat.device)
            )
        kept = run_chains(
            self.course(), transition, flat, fit_job, lambda kept: score(density, kept, fit_job)
        )
        if self.store == "memory" and fit_job.run is not None:
            kept = kept.to(model.device, copy=True)  # the run's file goes when the run is finished
        return of_draws(density, kept, len(kept))


def posterior_of(density: Density, kept: Tensor, chains: int) -> Posterior:
    """The posterior of draws ``(C, D, P)``, as they are, and of the points that were fitted
    alongside.
    """
    shapes = {n: tuple(s) for n, s in density.layout.shapes.items()}
    return with_points(
        density.model, density.points, [Samples.hold(kept.flatten(0, 1), shapes, chains)]
    )


def of_draws(density: Density, kept: Tensor, chains: int) -> Fitted:
    """What a fit that ends in these draws returns."""
    density.release()
    return Fitted(posterior_of(density, kept, chains), density.buffers)


def score(density: Density, kept: Tensor, fit_job: FitJob) -> dict[str, float]:
    """The validation nll of all draws, where there are data to validate on."""
    if fit_job.validate is None:
        return {}
    return {
        "validation_nll": fit_job.validate(
            posterior_of(density, kept.to(density.model.device), len(kept)), density.buffers
        )
    }


def run_chains(
    course: Course,
    transition: Transition,
    flat: Tensor,
    fit_job: FitJob,
    score: Callable[[Tensor], dict[str, float]] = lambda _: {},
) -> Tensor:
    """Draws ``(C, D, P)`` of chains that start at ``flat`` ``(C, P)``, or where an earlier run was
    when it was killed.

    ``score`` adds to the last row what it says of all draws. A network that draws random numbers by
    itself leaves the caller's alone.
    """
    device = flat.device
    state, first = _restore(course, transition, fit_job)
    if state is None:
        with isolated(mix(fit_job.seed, "start"), device):
            state = transition.start(flat, generator(fit_job.seed, "start", device=device))
        _check_start(course.name, transition, state)
    state = {key: value.to(device) for key, value in state.items()}
    here = transition.kept(state)
    size = torch.Size((len(here), course.num_draws, here.shape[1]))
    kept = (
        torch.empty(size, dtype=here.dtype, device=device)
        if fit_job.run is None
        else fit_job.run.draws(size.numel(), here.dtype).reshape(size)
    )
    count = max(
        [draw + 1 for index in range(first) if (draw := course.draw_after(index)) is not None],
        default=0,
    )
    saved, started = time.monotonic(), time.perf_counter()
    with progress(fit_job, course.moves()) as advance:
        advance(first)
        for index in range(first, course.moves()):
            with isolated(mix(fit_job.seed, "ambient", index), device):
                state, info = transition.move(
                    state, index, generator(fit_job.seed, "move", index, device=device)
                )
            draw = course.draw_after(index)
            if draw is not None:
                kept[:, draw] = transition.kept(state).to(kept.device)
                count = draw + 1
            row, stop = None, False
            if course.noted(index):
                row = _row(
                    course.number(index),
                    index < course.num_warmup,
                    info,
                    time.perf_counter() - started,
                )
                started = time.perf_counter()
                _check(course.name, row, draw is not None)
                row |= score(kept) if index == course.moves() - 1 else {}
                stop = fit_job.note(row)
            if fit_job.run is not None and (
                stop or time.monotonic() - saved >= fit_job.checkpoint_seconds
            ):
                fit_job.run.checkpoint(_flat(state, transition), index)
                saved = time.monotonic()
            advance(1, _text(row))
            if stop:
                if not count:
                    raise CredoError(
                        f"A callback stopped {course.name} at move {index}, before the first "
                        "draw; nothing was kept."
                    )
                return kept[:, :count].clone()
    return kept


def _lost(values: Any) -> list[int]:
    return [chain for chain, value in enumerate(values) if not math.isfinite(value)]


def _check_start(name: str, transition: Transition, state: State) -> None:
    """A chain that starts where there is no density would hold up the others, whose step size it
    shares.
    """
    bad = sorted(
        {
            *_lost(transition.kept(state).double().sum(1).tolist()),
            *_lost(state["value"].tolist() if "value" in state else ()),
        }
    )
    if bad:
        raise CredoError(
            f"{name}: chains {bad} start where the log density is not finite; choose another init."
        )


def _check(name: str, row: dict[str, Any], drawn: bool) -> None:
    """A warm-up may lose a chain for a while; a draw may not, and not all of them at once."""
    bad = _lost(row["log_density"])
    if len(bad) == len(row["log_density"]) or (bad and drawn):
        raise CredoError(
            f"{name}: the log density of chains {bad} is not finite at move {row['epoch']}; use a "
            "smaller lr, a longer warm-up or another init."
        )


def _restore(course: Course, transition: Transition, fit_job: FitJob) -> tuple[State | None, int]:
    found = None if fit_job.run is None else fit_job.run.restore()
    if fit_job.run is not None:
        fit_job.history[:] = fit_job.run.history(-1 if found is None else course.number(found[1]))
    if found is None:
        return None, 0
    tensors, index = found
    transition.recall(
        {n.removeprefix("more/"): t for n, t in tensors.items() if n.startswith("more/")}
    )
    return {
        n.removeprefix("state/"): t for n, t in tensors.items() if n.startswith("state/")
    }, index + 1


def _flat(state: State, transition: Transition) -> State:
    return {f"state/{n}": t for n, t in state.items()} | {
        f"more/{n}": t for n, t in transition.record().items()
    }


def _row(index: int, warm: bool, info: State, seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"epoch": index, "warmup": warm}
    for key, value in info.items():
        row[key] = (
            value.double().reshape(-1).tolist() if key in INFO else float(value.double().mean())
        )
    return row | {"seconds": seconds}


def _text(row: dict[str, Any] | None) -> str | None:
    if row is None:
        return None
    values = row["log_density"]
    text = f"{'warm-up' if row['warmup'] else 'draws'}, log density {sum(values) / len(values):.4g}"
    return text + (f", acceptance {row['acceptance']:.2f}" if "acceptance" in row else "")


def start_values(
    model: Model, init: str | Mapping[str, Tensor], chains: int, seed: int
) -> dict[str, Tensor]:
    """Where chains start: stacked values ``(C, *shape)`` of every parameter; those that are not
    random are the same in all.
    """
    own = model.values()
    if isinstance(init, Mapping):
        return _given(model, init, own, chains)
    if init in ("random", "annealing"):
        each = [model.random_values(mix(seed, "chain", c)) for c in range(chains)]
        out = {n: torch.stack([values[n] for values in each]) for n in own}
        return {n: v if n in model.random else v[:1].expand_as(v) for n, v in out.items()}
    if init == "prior":
        return prior_draws(model, own, range(chains), mix(seed, "chains"))
    return {n: v.expand(chains, *v.shape) for n, v in own.items()}


def _given(
    model: Model, init: Mapping[str, Tensor], own: dict[str, Tensor], chains: int
) -> dict[str, Tensor]:
    for name, value in init.items():
        if (
            name in own
            and value.dim() == own[name].dim() + 1
            and value.shape[1:] == own[name].shape
            and len(value) != chains
        ):
            raise SettingError(
                f"init gives {name!r} for {len(value)} chains, but there are {chains}; give as "
                "many, or one for all."
            )
    wide = {n: v for n, v in init.items() if n in own and v.shape == (chains, *own[n].shape)}
    rest = model.values({n: v for n, v in init.items() if n not in wide})
    out = {n: v.expand(chains, *v.shape) for n, v in rest.items()}
    return out | {n: v.detach().to(own[n]) for n, v in wide.items()}
