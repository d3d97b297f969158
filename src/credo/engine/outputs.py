"""Network outputs under posterior draws: a loop, or all draws at once by vmap; the numbers are the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo.core.errors import NetworkError, SettingError
from credo.core.seeds import generator, isolated, mix
from credo.core.shell import Shell
from credo.engine.model import Model
from credo.estimators import LIKELIHOOD
from credo.estimators.moments import propagate
from credo.estimators.plan import batch_of
from credo.likelihoods.base import Likelihood
from credo.posteriors import Factorised, Family, Params, Posterior

Realise = Callable[[Sequence[int]], Params]
_LOOP_BUDGET = 1 << 21  # numbers drawn together by the loop: several small networks at once, without leaving the cache
_BUDGET = {"cpu": 1 << 26, "cuda": 1 << 28}  # numbers held at once by vmapped draws


def sampled_outputs(
    model: Model,
    realise: Realise,
    numbers: Sequence[int],
    x: Any,
    buffers: Mapping[str, Tensor],
    seed: int,
    batch_size: int | None = None,
    vectorise: bool | None = None,
) -> tuple[Tensor, Params]:
    """Outputs ``(S, N, F)`` for the draws with these numbers, and drawn likelihood parameters ``(S, ...)`` if any.

    ``realise(numbers)`` gives stacked draws. ``vectorise=None`` chooses vmap on a GPU and wherever a deterministic first
    part of the network can be shared; a network vmap cannot handle is looped over, said once.
    """
    shell = model.shell()
    shell.train(False)
    shell.place(model.frozen())
    shell.place(buffers)
    x = model.move(x)
    batches = list(_batches(x, batch_size))
    runner = _Runner(model, shell, realise, seed)
    if vectorise is None:
        vectorise = model.device.type == "cuda" or _shares_prefix(model)
    with torch.no_grad():
        if vectorise and len(numbers) > 1:
            try:
                return runner.vectorised(numbers, batches)
            except (RuntimeError, NotImplementedError, ValueError) as error:
                warnings.warn(
                    f"Predicting draw by draw: vmap cannot run this network ({str(error).splitlines()[0]}).", stacklevel=3
                )
        try:
            return runner.looped(numbers, batches)
        except torch.cuda.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            shapes = [tuple(t.shape) for t in pytree.tree_leaves(x) if isinstance(t, Tensor)]
            raise NetworkError(f"The network cannot take inputs of shape {shapes}: {str(error).splitlines()[0]}") from error


def moment_outputs(
    model: Model,
    posterior: Posterior,
    x: Any,
    buffers: Mapping[str, Tensor],
    samples: int,
    covariance: str,
    batch_size: int | None,
) -> Tensor:
    """Outputs ``(S, N, F)`` that stand for the Gaussian which moment propagation gives: one pass, and no draw of any weight.

    The same fixed points for every input, moved and scaled so that their mean and covariance over S are exactly the Gaussian's.
    """
    if samples < 2:
        raise SettingError(f"samples={samples}: moments are shown by points with their variance, of which it takes at least 2.")
    shell = model.shell()
    shell.train(False)
    shell.place(model.frozen())
    shell.place(buffers)
    parts = []
    with torch.no_grad():
        for batch in _batches(model.move(x), batch_size):
            mean, spread = propagate(shell, posterior, batch, covariance, model.output)
            points = _white(samples, mean.shape[-1]).to(mean)
            if covariance == "full":
                vectors = _root(spread)
                parts.append(mean + torch.einsum("sf,nof->sno", points, vectors))
            else:
                parts.append(mean + spread.clamp_min(0).sqrt() * points.unsqueeze(1))
    return torch.cat(parts, 1)


def _white(samples: int, width: int) -> Tensor:
    """``(S, width)`` points like normal draws, with mean zero and identity covariance exactly, where S allows it."""
    quantiles = (torch.arange(samples, dtype=torch.float64) + 0.5) / samples
    ladder = torch.special.ndtri(quantiles)
    order = [torch.randperm(samples, generator=generator("white", column)) for column in range(width)]
    points = torch.stack([ladder[o] for o in order], 1)
    points = points - points.mean(0)
    cover = points.T @ points / samples
    if samples > 2 * width:
        return torch.linalg.solve_triangular(torch.linalg.cholesky(cover), points.T, upper=False).T
    return points / cover.diagonal().sqrt().clamp_min(1e-12)


def _root(cover: Tensor) -> Tensor:
    """A square root of each covariance; rounding may have made eigenvalues slightly negative."""
    values, vectors = torch.linalg.eigh(cover)
    return vectors * values.clamp_min(0).sqrt().unsqueeze(-2)


class _Runner:
    def __init__(self, model: Model, shell: Shell, realise: Realise, seed: int) -> None:
        self.model, self.shell, self.realise, self.seed = model, shell, realise, seed
        self.sites = model.sites

    def _split(self, draws: Params) -> tuple[Params, Params]:
        own = {n: t.to(self.sites[n].dtype) for n, t in draws.items() if not n.startswith(LIKELIHOOD)}
        return own, {n.removeprefix(LIKELIHOOD): t for n, t in draws.items() if n.startswith(LIKELIHOOD)}

    def _chunks(self, numbers: Sequence[int], budget: int) -> Iterator[Sequence[int]]:
        """Numbers of draws whose random parameters together stay within ``budget``."""
        size = max(1, budget // max(sum(self.sites[n].numel for n in self.model.random), 1))
        return (numbers[start : start + size] for start in range(0, len(numbers), size))

    def looped(self, numbers: Sequence[int], batches: list[Any]) -> tuple[Tensor, Params]:
        """One pass per draw; a network that is random by itself gets its own stream per draw."""
        rows, extras = [], []
        for chunk in self._chunks(numbers, _LOOP_BUDGET):
            own, extra = self._split(self.realise(chunk))
            for place, number in enumerate(chunk):
                self.shell.place({n: t[place] for n, t in own.items()})
                with isolated(mix(self.seed, number, "forward"), self.model.device):
                    rows.append(torch.cat([self.model.outputs(self.shell, batch) for batch in batches]))
            extras.append(extra)
        return torch.stack(rows), {n: torch.cat([extra[n] for extra in extras]) for n in extras[0]}

    def vectorised(self, numbers: Sequence[int], batches: list[Any]) -> tuple[Tensor, Params]:
        """Chunks of draws by vmap; what no draw changes is placed once and shared."""
        rows, extras = [], []
        for chunk in self._chunks(numbers, _BUDGET[self.model.device.type]):
            own, extra = self._split(self.realise(chunk))
            same = {n: t[0] for n, t in own.items() if n not in self.model.random}
            varied = {n: t for n, t in own.items() if n in self.model.random}
            self.shell.place(same)
            run = torch.vmap(self._forward, in_dims=(0, None))
            rows.append(torch.cat([run(varied, batch) for batch in batches], 1))
            extras.append(extra)
        return torch.cat(rows), {n: torch.cat([extra[n] for extra in extras]) for n in extras[0]}

    def _forward(self, params: Params, batch: Any) -> Tensor:
        self.shell.place(params)
        return self.model.outputs(self.shell, batch)


def _shares_prefix(model: Model) -> bool:
    """Whether the network begins with parameters that are not random, so that vmap computes their layers once."""
    return next(name for name, _ in model.net.named_parameters()) not in model.random


def _batches(x: Any, batch_size: int | None) -> Iterator[Any]:
    total = batch_of(x)
    if batch_size is None or batch_size >= total:
        yield x
        return
    for start in range(0, total, batch_size):
        rows = slice(start, start + batch_size)
        yield pytree.tree_map(lambda t, rows=rows: t[rows] if isinstance(t, Tensor) and t.dim() and t.shape[0] == total else t, x)


def with_drawn(likelihood: Likelihood, drawn: Params) -> Likelihood:
    """The likelihood with drawn parameters ``(S, ...)`` in place of its own, shaped against outputs ``(S, N, F)``."""
    if not drawn:
        return likelihood
    other = likelihood.frozen()
    for name, value in drawn.items():
        other._parameters.pop(name, None)
        other._buffers[name] = value.reshape(len(value), 1, -1)
    return other


def prior_draws(model: Model, fixed: Params, numbers: Sequence[int], seed: int, families: Sequence[Family] = ()) -> Params:
    """Stacked draws of the random parameters from the prior, one stream per draw; the rest as they are.

    Where a posterior is discrete, ``families`` says so, and the prior is drawn on its levels.
    """
    kinds = {name: family for family in families for name in family.names}
    parts = {n: model.prior.at(s) for n, s in model.sites.items() if n in model.random}
    parts = {n: kinds[n].restrict(d) if n in kinds else d for n, d in parts.items()}
    prior = Factorised(parts, {n: s.shape for n, s in model.random.items()})
    rows = []
    for number in numbers:
        with isolated(mix(seed, number, "prior"), model.device):
            rows.append(prior.sample(1, fixed))
    drawn = {n: torch.cat([row[n] for row in rows]) for n in model.random}
    return drawn | {n: fixed[n].expand(len(numbers), *fixed[n].shape) for n in model.point}
