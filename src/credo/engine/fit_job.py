"""One fit: what a method is given besides the model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.settings import positive, whole
from credo.data.source import Source
from credo.engine.model import Fitted, Model
from credo.engine.run import Run
from credo.posteriors import Posterior

if TYPE_CHECKING:
    from credo.engine.method import Method
    from credo.priors import Prior

CHECKPOINT_SECONDS = 5.0  # how much work a killed run may lose

Callback = Callable[[dict[str, Any]], bool | None]


class Advance(Protocol):
    """``advance(count, text)``: so many steps are done, and a text beside the bar."""

    def __call__(self, count: int, text: str | None = None) -> None:
        """Move the bar."""
        ...


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

    def check(self, method: Method) -> None:
        """Refuse what no fit by this method can do, before any data are looked at."""
        if self.epochs is not None and not method.takes_epochs:
            raise SettingError(
                f"epochs={self.epochs}: {method.name} counts moves; set num_warmup, num_draws "
                "and thin."
            )
        positive("epochs", self.epochs, method.epochs)
        positive("batch_size", self.batch_size, 1)
        positive("lr", self.lr, method.lr)
        whole("seed", self.seed)


#: Names of these arguments.
FIT_ARGUMENTS = tuple(each.name for each in fields(FitOptions))


@dataclass
class FitJob:
    """Data, length, seed, where to write, who watches.

    ``history`` is filled as the fit goes on; a callback gets each row and stops the fit by
    returning True. ``show`` gets the posterior of the moment before callbacks get a row, from
    methods that have one.
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
    checkpoint_seconds: float = field(default_factory=lambda: CHECKPOINT_SECONDS)
    history: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, options: FitOptions, method: Method, source: Source) -> FitJob:
        """With the method's defaults for what is not asked for."""
        asked = options.batch_size
        size = method.batch_size if asked is None else asked
        whole_set = size is None or size >= source.num_data
        return cls(
            source=source,
            epochs=method.epochs if options.epochs is None else options.epochs,
            batch_size=None if whole_set else size,
            lr=method.lr if options.lr is None else options.lr,
            seed=options.seed,
            run=None if options.run is None else Run.of(options.run),
            progress=options.progress,
            callbacks=options.callbacks,
        )

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
        chosen = {"method": method.name, "settings": method.settings(), "fit": fit}
        return model.config(prior) | chosen

    def note(self, row: dict[str, Any]) -> bool:
        """Add a row to the history, in memory and on disk; True if a callback asks to stop."""
        self.history.append(row)
        answers = [callback(row) for callback in self.callbacks]  # all, even after one says stop
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
