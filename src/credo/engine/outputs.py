"""Network outputs under posterior draws: a loop, or all draws at once by vmap; the numbers are the
same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.core.masks import DROPOUTS
from credo.core.roots import semidefinite_root
from credo.core.seeds import generator, isolated, mix
from credo.core.shell import Shell, plain_attention
from credo.core.tree import num_rows, split, tensors
from credo.core.vectorise import VmapOrLoop
from credo.engine.draws import Draws
from credo.engine.model import Model, refused_inputs
from credo.estimators import LIKELIHOOD
from credo.estimators.moments import propagate
from credo.likelihoods.base import Likelihood
from credo.posteriors import Params, Posterior, Process, RowNoise
from credo.predictive.shortcuts import Shortcut, shortcuts

_LOOP_BUDGET = (
    1 << 21
)  # numbers drawn together by the loop: several small networks at once, without leaving the cache
_CHUNKS = 8  # that vmapped draws are cut into on a CPU, for the cache's sake
_SHARED = 0.25  # of the parameters, embeddings not counted, that must come first
_BUDGET = {"cpu": 1 << 26, "cuda": 1 << 28}  # numbers held at once by vmapped draws


def sampled_outputs(
    model: Model,
    draws: Draws,
    x: Any,
    buffers: Mapping[str, Tensor],
    seed: int,
    batch_size: int | None = None,
    vectorise: bool | None = None,
) -> tuple[Tensor, Params]:
    """Outputs ``(S, N, F)`` for these draws, and drawn likelihood parameters ``(S, ...)`` if any.

    ``vectorise=None`` chooses vmap on a GPU and wherever a deterministic first part of the network
    can be shared; a network vmap cannot handle is looped over, said once. Where the network's own
    noise is part of a draw there is a loop always: that noise is drawn inside the call, so it
    depends on the batches.
    """
    shell = model.shell()
    shell.train(False, draws.noisy_modules)
    shell.place(model.frozen())
    shell.place(buffers)
    x = model.move(x)
    batches = list(split(x, batch_size))
    if draws.process is not None:
        return _functions(shell, draws, draws.process, batches, seed), {}
    runner = _Runner(model, shell, draws, seed)
    asked = vectorise or model.device.type == "cuda"
    if vectorise is None:
        vectorise = model.device.type == "cuda" or _shares_prefix(model, draws.fixed)
    loop = not vectorise or len(draws.numbers) < 2 or bool(draws.noisy_modules)

    @torch.no_grad()
    def in_turn() -> tuple[Tensor, Params]:
        with refused_inputs(x):
            return runner.looped(batches)

    if loop:
        return in_turn()
    run = VmapOrLoop("Predicting draw by draw" if asked else None, out_of_memory=True)
    with torch.no_grad():
        return run(lambda: runner.vectorised(batches), in_turn)


@torch.no_grad()
def _functions(
    shell: Shell, draws: Draws, process: Process, batches: Sequence[Any], seed: int
) -> Tensor:
    """Values ``(S, N, F)`` of a process's functions."""
    shell.place({n: v[0] for n, v in draws.realise(draws.numbers[:1]).items()})
    inputs = [process.read(shell, batch) for batch in batches]
    if draws.average:
        return torch.cat([process.average(rows) for rows in inputs]).unsqueeze(0)
    if draws.joint:
        inputs = [torch.cat(inputs)]
    noise, parts, start = RowNoise(seed, draws.numbers, sum(map(len, inputs))), [], 0
    for rows in inputs:
        parts.append(process.outputs(rows, noise.at(start, start + len(rows)), draws.joint))
        start += len(rows)
    return torch.cat(parts, 1)


def moment_outputs(
    model: Model,
    posterior: Posterior,
    x: Any,
    buffers: Mapping[str, Tensor],
    samples: int,
    covariance: str,
    batch_size: int | None,
) -> Tensor:
    """Outputs ``(S, N, F)`` that stand for the Gaussian which moment propagation gives: one pass,
    and no draw of any weight.

    The same fixed points for every input, moved and scaled so that their mean and covariance over S
    are exactly the Gaussian's.
    """
    if posterior.noisy_modules:
        raise SettingError(
            "The network is random by itself, which moments do not see; predict without "
            "shortcut='moments'."
        )
    if samples < 2:
        raise SettingError(
            f"samples={samples}: moments are shown by points with their variance, of which it "
            "takes at least 2."
        )
    shell = model.shell()
    shell.train(False)
    shell.place(model.frozen())
    shell.place(buffers)
    parts = []
    with torch.no_grad():
        for batch in split(model.move(x), batch_size):
            mean, variance = propagate(shell, posterior, batch, covariance, model.output)
            parts.append(shown(mean, variance, samples))
    return torch.cat(parts, 1)


shortcuts.register("moments")(Shortcut(partial(moment_outputs, covariance="diagonal")))
shortcuts.register("moments_full")(Shortcut(partial(moment_outputs, covariance="full")))


def shown(mean: Tensor, covariance: Tensor, samples: int) -> Tensor:
    """Points ``(S, N, F)`` with exactly this mean and these variances ``(N, F)`` or covariances
    ``(N, F, F)``, the same ones for every input.
    """
    points = _white(samples, mean.shape[-1]).to(mean)
    if covariance.dim() > mean.dim():
        return mean + torch.einsum("sf,nof->sno", points, semidefinite_root(covariance))
    return mean + covariance.clamp_min(0).sqrt() * points.unsqueeze(1)


