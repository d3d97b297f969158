"""One fit: what a method is given besides the model, what its defaults depend on, and the constant
prediction that it must beat.
"""

from __future__ import annotations

import copy
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from credo.core.errors import CredoError, SettingError
from credo.core.settings import positive, whole
from credo.data.checks import Asked
from credo.data.intake import in_standard_units, intake
from credo.data.source import Source
from credo.engine.cost import products_per_example
from credo.engine.model import Fitted, Model
from credo.engine.run import Run
from credo.engine.settling import COOLING
from credo.engine.validation import validation_nll
from credo.likelihoods.base import Likelihood
from credo.likelihoods.continuous_likelihood import ContinuousLikelihood
from credo.posteriors import Posterior

if TYPE_CHECKING:
    from credo.engine.method import Method
    from credo.priors import Prior

CHECKPOINT_SECONDS = 5.0  # how much work a killed run may lose
STEPS = 8_000  # of a fit whose length is not given, where these take less than WORK
LEAST_STEPS, FEWEST = 500, 150  # at least these, however large the network, or many of them
LARGE, EPOCHS = 10_000, 100  # of more examples than LARGE at least so many passes
WORK = 6e11  # products of weights and examples, forward and back, that a default fit may take
ADAM_LR, LEAST_ADAM_LR = 1e-2, 3e-4
SMALL = 10_000  # P up to which Adam's rate holds
CHEAP = 200_000  # N P up to which a chain's step takes all data
CHAIN_WORK = 2.5e11  # products that chains of no given length may take: under a minute of one core
CALLS = 4e6  # products that the calls of a gradient cost whatever its size

Callback = Callable[[dict[str, Any]], bool | None]


class Advance(Protocol):
    """``advance(count, text)``: so many steps are done, and a text beside the bar."""

    def __call__(self, count: int, text: str | None = None) -> None:
        """Move the bar."""
        ...


