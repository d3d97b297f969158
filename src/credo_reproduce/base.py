"""What an experiment is: frozen settings, what it needs and costs, and one verb that repeats a
published table or figure.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch

from credo.core.devices import check_device
from credo.core.registry import Registry
from credo.core.settings import present_settings, setting, validate, whole
from credo_reproduce.outcome import Outcome, Result, machine

experiments: Registry[type[Experiment]] = Registry("experiment")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Experiment(ABC):
    """One published table or figure.

    Expected values stand in the file of the experiment, beside the code that measures them.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    reference: ClassVar[str]
    #: One line: how long it takes, and on what.
    cost: ClassVar[str]
    #: Data sets that ``credo.data.load`` must find.
    needs: ClassVar[tuple[str, ...]] = ()
    #: Threads on a CPU; None leaves torch's own choice. Small networks gain nothing from more than
    #: one.
    threads: ClassVar[int | None] = 1
    #: Settings that ``make_experiment`` puts in place of the defaults in a quick run.
    quick_settings: ClassVar[dict[str, Any]] = {}

    quick: bool = setting(
        False, "Sizes cut down to seconds, to see that everything runs; the numbers mean nothing."
    )

    def __post_init__(self) -> None:
        validate(self, f"Experiment {self.name!r}")

    @abstractmethod
    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """Measure. ``say`` takes lines of progress; the same seed on the same machine gives the
        same numbers (times apart).
        """


def make_experiment(name: str, settings: dict[str, Any]) -> Experiment:
    """An experiment of the registry with some settings replaced; unknown names and values are
    refused.

    With ``quick`` its small settings take the place of the defaults; what is given keeps its value.
    """
    kind = experiments[name]
    given = present_settings(settings, kind, f"Experiment {name!r}")
    return kind(**(kind.quick_settings | given if given.get("quick") else given))


def perform(
    experiment: Experiment,
    device: torch.device | str = "cpu",
    seed: int = 0,
    say: Say = lambda _: None,
) -> Result:
    """Run an experiment and keep the record: settings, seed, seconds and machine."""
    whole("seed", seed)
    where = check_device(device)
    with _threads(experiment.threads if where.type == "cpu" else None):
        started = time.perf_counter()
        outcome = experiment.run(where, seed, say)
        seconds = time.perf_counter() - started
        return Result(
            experiment.name,
            experiment.title,
            experiment.reference,
            experiment.quick,
            asdict(experiment),
            seed,
            seconds,
            machine(where),
            outcome,
        )


def graph_on(device: torch.device) -> str | bool:
    """The setting ``compile`` of a fit that captures its steps as CUDA graphs, on a GPU only."""
    return "graph" if device.type == "cuda" else False


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
