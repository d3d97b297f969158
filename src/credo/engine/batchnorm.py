"""Statistics of batch normalisation for weights that no training step has seen."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from credo.core.seeds import generator, isolated, mix
from credo.engine.fit_job import FitJob
from credo.engine.model import Model
from credo.posteriors import Params


def norms(net: nn.Module) -> list[str]:
    """Paths of BatchNorm layers that keep running statistics."""
    kind = nn.modules.batchnorm._BatchNorm
    return [
        path
        for path, m in net.named_modules()
        if isinstance(m, kind) and m.running_mean is not None
    ]


@torch.no_grad()
def statistics(model: Model, fit_job: FitJob, draws: Iterable[Params]) -> Params:
    """Running means and variances ``(S, ...)`` of every normalised layer, by the network's names,
    one row for each set of parameters.

    Each is the plain average over the batches of one epoch, all in the same order; layers other
    than BatchNorm are in evaluation mode. A last batch of a single example is left out, since it
    may have no variance.
    """
    shell, paths = model.shell(), norms(model.net)
    modules = [shell.module.get_submodule(path) for path in paths]
    names = [f"{path}.{leaf}" for path in paths for leaf in ("running_mean", "running_var")]
    source = model.on_device(fit_job.source)
    # where all batches are single examples these have a variance of their own, such as over an
    # image: training has shown it
    single = fit_job.source.num_batches(fit_job.batch_size) == len(fit_job.source.targets())
    before = [module.momentum for module in modules]
    shell.train(False, paths)
    shell.place(model.frozen())
    rows: dict[str, list[Tensor]] = {name: [] for name in names}
    try:
        for module in modules:
            module.momentum = None  # type: ignore[assignment]  # torch's sign for a plain average
        for values in draws:
            buffers = model.buffers()
            for path in paths:
                buffers[f"{path}.running_mean"].zero_()
                buffers[f"{path}.running_var"].fill_(1.0)
                buffers[f"{path}.num_batches_tracked"].zero_()
            shell.place(buffers)
            shell.place(values)
            with isolated(mix(fit_job.seed, "statistics"), model.device):
                for x, y in source(generator(fit_job.seed, "statistics", 0), fit_job.batch_size):
                    if single or len(y) > 1:
                        shell(model.move(x))
            for name in names:
                rows[name].append(shell.placed(name))
    finally:
        for module, momentum in zip(modules, before, strict=True):
            module.momentum = momentum
        shell.train(False)
    return {name: torch.stack(found) for name, found in rows.items()}
