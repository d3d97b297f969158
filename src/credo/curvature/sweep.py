"""Passes over the data that add up the curvature sum_n J_n^T Lambda_n J_n of the log-likelihood.

Lambda is the likelihood's Fisher information about its outputs (generalised Gauss-Newton, "ggn"),
the outer product of the score of the observed targets ("empirical"), or of targets drawn from the
network itself ("mc"). In each case Lambda = R R^T, and every column of R is one backward pass.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo.core.errors import SettingError
from credo.core.seeds import generator
from credo.core.shell import plain_attention, plain_kernels
from credo.core.sites import Site
from credo.curvature.taps import Tap, caught_numel, find_taps, gradients, prepared, tapped
from credo.engine.fit_job import FitJob
from credo.engine.model import Model
from credo.estimators.plan import batch_of
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
        yield x, ObservedBatch(inputs, grads(), root, sweep.nll(outputs, y), batch_of(x))


def jacobian_chunks(
    sweep: Sweep, sites: Mapping[str, Site], x: Any, root: Tensor
) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """R^T J of each example by parameters without factors, ``(n, K, P)``, a few examples at a
    time.
    """
    numel = sum(site.numel for site in sites.values()) * root.shape[-1]
    chunk = max(1, BUDGET // max(numel, 1))
    total = batch_of(x)
    for start in range(0, total, chunk):
        rows = slice(start, min(start + chunk, total))
        yield (
            rows,
            example_jacobians(
                sweep.model, sweep.values, sweep.buffers, sites, cut(x, rows, total), root[rows]
            ),
        )


def cut(x: Any, rows: slice, total: int) -> Any:
    """Some of the ``total`` examples of a batch."""
    return pytree.tree_map(
        lambda t: t[rows] if isinstance(t, Tensor) and t.dim() and t.shape[0] == total else t, x
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
    total = batch_of(x)

    def one(x: Any, root: Tensor) -> dict[str, Tensor]:
        def run(values: Params) -> Tensor:
            shell.place(values)
            lifted = pytree.tree_map(lambda t: t.unsqueeze(0) if isinstance(t, Tensor) else t, x)
            return model.outputs(shell, lifted)[0]

        _, pull = torch.func.vjp(run, start)  # type: ignore[misc]
        return torch.vmap(lambda column: pull(column)[0])(root.mT)

    flat = isinstance(x, Tensor) or all(
        isinstance(t, Tensor) and t.shape[:1] == (total,) for t in pytree.tree_leaves(x)
    )
    if flat:
        try:
            with plain_kernels(shell):
                found = torch.vmap(one)(x, root)
            return {name: value.flatten(2) for name, value in found.items()}
        except (RuntimeError, NotImplementedError, ValueError) as error:
            warnings.warn(
                f"Derivatives of {', '.join(sites)} example by example: vmap cannot run this "
                f"network ({str(error).splitlines()[0]}).",
                stacklevel=2,
            )
        finally:
            shell.place(start)
    leaves = {name: value.clone().requires_grad_() for name, value in start.items()}
    shell.place(leaves)
    rows: dict[str, list[Tensor]] = {name: [] for name in sites}
    try:
        with torch.enable_grad(), plain_attention():
            for number in range(total):
                outputs = model.outputs(shell, cut(x, slice(number, number + 1), total))
                columns = root[number].unbind(-1)
                parts: list[Any] = [[None] * len(leaves)] * len(columns)
                if outputs.requires_grad:  # else no parameter reaches them
                    parts = [
                        torch.autograd.grad(
                            outputs[0],
                            list(leaves.values()),
                            c,
                            retain_graph=True,
                            allow_unused=True,
                        )
                        for c in columns
                    ]
                for place, (name, leaf) in enumerate(leaves.items()):
                    found = [
                        torch.zeros_like(leaf) if part[place] is None else part[place]
                        for part in parts
                    ]
                    rows[name].append(torch.stack(found).flatten(1))
    finally:
        shell.place(start)
    return {name: torch.stack(values) for name, values in rows.items()}