def _white(samples: int, width: int) -> Tensor:
    """``(S, width)`` points like normal draws, with mean zero and identity covariance exactly,
    where S allows it.
    """
    quantiles = (torch.arange(samples, dtype=torch.float64) + 0.5) / samples
    ladder = torch.special.ndtri(quantiles)
    order = [
        torch.randperm(samples, generator=generator("white", column)) for column in range(width)
    ]
    points = torch.stack([ladder[o] for o in order], 1)
    points = points - points.mean(0)
    cover = points.T @ points / samples
    if samples > 2 * width:
        return torch.linalg.solve_triangular(torch.linalg.cholesky(cover), points.T, upper=False).T
    return points / cover.diagonal().sqrt().clamp_min(1e-12)


class _Runner:
    def __init__(self, model: Model, shell: Shell, draws: Draws, seed: int) -> None:
        self.model, self.shell, self.draws, self.seed = model, shell, draws, seed
        self.sites = model.sites

    def _split(self, draws: Params) -> tuple[Params, Params]:
        draws = {
            n: t.to(self.model.device) for n, t in draws.items()
        }  # those on disk are read into memory, and go where the model is
        own = {
            n: t.to(self.sites[n].dtype) if n in self.sites else t
            for n, t in draws.items()
            if not n.startswith(LIKELIHOOD)
        }
        return own, {
            n.removeprefix(LIKELIHOOD): t for n, t in draws.items() if n.startswith(LIKELIHOOD)
        }

    def _chunks(self, budget: int, width: int = 0) -> Iterator[Sequence[int]]:
        """Numbers of draws whose parameters together stay within ``budget``, and so does what
        modules of this width give for them.

        On a CPU activations are best kept in the cache, but in few chunks, since each computes anew
        what all draws share.
        """
        numel = sum(s.numel for n, s in self.model.random.items() if n not in self.draws.fixed)
        size, numbers = max(1, budget // max(numel, width, 1)), self.draws.numbers
        if width and self.model.device.type == "cpu":
            size = min(size, max(-(-len(numbers) // _CHUNKS), _LOOP_BUDGET // width))
        return (numbers[start : start + size] for start in range(0, len(numbers), size))

    def looped(self, batches: list[Any]) -> tuple[Tensor, Params]:
        """One pass per draw; a network that is random by itself gets its own stream per draw."""
        rows, extras = [], []
        for chunk in self._chunks(_LOOP_BUDGET):
            own, extra = self._split(self.draws.realise(chunk))
            for place, number in enumerate(chunk):
                self.shell.place({n: t[place] for n, t in own.items()})
                with isolated(mix(self.seed, number, "forward"), self.model.device):
                    rows.append(
                        torch.cat([self.model.outputs(self.shell, batch) for batch in batches])
                    )
            extras.append(extra)
        return torch.stack(rows), {n: torch.cat([extra[n] for extra in extras]) for n in extras[0]}

    def vectorised(self, batches: list[Any]) -> tuple[Tensor, Params]:
        """Chunks of draws by vmap; what no draw changes is placed once and shared."""
        with plain_attention():
            return self._vectorised(batches)

    def _vectorised(self, batches: list[Any]) -> tuple[Tensor, Params]:
        rows, extras = [], []
        for chunk in self._chunks(_BUDGET[self.model.device.type], self._width(batches[0])):
            own, extra = self._split(self.draws.realise(chunk))
            self.shell.place({n: t[0] for n, t in own.items() if n in self.draws.fixed})
            varied = {n: t for n, t in own.items() if n not in self.draws.fixed}
            run = torch.vmap(self._forward, in_dims=(0, None))
            parts = [run(varied, batch) for batch in batches]
            rows.append(parts[0] if len(parts) == 1 else torch.cat(parts, 1))
            extras.append(extra)
        return rows[0] if len(rows) == 1 else torch.cat(rows), {
            n: torch.cat([extra[n] for extra in extras]) for n in extras[0]
        }

    def _width(self, batch: Any) -> int:
        """Numbers that one draw's widest activation takes, told from two examples and
        remembered.
        """
        few = next(iter(split(batch, 2)))
        known, key = (
            self.model.widths,
            (frozenset(self.draws.fixed), *(t.shape[1:] for t in tensors(few))),
        )
        if key not in known:
            own, _ = self._split(self.draws.realise(self.draws.numbers[:1]))
            self.shell.place({n: t[0] for n, t in own.items()})
            with isolated(self.seed, self.model.device):
                width = self.shell.width(few, [n for n in own if n not in self.draws.fixed])
            known[key] = width // num_rows(few)
        return known[key] * num_rows(batch)

    def _forward(self, params: Params, batch: Any) -> Tensor:
        self.shell.place(params)
        return self.model.outputs(self.shell, batch)


def _shares_prefix(model: Model, fixed: Collection[str]) -> bool:
    """Whether a good part of the network comes before all that draws change, so that vmap, which
    computes it once, pays on a CPU.
    """
    before = total = 0
    same = True
    for path, module in model.net.named_modules():
        same = same and type(module) not in DROPOUTS
        for leaf, parameter in module._parameters.items():
            name = f"{path}.{leaf}".lstrip(".")
            if parameter is not None and not isinstance(module, nn.Embedding):
                same = same and (name in fixed or name not in model.sites)
                total += parameter.numel()
                before += parameter.numel() if same else 0
    return before >= _SHARED * total


def with_drawn(likelihood: Likelihood, drawn: Params) -> Likelihood:
    """The likelihood with drawn parameters ``(S, ...)`` in place of its own, shaped against outputs
    ``(S, N, F)``.
    """
    if not drawn:
        return likelihood
    other = likelihood.frozen()
    for name, value in drawn.items():
        other._parameters.pop(name, None)
        other._buffers[name] = value.reshape(len(value), 1, -1)
    return other
