"""Passes over the data that add up the curvature sum_n J_n^T Lambda_n J_n of the log-likelihood.

Lambda is the likelihood's Fisher information about its outputs (generalised Gauss-Newton, "ggn"),
the outer product of the score of the observed targets ("empirical"), or of targets drawn from the
network itself ("mc"). In each case Lambda = R R^T, and every column of R is one backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.seeds import generator
from credo.core.shell import Shell, plain_attention, plain_kernels
from credo.core.sites import Site
from credo.core.tree import leaves, map_tensors, num_rows, take
from credo.core.vectorise import VmapOrLoop
from credo.curvature.taps import Tap, caught_numel, find_taps, gradients, prepared, tapped
from credo.engine.fit_job import FitJob
from credo.engine.model import Model
from credo.likelihoods.fisher_information import score
from credo.posteriors import Params

BUDGET = 1 << 26  # numbers of derivatives held at once, 256 MB in float32
BATCH = 2000  # examples in a pass, where they fit


@dataclass(frozen=True)
class Sweep:
    """A model at fixed weights, its data, and how curvature is measured."""

    model: Model
    values: Params
    buffers: Mapping[str, Tensor]
    fit_job: FitJob
    kind: str = "ggn"
    mc_samples: int = 1

    def taps(self) -> dict[str, Tap]:
        """Layers with derivatives in factors."""
        return find_taps(self.model, self.values, self.buffers, self.fit_job.source.example(2))

    def batches(self, size: int = BATCH) -> Iterator[tuple[Any, Tensor]]:
        """One pass over the data, which must show all of them."""
        seen = 0
        for x, y in self.fit_job.source(None, min(size, self.fit_job.source.num_data)):
            seen += len(y)
            yield self.model.move(x), self.model.move(y)
        if seen != self.fit_job.source.num_data:
            raise SettingError(
                f"Curvature is a sum over all data, but one pass saw {seen} examples and num_data "
                f"is {self.fit_job.source.num_data}; give a "
                "loader that shows every example once."
            )

    def root(self, outputs: Tensor, y: Tensor, batch_number: int) -> Tensor:
        """R ``(N, F, K)`` of a batch; ``batch_number``: where it stands in the pass."""
        likelihood, f = self.model.likelihood, outputs.detach()
        if self.kind == "ggn":
            return likelihood.information_root(f).detach()
        if self.kind == "empirical":
            return score(likelihood, f, likelihood.check_pair(f, y)).unsqueeze(-1)
        stacked = f.unsqueeze(0).expand(self.mc_samples, *f.shape)
        drawn = likelihood.observed.sample(
            stacked, generator(self.fit_job.seed, "fisher", batch_number, device=f.device)
        )
        return torch.movedim(score(likelihood.observed, stacked, drawn), 0, -1) / math.sqrt(
            self.mc_samples
        )

    def nll(self, outputs: Tensor, y: Tensor) -> float:
        """Summed over a batch."""
        return -float(
            self.model.likelihood.log_prob(
                outputs.detach(), self.model.likelihood.check_pair(outputs, y)
            )
            .detach()
            .double()
            .sum()
        )


class ObservedBatch(NamedTuple):
    """What curvature needs of one batch of N examples.

    ``inputs``: of every tapped layer ``(N, R, I)``. ``grads``: for every direction, the gradients
    ``(N, R, O)`` of every tapped layer. ``root``: R ``(N, F, K)``, whose K columns are the
    directions. ``nll``: the negative log-likelihood, summed.
    """

    inputs: dict[str, Tensor]
    grads: Iterator[dict[str, Tensor]]
    root: Tensor
    nll: float
    examples: int


def observe(
    sweep: Sweep, taps: Mapping[str, Tap], size: int = BATCH
) -> Iterator[tuple[Any, ObservedBatch]]:
    """One pass over the data: inputs x and what is observed of every batch, whose ``grads`` must
    be read before the next batch.
    """
    shell = prepared(sweep.model, sweep.values, sweep.buffers)
    size = min(size, max(1, BUDGET // max(1, caught_numel(sweep.model, taps))))
    for number, (x, y) in enumerate(sweep.batches(size)):
        outputs, caught = tapped(sweep.model, shell, taps, x)
        root = sweep.root(outputs, y, number)
        columns = root.unbind(-1)

        def grads(
            outputs: Tensor = outputs, caught: Any = caught, columns: Any = columns
        ) -> Iterator[dict[str, Tensor]]:
            for place, column in enumerate(columns):
                yield gradients(outputs, caught, column, place + 1 < len(columns)) if caught else {}

        inputs = {path: c.inputs for path, c in caught.items()}
        yield x, ObservedBatch(inputs, grads(), root, sweep.nll(outputs, y), num_rows(x))


def jacobian_chunks(
    sweep: Sweep, sites: Mapping[str, Site], x: Any, root: Tensor
) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """R^T J of each example by parameters without factors, ``(n, K, P)``, a few examples at a
    time.
    """
    numel = sum(site.numel for site in sites.values()) * root.shape[-1]
    chunk = max(1, BUDGET // max(numel, 1))
    total = num_rows(x)
    for start in range(0, total, chunk):
        rows = slice(start, min(start + chunk, total))
        yield (
            rows,
            example_jacobians(
                sweep.model, sweep.values, sweep.buffers, sites, take(x, rows), root[rows]
            ),
        )


def example_jacobians(
    model: Model,
    values: Params,
    buffers: Mapping[str, Tensor],
    sites: Mapping[str, Site],
    x: Any,
    root: Tensor,
) -> dict[str, Tensor]:
    """R^T J of every example, ``(n, K, P)`` by parameter: by vmap over examples where it can run
    the network, else one after another.
    """
    shell = prepared(model, values, buffers)
    start = {name: values[name].detach() for name in sites}

    def one(x: Any, root: Tensor) -> dict[str, Tensor]:
        def run(values: Params) -> Tensor:
            shell.place(values)
            lifted = map_tensors(lambda t: t.unsqueeze(0), x)
            return model.outputs(shell, lifted)[0]

        _, pull = torch.func.vjp(run, start)  # type: ignore[misc]
        return torch.vmap(lambda column: pull(column)[0])(root.mT)

    def at_once() -> dict[str, Tensor]:
        with plain_kernels(shell):
            found = torch.vmap(one)(x, root)
        return {name: value.flatten(2) for name, value in found.items()}

    def in_turn() -> dict[str, Tensor]:
        return _rows_in_turn(model, shell, start, x, root)

    # a whole number beside the tensors, or one that all examples share, cannot be mapped over
    mapped = all(isinstance(t, Tensor) and t.shape[:1] == (num_rows(x),) for t in leaves(x))
    run = VmapOrLoop(f"Derivatives of {', '.join(sites)} example by example", not mapped, True)
    try:
        return run(at_once, in_turn)
    finally:
        shell.place(start)


@torch.enable_grad()
def _rows_in_turn(
    model: Model, shell: Shell, values: Params, x: Any, root: Tensor
) -> dict[str, Tensor]:
    """``example_rows`` by one backward pass per example and column of R."""
    copies = {name: value.clone().requires_grad_() for name, value in values.items()}
    shell.place(copies)
    rows: dict[str, list[Tensor]] = {name: [] for name in values}
    with plain_attention():
        for number in range(num_rows(x)):
            outputs = model.outputs(shell, take(x, slice(number, number + 1)))
            columns = root[number].unbind(-1)
            parts: list[Any] = [[None] * len(copies)] * len(columns)
            if outputs.requires_grad:  # else no parameter reaches them
                parts = [
                    torch.autograd.grad(
                        outputs[0],
                        list(copies.values()),
                        column,
                        retain_graph=True,
                        allow_unused=True,
                    )
                    for column in columns
                ]
            for place, (name, copy) in enumerate(copies.items()):
                found = [
                    torch.zeros_like(copy) if part[place] is None else part[place] for part in parts
                ]
                rows[name].append(torch.stack(found).flatten(1))
    return {name: torch.stack(values) for name, values in rows.items()}
