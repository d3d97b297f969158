"""What a method is: frozen settings and one verb."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from credo.core.registry import Registry
from credo.core.settings import Configurable, other_names, present_settings, validate
from credo.engine.fit_job import FitJob, Problem
from credo.engine.model import Fitted, Model
from credo.posteriors import Posterior

methods: Registry[type[Method]] = Registry("method")


@dataclass(frozen=True)
class Method(metaclass=Configurable):
    """Turns (model, data) into a posterior.

    Settings are dataclass fields; their metadata drives validation, CLI and docs.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str]
    #: Defaults of ``fit`` that suit the method, where the user gives none; ``usual_steps`` and
    #: ``usual_lr`` may depend on the problem instead.
    batch_size: ClassVar[int | None] = 128
    lr: ClassVar[float | None] = None
    #: Whether ``epochs`` means anything to it.
    takes_epochs: ClassVar[bool] = True
    #: Whether a fit of no given length takes all of its budget: its schedule is a plan for the
    #: whole of it, or there are no steps.
    fixed_length: ClassVar[bool] = False
    #: What a fit does after its steps that may take long, in words: a plan does not time it.
    afterwards: ClassVar[str | None] = None
    #: Whether its posterior is made of draws of Markov chains, which can be asked how well they
    #: mixed.
    is_sampler: ClassVar[bool] = False
    #: Whether it can learn from a teacher's predictions in place of observed targets.
    teachable: ClassVar[bool] = True
    #: Noise of the network itself that is part of the posterior: that of its "dropout" modules, of
    #: "batch statistics", or "any" that its forward pass has in training mode.
    network_noise: ClassVar[str | None] = None
    #: How near its posterior comes to the true one: "exact", "exact in the limit" of ever more
    #: draws, or "approximate".
    fidelity: ClassVar[str] = "approximate"
    #: A configuration small enough for the conformance suite: arguments of ``fit``.
    conformance_settings: ClassVar[dict[str, Any]] = {}
    #: What it reaches on conjugate regression ("exact", "mean_field" or "least_squares"), within
    #: how many posterior deviations.
    target: ClassVar[str] = "exact"
    tolerance: ClassVar[float] = 0.0
    #: Arguments of the conjugate problem, where the default one has the family's optimum at an
    #: edge.
    problem: ClassVar[dict[str, Any]] = {}
    #: Whether a fit at defaults first tries, on held-out rows, how narrow its prior is to be and
    #: what ``alternatives`` names (``engine/trial.py``); and whether a narrower prior is over the
    #: layers too that the method leaves as points.
    tries: ClassVar[bool] = False
    #: Of the steps that a fit may take, the share that a candidate of such a trial gets.
    trial_share: ClassVar[float] = 1.0
    points_have_prior: ClassVar[bool] = False
    #: Conformance checks that do not apply, each with its reason.
    exceptions: ClassVar[dict[str, str]] = {}

    def __post_init__(self) -> None:
        validate(self, self.name)

    def by_problem(self, problem: Problem) -> dict[str, Any]:
        """Values for settings that are None, by name: what None stands for in this problem."""
        return {}

    def for_problem(self, problem: Problem) -> Self:
        """The method with every setting that depends on the problem filled in."""
        found = self.by_problem(problem)
        return replace(self, **{n: v for n, v in found.items() if getattr(self, n) is None})

    def alternatives(self, model: Model) -> Mapping[str, Sequence[Any]]:
        """Values to try on held-out rows for settings that are None, in the order in which each is
        a step further from the usual one. The name "prior" is for its widths.
        """
        return {}

    def for_trial(self) -> Self:
        """The method as it is tried: cheaper where it can be."""
        return self

    def usual_steps(self, problem: Problem, batch_size: int | None) -> int:
        """Steps that a fit may take where no epochs are given."""
        return problem.num_steps(batch_size, self.copies)

    @property
    def copies(self) -> int:
        """Networks that a step trains, or draws that it takes of one: so much dearer is a step."""
        return 1

    def usual_batch_size(self, problem: Problem) -> int | None:
        """Examples in a batch where none is given; None for all of them."""
        return self.batch_size

    def usual_lr(self, problem: Problem) -> float:
        """The learning rate where none is given: the method's own, or Adam's for this network."""
        return problem.adam_lr if self.lr is None else self.lr

    @property
    def settles(self) -> bool:
        """Whether a fit whose length is not given ends by itself: a descent when its objective has
        settled, chains without ``num_draws`` when they have mixed.
        """
        own = self.takes_epochs or getattr(self, "num_draws", 0) is None
        return own and not self.fixed_length

    @classmethod
    def example_network(cls, net: nn.Module, outputs: int) -> nn.Module:
        """A conformance network as this method can take it: with the noise inside that the method
        is about, if it needs any.
        """
        return net

    @property
    def shortcut(self) -> str | None:
        """How predictions are made unless asked otherwise: a ``shortcut`` of ``BNN.predict``; None
        for draws of the posterior.
        """
        return None

    def given(self, model: Model, seed: int) -> Mapping[str, Tensor]:
        """Trainable values that the fit takes as they are, by name: a run is not resumed with
        others. None unless a method says otherwise.
        """
        return {}

    def adapt(self, model: Model) -> Model:
        """The model as this method sees it: another prior, or fewer random parameters; itself
        unless a method says otherwise.
        """
        return model

    @abstractmethod
    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Run to the end and return the posterior."""

    def start_at(self, posterior: Posterior, names: Collection[str]) -> dict[str, Any]:
        """Settings of a fit that goes on from a posterior: its mean as ``init``, where the method
        has that setting, and where there is one; that of several components is no place to start.
        """
        if "init" not in self.settings() or len(posterior.components()) != 1:
            return {}
        return {"init": {n: v.detach().clone() for n, v in posterior.mean().items() if n in names}}

    def settings(self) -> dict[str, Any]:
        """The settings as JSON-able values."""
        return {k: _plain(v) for k, v in asdict(self).items()}

    @classmethod
    def present_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config of a stored run with the settings under the names that they have now."""
        stored, others = config.get("settings", {}), other_names(cls)
        return {**config, "settings": {others.get(k, k): v for k, v in stored.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)) and all(isinstance(v, (str, int, float)) for v in value):
        return list(value)
    return (
        value
        if isinstance(value, (str, int, float, bool, type(None)))
        else f"<{type(value).__name__}>"
    )


def make_method(
    spec: str | Method,
    settings: Mapping[str, Any],
    *,
    beside: tuple[str, ...] = (),
    warn: bool = True,
) -> Method:
    """A method from its registry name and settings, or a method object with some settings
    replaced.

    A refusal of an unknown setting may suggest one of the names ``beside`` them, such as the
    arguments of ``fit``. ``warn=False``: former names are those of a stored config, and no news.
    """
    name, kind = (spec, methods[spec]) if not isinstance(spec, Method) else (spec.name, type(spec))
    present = present_settings(settings, kind, f"method {name!r}", beside=beside, warn=warn)
    return replace(spec, **present) if isinstance(spec, Method) else kind(**present)
