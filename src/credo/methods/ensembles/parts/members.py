"""K networks that learn at once, each from its own start and in its own order of the data.

Member k minimises its own sum(nll) / B - log p(w) / N and is independent of the others: Adam and
SGD move every number by itself, so members stacked in one tensor end where members trained one
after another do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.core.seeds import generator, mix
from credo.data.source import Source
from credo.engine.batches import own_batches
from credo.engine.fit_job import FitJob
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import Learner
from credo.likelihoods.base import Likelihood
from credo.methods.ensembles.parts.member_points import equal_points
from credo.methods.ensembles.parts.members_prior import MembersPrior, minus_log_prior
from credo.methods.ensembles.parts.training_path import TrainingPath
from credo.posteriors import Params

#: (source, an order per member, batch size) -> one epoch of batches ``(K, B, ...)``
Feed = Callable[[Source, Sequence[torch.Generator], int | None], Iterator[tuple[Any, Tensor]]]


def member_seeds(seed: int, count: int) -> list[int]:
    """A seed for every member, the first the fit's own: an ensemble of one is the fit of one."""
    return [seed, *(mix(seed, "member", k) for k in range(1, count))]


@final
class Members(Learner):
    """``stacked`` parameters of K networks, ``noise``: learned parameters of their likelihoods, and
    their buffers, each with a leading axis K.

    ``starts``: values of each member's network. ``path``: what to gather after every epoch.
    ``feed`` makes the batches of an epoch; a step that wants them otherwise puts its own in its
    place.
    """

    def __init__(
        self,
        model: Model,
        starts: Sequence[Params],
        seeds: Sequence[int],
        path: TrainingPath | None = None,
    ) -> None:
        super().__init__()
        learned = _learned(model)
        self.count, self.seeds = len(starts), tuple(seeds)
        # In lists, so that a checkpoint does not hold them: the model, and one member's copy of its
        # likelihood.
        self._model, self._likelihood = [model], [copy.deepcopy(model.likelihood)]
        self.names = tuple(starts[0])
        self.stacked = nn.ParameterList(
            [torch.stack([start[name] for start in starts]) for name in self.names]
        )
        self.noise_names = tuple(learned)
        self.noise = nn.ParameterList(
            [p.detach().expand(self.count, *p.shape).clone() for p in learned.values()]
        )
        self.buffer_names = tuple(model.buffers())
        for index, buffer in enumerate(model.buffers().values()):
            self.register_buffer(f"b{index}", buffer.expand(self.count, *buffer.shape).clone())
        self.path = path
        if path is not None:
            path.begin(self.values(), self.likelihood_params(), model.random)
        self.feed: Feed = own_batches
        self.prior = MembersPrior(model, {n: value[0] for n, value in self.values().items()})
        self.register_load_state_dict_pre_hook(_translate_names)

    @property
    def model(self) -> Model:
        return self._model[0]

    # --- what there is of each member -------------------------------------------------------------

    def values(self) -> Params:
        """Parameters of the network by name, ``(K, *shape)``."""
        return dict(zip(self.names, self.stacked, strict=True))

    def likelihood_params(self) -> Params:
        """Learned parameters of the likelihood by name, ``(K, *shape)``."""
        return dict(zip(self.noise_names, self.noise, strict=True))

    def learned(self) -> list[Tensor]:
        """All that is learned: ``values`` and ``likelihood_params``."""
        return [*self.stacked, *self.noise]

    def buffers_(self) -> Params:
        """Buffers of the network by name, ``(K, *shape)``."""
        return {name: getattr(self, f"b{index}") for index, name in enumerate(self.buffer_names)}

    @torch.no_grad()
    def take_buffers(self, after: Sequence[Tensor]) -> None:
        """Copy back what the network replaced by assignment instead of changing it in place."""
        for buffer, value in zip(self.buffers_().values(), after, strict=True):
            if value.data_ptr() != buffer.data_ptr():
                buffer.copy_(value)

    def member_likelihood(self, params: Params) -> Likelihood:
        """One member's likelihood, by its learned parameters; the object is the same for all."""
        likelihood = self._likelihood[0]
        for name, value in params.items():
            likelihood._parameters[name] = value  # type: ignore[assignment]
        return likelihood

    # --- what the training loop asks --------------------------------------------------------------

    def batches(self, source: Source, fit_job: FitJob, epoch: int) -> Iterator[tuple[Any, Tensor]]:
        """One epoch, ``(K, B, ...)``, each member in its own order."""
        orders = [generator(seed, "order", epoch) for seed in self.seeds]
        return self.feed(source, orders, fit_job.batch_size)

    def examples(self, y: Tensor) -> int:
        """B."""
        return y.shape[1]

    @torch.no_grad()
    def divergence(self) -> Tensor | None:
        """-log p(w), averaged over members."""
        if not self.prior.all:
            return None
        return minus_log_prior(self.prior.all, self.values()).double().mean()

    def monitor(self) -> dict[str, float]:
        """What the likelihood says, averaged over members."""
        rows = [
            self.member_likelihood(
                {n: value.detach()[k] for n, value in self.likelihood_params().items()}
            ).monitor()
            for k in range(self.count)
        ]
        return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}

    def after_epoch(self, epoch: int, epochs: int) -> None:
        """Show the likelihood's mean to whoever watches, and gather."""
        self._average_likelihood()
        if self.path is not None:
            self.path.observe(self.values(), self.likelihood_params(), epoch, epochs)

    def after_fit(self) -> None:
        """Drop the last pass."""
        self.release()
        self._average_likelihood()

    def release(self) -> None:
        """Put plain values where those of the last pass are: they keep its graph alive."""
        shell = self.model.shell()
        shell.place({n: v.detach()[0] for n, v in self.values().items()})
        shell.place({n: b[0] for n, b in self.buffers_().items()})
        self.member_likelihood({n: v.detach()[0] for n, v in self.likelihood_params().items()})

    @torch.no_grad()
    def _average_likelihood(self) -> None:
        """The model's likelihood takes the members' mean, which is what a single number can say of
        them.
        """
        for name, value in self.likelihood_params().items():
            self.model.likelihood.get_parameter(name).copy_(value.mean(0))

    def fitted(self) -> Fitted:
        """The members as they stand: equally likely points, with the noise and the statistics that
        each has learned.
        """
        buffers = self.buffers_()
        shared = {name: b[-1] for name, b in buffers.items()}
        if self.count == 1:
            return Fitted(
                self.model.point_posterior({n: v[0] for n, v in self.values().items()}), shared
            )
        own = {
            n: b for n, b in buffers.items() if b.is_floating_point() and bool((b != b[:1]).any())
        }
        points = equal_points(self.model, self.values(), self.likelihood_params(), own)
        return Fitted(points, shared)


def _learned(model: Model) -> Mapping[str, Tensor]:
    """Learned parameters of the likelihood by name; what members cannot have is refused."""
    if model.prior.parts():
        raise SettingError(
            "Members of an ensemble cannot share a learned prior; give it a fixed one."
        )
    learned = {n: p for n, p in model.likelihood.named_parameters() if p.requires_grad}
    inner = next((name for name in learned if "." in name), None)
    if inner is not None:
        raise SettingError(
            f"The {model.likelihood.name} likelihood learns {inner!r} in a module inside it; "
            "for members of an ensemble make it a "
            "parameter of the likelihood itself."
        )
    return learned


def _translate_names(module: nn.Module, state: dict[str, Any], *_: Any) -> None:
    """Names that checkpoints of earlier versions have."""
    for name in [name for name in state if name.startswith("trace.")]:
        new = name.replace("trace.voice", "path.likelihood").replace("trace.", "path.")
        state[new] = state.pop(name)