@dataclass(frozen=True)
class Problem:
    """What defaults depend on: N examples, P random weights, and ``products`` of weights and
    numbers in the network's pass over one example, where that is not P.
    """

    num_data: int
    num_weights: int
    products: int = 0

    @classmethod
    def of(cls, model: Model, source: Source) -> Problem:
        """That of fitting this model to these data."""
        return cls(source.num_data, sum(site.numel for site in model.random.values()))

    @property
    def adam_lr(self) -> float:
        """0.01 up to 10,000 weights, from there on as 1 / sqrt(P), and never below 0.0003."""
        share = min(1.0, math.sqrt(SMALL / max(self.num_weights, 1)))
        return max(ADAM_LR * share, LEAST_ADAM_LR)

    def num_steps(self, batch_size: int | None, copies: int = 1) -> int:
        """Steps that a fit of no given length may take, of so many ``copies`` of the network:
        8,000, or fewer where a step is dear; never less than 500 (of several copies 150), and of
        more than 10,000 examples never less than 100 passes.
        """
        size = min(batch_size or self.num_data, self.num_data)
        work = 3 * copies * max(self.products, self.num_weights, 1) * size
        passes = EPOCHS if self.num_data > LARGE else 1
        least = max(LEAST_STEPS // copies, FEWEST, passes * math.ceil(self.num_data / size))
        return max(least, min(STEPS, int(WORK / work)))

    def num_gradients(self, chains: int, batch_size: int | None = None) -> int:
        """Gradients of all chains at once that chains of no given length may take: 2.5e11 products,
        under a minute of one core.
        """
        size = min(batch_size or self.num_data, self.num_data)
        cost = CALLS + chains * size * max(self.products, self.num_weights, 1)
        return max(1, int(CHAIN_WORK / cost))

    def batch_of_chains(self) -> int | None:
        """Examples in the batch of a stochastic-gradient sampler: all of them where N P is at most
        200,000, else as many as keep B P there, and at least 128; batches of one size.
        """
        size = self.chain_batch_size(max(128, CHEAP // max(self.num_weights, 1)))
        count = math.ceil(self.num_data / size) if size else 1
        return None if count == 1 else math.ceil(self.num_data / count)

    def descent_batch_size(self, usual: int | None) -> int | None:
        """All data where there are fewer weights than examples and a step on all is as cheap; more
        weights than examples are kept from learning them by heart by the noise of batches, too.
        """
        few = self.num_weights < self.num_data
        return self.chain_batch_size(usual) if few else usual

    def chain_batch_size(self, usual: int | None) -> int | None:
        """All data where N P is at most 200,000: then a step on all of them is as cheap, and its
        slope has no noise of its own, which would widen the posterior.
        """
        return None if self.num_data * self.num_weights <= CHEAP else usual


@dataclass(frozen=True)
class FitOptions:
    """What a user asks of a fit besides data, method and settings: the arguments of ``BNN.fit``.

    None stands for the method's default.
    """

    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    num_data: int | None = None
    validation: Any = None
    seed: int = 0
    device: torch.device | str | None = None
    run: str | os.PathLike[str] | Run | None = None
    progress: bool = True
    callbacks: Sequence[Callback] = ()
    max_seconds: float | None = None
    strict: bool = False

    @classmethod
    def taken_from(cls, arguments: dict[str, Any]) -> FitOptions:
        """Those of the arguments that are options; the others are left there."""
        return cls(**{n: arguments.pop(n) for n in FIT_ARGUMENTS if n in arguments})

    @property
    def is_open(self) -> bool:
        """Whether nothing is asked of the length and the rate of the fit."""
        return self.epochs is None and self.lr is None and self.max_seconds is None

    def check(self, method: Method) -> None:
        """Refuse what no fit by this method can do, before any data are looked at."""
        if self.epochs is not None and not method.takes_epochs:
            raise SettingError(
                f"epochs={self.epochs}: {method.name} counts moves; set num_warmup, num_draws "
                "and thin."
            )
        positive("epochs", self.epochs, 1)
        positive("batch_size", self.batch_size, 1)
        positive("lr", self.lr, 1.0)
        whole("seed", self.seed)
        positive("max_seconds", self.max_seconds, 1.0)


#: Names of these arguments.
FIT_ARGUMENTS = tuple(each.name for each in fields(FitOptions))


@dataclass
class FitJob:
    """Data, length, seed, where to write, who watches.

    ``history`` is filled as the fit goes on; a callback gets each row and stops the fit by
    returning True. ``show`` gets the posterior of the moment before callbacks get a row, from
    methods that have one. ``settles``: the length is not given, and ``epochs`` is the most that it
    may be; chains end when they have mixed. ``problem``: N and P, which tell how close to its end a
    fit must come. ``lr_given``: the learning rate is the user's, and a method is not to find one.
    """

    source: Source
    epochs: int
    batch_size: int | None
    lr: float
    seed: int = 0
    run: Run | None = None
    progress: bool = False
    callbacks: Sequence[Callback] = ()
    validation: Source | None = None
    validate: Callable[[Posterior, Mapping[str, Tensor]], float] | None = None
    show: Callable[[Fitted], None] | None = None
    settles: bool = False
    lr_given: bool = True
    problem: Problem = Problem(0, 0)
    max_seconds: float | None = None
    checkpoint_seconds: float = field(default_factory=lambda: CHECKPOINT_SECONDS)
    history: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, options: FitOptions, method: Method, source: Source, model: Model) -> FitJob:
        """With the method's defaults for this problem for what is not asked for."""
        problem = Problem.of(model, source)
        if options.epochs is None and (method.settles or method.takes_epochs):
            problem = replace(problem, products=products_per_example(model, source))
        asked = options.batch_size
        size = method.usual_batch_size(problem) if asked is None else asked
        if asked is None and options.epochs is None and method.takes_epochs:
            size = problem.descent_batch_size(size)
        size = None if size is None or size >= source.num_data else size
        epochs = options.epochs
        if epochs is None:
            epochs = math.ceil(method.usual_steps(problem, size) / source.num_batches(size))
        return cls(
            source=source,
            epochs=epochs,
            settles=options.epochs is None and method.settles,
            lr_given=options.lr is not None,
            problem=problem,
            max_seconds=options.max_seconds,
            batch_size=size,
            lr=method.usual_lr(problem) if options.lr is None else options.lr,
            seed=options.seed,
            run=None if options.run is None else Run.of(options.run),
            progress=options.progress,
            callbacks=options.callbacks,
        )

    @classmethod
    def on(
        cls,
        data: Any,
        options: FitOptions,
        method: Method,
        model: Model,
        asked: Asked,
        dtype: torch.dtype | None,
    ) -> FitJob:
        """On data that are checked, that this model can take, and that are standardised where it is
        ``asked``; with those to validate on.
        """
        source, held_out = checked_sources(model, data, options, asked, dtype)
        fit_job = cls.of(options, method, source, model)
        if held_out is not None:
            fit_job.validation, fit_job.validate = held_out, validation_nll(model, held_out)
        return fit_job

    def config(self, model: Model, prior: Prior, method: Method) -> dict[str, Any]:
        """What a run is resumed by: model, method and settings, and what the fit is given."""
        stored = self.run is not None
        fit = {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "lr": self.lr,
            "seed": self.seed,
            "num_data": self.source.num_data,
            "data": self.source.fingerprint() if stored else None,
            "held": model.digest(method.given(model, self.seed)) if stored else None,
        }
        fit |= {"settles": True} if self.settles else {}
        chosen = {"method": method.name, "settings": method.settings(), "fit": fit}
        return model.config(prior) | chosen

    @property
    def next_epoch(self) -> int:
        """The number of the next row of the history."""
        return int(self.history[-1]["epoch"]) + 1 if self.history else 0

    @property
    def ended(self) -> dict[str, str]:
        """Why the loop has ended, for a row that follows its last."""
        reasons = [row["ended"] for row in self.history if "ended" in row]
        return {"ended": reasons[-1]} if reasons else {}

    def is_late(self, seconds: float, cools: bool) -> bool:
        """Whether so many seconds leave no time for another epoch, or for a falling rate."""
        share = 1.0 / (1.0 + COOLING) if cools else 1.0
        return self.max_seconds is not None and seconds > share * self.max_seconds

    def note(self, row: dict[str, Any]) -> bool:
        """Add a row to the history, in memory and on disk; True if a callback asks to stop."""
        self.history.append(row)
        answers = [callback(row) for callback in self.callbacks]  # all, even after one says stop
        if any(answers):
            row.setdefault("ended", "callback")
        if self.run is not None:
            self.run.record(row)
        return any(answers)

    @contextmanager
    def progress_bar(self, total: int) -> Iterator[Advance]:
        """A bar of ``total`` steps on standard error, if that is a terminal and it is wanted."""
        if not (self.progress and sys.stderr.isatty()):
            yield lambda count, text=None: None
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("fit", total=total)

            def advance(count: int, text: str | None = None) -> None:
                bar.update(task, advance=count, description=text)  # None leaves it as it is

            yield advance


def checked_sources(
    model: Model, data: Any, options: FitOptions, asked: Asked, dtype: torch.dtype | None
) -> tuple[Source, Source | None]:
    """Data and validation data of a fit, refused where they do not fit the model, and standardised
    where that is called for, which the model is told.
    """
    source, held_out = intake(data, num_data=options.num_data, dtype=dtype), None
    if options.validation is not None:
        held_out = intake(options.validation, dtype=dtype)
    example, given = source.example(2), source
    if asked is not False and dtype is not None:
        likelihood = model.likelihood
        learned = isinstance(likelihood, ContinuousLikelihood) and likelihood.learns_size
        source, units = in_standard_units(data, source, asked, noise_learned=learned, dtype=dtype)
        model.standardised = units
        if held_out is not None and units is not None:
            parts = {"noise_learned": learned, "dtype": dtype}
            held_out, _ = in_standard_units(options.validation, held_out, units, **parts)
    model.check(example, given.targets())
    return source, held_out


# --- what a fit must beat ------------------------------------------------------------------------


def base_rate(likelihood: Likelihood, train: Source, scored: Source | None = None) -> float:
    """``constant_nll`` of what is modelled of these data: targets, or the first of the data
    themselves.
    """
    try:
        own, values = _modelled(likelihood, train)
        others = None if scored is None else _modelled(likelihood, scored)[1]
    except CredoError:
        return math.inf
    return constant_nll(own, values, others)


def _modelled(likelihood: Any, source: Source) -> tuple[Likelihood, Tensor]:
    if likelihood.of_inputs:
        return likelihood.modelled(next(iter(source(None, 1000)))[0])
    return likelihood, likelihood.check_targets(source.targets())


def constant_nll(likelihood: Likelihood, y: Tensor, scored: Tensor | None = None) -> float:
    """Mean negative log-likelihood of ``scored`` (by default of ``y`` itself) under the constant
    outputs, and the learned noise, that fit the checked targets ``y`` best; infinite where
    nobody knows them.
    """
    try:
        own = copy.deepcopy(likelihood).double()
        width = own.num_outputs(y)
        outputs = torch.zeros(width, dtype=torch.float64, device=y.device, requires_grad=True)
        moved = [outputs, *(p for p in own.parameters() if p.requires_grad)]
        mover = torch.optim.LBFGS(moved, max_iter=100, line_search_fn="strong_wolfe")

        def nll(targets: Tensor) -> Tensor:
            return -own.log_prob(outputs.expand(len(targets), width), targets).mean()

        def closure() -> Tensor:
            mover.zero_grad()
            loss = nll(y)
            loss.backward()
            return loss

        with torch.enable_grad():
            mover.step(closure)
            found = float(nll(y if scored is None else scored).detach())
        return found if math.isfinite(found) else math.inf
    except (CredoError, RuntimeError, ValueError, NotImplementedError):
        return math.inf  # a likelihood whose constant nobody knows
