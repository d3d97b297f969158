"""The training loop: epochs of steps, history, checkpoints; a killed run continues to the same
numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from credo.core.errors import CredoError, DataError
from credo.core.seeds import isolated, mix
from credo.engine.batches import on_device
from credo.engine.elbo import Elbo
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.learner import Learner
from credo.engine.progress import progress
from credo.engine.run import pack_optimizer, unpack_optimizer
from credo.engine.schedules import Schedule, constant, hold
from credo.engine.step import Step, make_step

L = TypeVar("L", bound=Learner)
MakeOptimizer = Callable[[L, "float | Tensor", int], torch.optim.Optimizer]
MakeStep = Callable[[L, torch.optim.Optimizer, int, bool | str], Step]


def adam(
    elbo: Elbo, lr: float | Tensor, num_data: int, rate_lr: float = 1.0
) -> torch.optim.Optimizer:
    """Fused Adam over everything that is learned; the posterior's dials at ``dial_lr`` times the
    learning rate.
    """
    rate_params = [
        p for family in elbo.posterior.members for p in family.rate_params() if p.requires_grad
    ]
    known = {id(p) for p in rate_params}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in elbo.parameters() if p.requires_grad and id(p) not in known]}
    ]
    if rate_params:
        groups.append({"params": rate_params, "lr": lr * rate_lr, "factor": rate_lr})
    return torch.optim.Adam(groups, lr=lr, fused=True, capturable=isinstance(lr, Tensor))


def descend(
    elbo: Elbo,
    fit_job: FitJob,
    *,
    beta: float = 1.0,
    schedule: Schedule = constant,
    warmup: int = 0,
    decay: Callable[[float], float] = hold,
    compile: bool | str = False,
    optimizer: MakeOptimizer[Elbo] | None = None,
) -> Fitted:
    """Minimise the negative ELBO with Adam, or with the optimizer that ``optimizer(elbo, lr,
    num_data)`` makes.
    """
    return train(
        elbo, fit_job, optimizer or adam, make_step, beta, schedule, warmup, decay, compile
    )


def train(
    learner: L,
    fit_job: FitJob,
    optimizer: MakeOptimizer[L],
    make: MakeStep[L],
    beta: float = 1.0,
    schedule: Schedule = constant,
    warmup: int = 0,
    decay: Callable[[float], float] = hold,
    compile: bool | str = False,
) -> Fitted:
    """Epochs of the steps that ``make(learner, optimizer, num_data, compile)`` gives.

    Epoch e draws its data order and its noise from (seed, e) alone, so a checkpoint holds only
    tensors and resuming repeats what an uninterrupted run would have done.
    """
    model, num_data = learner.model, fit_job.source.num_data
    shell = model.shell()
    shell.place(model.frozen())
    source, count = on_device(fit_job.source, model), fit_job.source.num_batches(fit_job.batch_size)
    cuda = model.device.type == "cuda"
    lr = (
        torch.tensor(fit_job.lr, device=model.device) if cuda else fit_job.lr
    )  # a tensor, so that a captured graph sees it change
    mover = optimizer(learner, lr, num_data)
    step = make(learner, mover, num_data, compile)
    begin = _restore(learner, mover, fit_job)
    last_saved = time.monotonic()
    with progress(fit_job, fit_job.epochs) as advance:
        advance(begin)
        for epoch in range(begin, fit_job.epochs):
            shell.train(True)
            _set_lr(mover, fit_job.lr * decay(epoch / fit_job.epochs))
            started = time.perf_counter()
            batches = 0
            nll = torch.zeros((), dtype=torch.float64, device=model.device)
            kl, seen = nll, 0
            with isolated(mix(fit_job.seed, "noise", epoch), model.device):
                for x, y in learner.batches(source, fit_job, epoch):
                    x, y = model.move(x), model.move(y)
                    share = (epoch + batches / count) / warmup if warmup else 1.0
                    weight = schedule(share, batches, count)
                    _tell(mover, weight)
                    try:
                        part, kl = step(x, y, beta * weight)
                    except ValueError as error:  # such as BatchNorm's about a batch of one example
                        raise DataError(
                            f"The network cannot train on a batch of {learner.examples(y)}: "
                            f"{error}; choose another batch_size."
                        ) from error
                    nll += part
                    batches, seen = batches + 1, seen + learner.examples(y)
            apart = learner.divergence()
            kl = kl if apart is None else apart
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
            stop = fit_job.note(row)
            if fit_job.run is not None and (
                stop or time.monotonic() - last_saved >= fit_job.checkpoint_seconds
            ):
                fit_job.run.checkpoint(_state(learner, mover), epoch)
                last_saved = time.monotonic()
            advance(1, f"elbo {row['elbo']:.4g}")
            if stop:
                break
    learner.after_fit()
    return learner.fitted()


def _set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        own = lr * group.get("factor", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def _tell(optimizer: torch.optim.Optimizer, weight: float) -> None:
    """The KL's weight, for an optimizer that takes the prior into account by itself; it holds a
    tensor, as a captured graph needs.
    """
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
