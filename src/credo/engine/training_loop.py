"""The training loop: epochs of steps, schedules of the learning rate and of the KL weight, history,
checkpoints.

A killed run continues to the same numbers as an uninterrupted one. The reported ELBO always counts
the KL fully.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from credo.core.errors import CredoError, DataError
from credo.core.registry import Registry
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.data.source import Source
from credo.engine.fit_job import FitJob
from credo.engine.model import Fitted, Model
from credo.engine.settling import LEAST_EPOCHS, LEAST_STEPS, Settling, tolerance

#: (progress of the warm-up in 0..1, batch number from 0, batches per epoch) -> weight
Schedule = Callable[[float, int, int], float]
schedules: Registry[Schedule] = Registry("KL schedule")


@schedules.register("constant")
def constant(progress: float, batch: int, batches: int) -> float:
    """1 throughout."""
    return 1.0


@schedules.register("linear")
def linear(progress: float, batch: int, batches: int) -> float:
    """Rises evenly from 0 to 1 over the warm-up."""
    return min(progress, 1.0)


@schedules.register("cosine")
def cosine(progress: float, batch: int, batches: int) -> float:
    """Rises from 0 to 1 along half a cosine."""
    return 0.5 - 0.5 * math.cos(math.pi * min(progress, 1.0))


@schedules.register("late")
def late(progress: float, batch: int, batches: int) -> float:
    """Nothing for the first quarter of the warm-up, then rises evenly to 1: a network that is to
    lose weights learns first.
    """
    return min(max(4.0 * progress - 1.0, 0.0) / 3.0, 1.0)


@schedules.register("blundell")
def blundell(progress: float, batch: int, batches: int) -> float:
    """M 2^-i / (1 - 2^-M) for batch i = 1..M: the first batches of an epoch follow the prior, the
    last ones the data.

    Averages 1 over an epoch (Blundell et al. 2015, section 3.4, written so that nothing overflows).
    """
    return batches * 2.0 ** -(batch + 1) / (1.0 - 2.0**-batches)


#: progress of the fit in 0..1 -> factor of the learning rate
decays: Registry[Callable[[float], float]] = Registry("learning-rate schedule")


@decays.register("constant")
def hold(progress: float) -> float:
    """1 throughout: the last iterate keeps the noise of its gradients."""
    return 1.0


@decays.register("linear")
def line(progress: float) -> float:
    """Falls evenly from 1 to 0."""
    return 1.0 - progress


@decays.register("cosine")
def fall(progress: float) -> float:
    """Falls from 1 to 0 along half a cosine, which averages that noise away."""
    return 0.5 + 0.5 * math.cos(math.pi * progress)


@dataclass(frozen=True)
class DescentSettings:
    """Settings of every method that trains: its start, its learning rate, how its step runs."""

    init: Any = setting(
        "pretrained",
        "Start: 'pretrained' (the network's values), 'random', or a state dict.",
        kind=(str, Mapping),
        choices=("pretrained", "random"),
    )
    lr_schedule: str = setting(
        "cosine", "Learning-rate schedule.", choices=("constant", "cosine", "linear")
    )
    compile: Any = setting(
        False,
        "Compile the step (True), on a GPU also as one CUDA graph; or capture that graph without "
        "compiling ('graph'), which starts sooner.",
        kind=(bool, str),
        choices=("graph",),
    )


class Learner(nn.Module, ABC):
    """Trainable state that the loop optimises: a module of everything that is learned.

    Its state dict is what a checkpoint holds besides the optimizer's state.
    """

    @property
    @abstractmethod
    def model(self) -> Model:
        """The model, unregistered."""

    def batches(self, source: Source, fit_job: FitJob, epoch: int) -> Iterator[tuple[Any, Tensor]]:
        """One epoch of batches, in an order drawn from (seed, epoch) alone."""
        return source(generator(fit_job.seed, "order", epoch), fit_job.batch_size)

    def examples(self, y: Tensor) -> int:
        """B, the number of examples in a batch with these targets."""
        return len(y)

    def divergence(self) -> Tensor | None:
        """The KL as it stands, where steps do not compute it."""
        return None

    def monitor(self) -> dict[str, float]:
        """Numbers for the history."""
        return {}

    def after_epoch(self, epoch: int, epochs: int) -> None:
        """Called after every epoch."""

    def after_fit(self) -> None:
        """Called after the last epoch."""

    @abstractmethod
    def fitted(self) -> Fitted:
        """The posterior as it stands."""


L = TypeVar("L", bound=Learner)
#: (learner, learning rate, N) -> optimizer
MakeOptimizer = Callable[[L, "float | Tensor", int], torch.optim.Optimizer]
#: (x, y, KL weight) -> (summed nll, KL), both detached
RunStep = Callable[[Any, Tensor, float], tuple[Tensor, Tensor]]
#: (learner, optimizer, N, compile) -> step
MakeStep = Callable[[L, torch.optim.Optimizer, int, "bool | str"], RunStep]


def train(
    learner: L,
    fit_job: FitJob,
    make_optimizer: MakeOptimizer[L],
    make_step: MakeStep[L],
    beta: float = 1.0,
    schedule: Schedule = constant,
    warmup: int = 0,
    decay: Callable[[float], float] = hold,
    compile: bool | str = False,
) -> Fitted:
    """Epochs of the steps that ``make_step`` gives; a fit of no given length ends when its
    objective has settled.

    Epoch e draws its data order and its noise from (seed, e) alone, so a checkpoint holds only
    tensors and resuming repeats what an uninterrupted run would have done.
    """
    model, num_data = learner.model, fit_job.source.num_data
    shell = model.shell()
    shell.place(model.frozen())
    source, count = model.on_device(fit_job.source), fit_job.source.num_batches(fit_job.batch_size)
    cuda = model.device.type == "cuda"
    # on a GPU a tensor, so that a captured graph sees it change
    lr = torch.tensor(fit_job.lr, device=model.device) if cuda else fit_job.lr
    optimizer = make_optimizer(learner, lr, num_data)
    step = make_step(learner, optimizer, num_data, compile)
    begin = _restore(learner, optimizer, fit_job)
    settling = _settling(fit_job, count, warmup, decay) if fit_job.settles else None
    if settling is not None:
        settling.replay(fit_job.history, beta)
    begun = last_saved = time.monotonic()
    with fit_job.progress_bar(fit_job.epochs) as advance:
        advance(begin)
        for epoch in range(begin, fit_job.epochs):
            shell.train(True)
            progress = epoch / fit_job.epochs
            factor = decay(progress) if settling is None else settling.factor(epoch)
            _set_lr(optimizer, fit_job.lr * factor)
            started = time.perf_counter()
            batches = 0
            nll = torch.zeros((), dtype=torch.float64, device=model.device)
            kl, seen = nll, 0
            with isolated(mix(fit_job.seed, "noise", epoch), model.device):
                for x, y in learner.batches(source, fit_job, epoch):
                    x, y = model.move(x), model.move(y)
                    share = (epoch + batches / count) / warmup if warmup else 1.0
                    weight = schedule(share, batches, count)
                    _set_kl_weight(optimizer, weight)
                    try:
                        part, kl = step(x, y, beta * weight)
                    except ValueError as error:  # such as BatchNorm's about a batch of one example
                        raise DataError(
                            f"The network cannot train on a batch of {learner.examples(y)}: "
                            f"{error}; choose another batch_size."
                        ) from error
                    nll += part
                    batches, seen = batches + 1, seen + learner.examples(y)
            own = learner.divergence()
            kl = kl if own is None else own
            row = _row(
                epoch, float(nll) * num_data / seen, float(kl), time.perf_counter() - started
            )
            row |= learner.monitor()
            learner.after_epoch(epoch, fit_job.epochs)
            if fit_job.validate is not None:
                shell.train(False)
                now = learner.fitted()
                row["validation_nll"] = fit_job.validate(now.posterior, now.buffers)
            if fit_job.callbacks and fit_job.show is not None:
                fit_job.show(learner.fitted())
            late = fit_job.is_late(time.monotonic() - begun, settling is not None)
            ended = _ended(row, epoch, fit_job, settling, beta, late)
            stop = fit_job.note(row) or ended
            if fit_job.run is not None and (
                stop or time.monotonic() - last_saved >= fit_job.checkpoint_seconds
            ):
                fit_job.run.checkpoint(_state(learner, optimizer), epoch)
                last_saved = time.monotonic()
            advance(1, f"elbo {row['elbo']:.4g}")
            if stop:
                break
    learner.after_fit()
    return learner.fitted()


def _settling(
    fit_job: FitJob, count: int, warmup: int, decay: Callable[[float], float]
) -> Settling:
    least = max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / count), 2 * warmup)
    enough = tolerance(fit_job.source.num_data, fit_job.problem.num_weights)
    return Settling(fit_job.epochs, least, enough, decay)


def _ended(
    row: dict[str, Any],
    epoch: int,
    fit_job: FitJob,
    settling: Settling | None,
    beta: float,
    late: bool,
) -> bool:
    """Whether this epoch is the last; the row says why, and where the learning rate begins to
    fall.
    """
    if settling is None:
        last = epoch == fit_job.epochs - 1
        row |= {"ended": "seconds" if late else "epochs"} if last or late else {}
        return last or late
    reason = settling.observe(row["nll"] + beta * row["kl"], late)
    row |= {} if reason is None else {"cooling": reason}
    row |= {"ended": settling.reason} if settling.done else {}
    return settling.done


def _set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        own = lr * group.get("factor", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def _set_kl_weight(optimizer: torch.optim.Optimizer, weight: float) -> None:
    """For an optimizer that accounts for the prior by itself; a captured graph needs a tensor."""
    for group in optimizer.param_groups:
        if "kl_weight" in group:
            group["kl_weight"].fill_(weight)


def _row(epoch: int, nll: float, kl: float, seconds: float) -> dict[str, Any]:
    """One row of history, in nats per data set; the ELBO counts the KL fully whatever weight
    training gave it.
    """
    if not math.isfinite(nll + kl):
        raise CredoError(
            f"The objective is no longer finite in epoch {epoch + 1} (nll {nll:.4g}, KL "
            f"{kl:.4g}); use a smaller lr."
        )
    return {"epoch": epoch, "nll": nll, "kl": kl, "elbo": -nll - kl, "seconds": seconds}


def _state(learner: Learner, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"elbo/{name}": tensor for name, tensor in learner.state_dict().items()
    } | pack_optimizer(optimizer)


def _restore(learner: Learner, optimizer: torch.optim.Optimizer, fit_job: FitJob) -> int:
    """Load the last checkpoint, if there is one; the epoch to go on with."""
    saved = fit_job.run.restore() if fit_job.run is not None else None
    if fit_job.run is None or saved is None:
        if fit_job.run is not None:
            fit_job.run.history(-1)
        return 0
    tensors, epoch = saved
    learner.load_state_dict(
        {name.removeprefix("elbo/"): t for name, t in tensors.items() if name.startswith("elbo/")}
    )
    unpack_optimizer(optimizer, tensors)
    fit_job.history[:] = fit_job.run.history(epoch)
    return epoch + 1


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's state as named tensors."""
    out = {}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            out[f"optimizer/{index}/{key}"] = torch.as_tensor(value)
    return out


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put a packed state back."""
    whole = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            index, _, key = rest.partition("/")
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict(whole | {"state": state})
