"""Which draws a prediction is made of (of a posterior's weights, of its functions, of the prior, or
its mean alone), and the network's outputs under them: in a loop, or all draws at once by vmap; the
numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from credo.core.errors import CredoError, SettingError
from credo.core.masks import DROPOUTS
from credo.core.seeds import isolated, mix
from credo.core.settings import positive, whole
from credo.core.shell import Shell, plain_attention
from credo.core.tree import num_rows, split, tensors
from credo.core.vectorise import VmapOrLoop
from credo.engine.model import Model, refused_inputs
from credo.estimators import LIKELIHOOD
from credo.likelihoods.base import Likelihood
from credo.posteriors import Family, Params, Posterior, Process, RowNoise
from credo.priors import Factorised

_LOOP_BUDGET = (
    1 << 21
)  # numbers drawn together by the loop: several small networks at once, without leaving the cache
_CHUNKS = 8  # that vmapped draws are cut into on a CPU, for the cache's sake
_SHARED = 0.25  # of the parameters, embeddings not counted, that must come first
_BUDGET = {"cpu": 1 << 26, "cuda": 1 << 28}  # numbers held at once by vmapped draws


Realise = Callable[[Sequence[int]], Params]


@dataclass(frozen=True)
class Draws:
    """Which draws: ``realise(numbers)`` gives them stacked.

    ``fixed``: parameters they leave alone; ``noisy_modules``: modules that stay noisy.

    A ``process`` draws functions instead, of what it reads from a network with the weights that
    ``realise`` gives for any one number; ``joint`` if values at different inputs must belong
    together; ``average`` for its mean function.
    """

    numbers: Sequence[int]
    realise: Realise
    fixed: Collection[str] = frozenset()
    noisy_modules: Collection[str] = frozenset()
    process: Process | None = None
    joint: bool = field(default=False, kw_only=True)
    average: bool = field(default=False, kw_only=True)

    @classmethod
    def of(cls, posterior: Posterior, samples: int, seed: int, joint: bool = False) -> Draws:
        """``samples`` draws of a posterior, made one chunk after another in the same memory."""
        if posterior.process is not None:
            values = posterior.mean()
            return replace(
                cls.point(values), numbers=range(samples), process=posterior.process, joint=joint
            )
        workspace: dict[object, Tensor] = {}

        def realise(numbers: Sequence[int]) -> Params:
            return posterior.realise(numbers, seed, workspace)

        return cls(posterior.numbers(samples), realise, posterior.fixed, posterior.noisy_modules)

    @classmethod
    def chosen(
        cls,
        model: Model,
        posterior: Posterior | None,
        source: str,
        samples: int,
        seed: int,
        joint: bool = False,
    ) -> Draws:
        """Draws of the posterior, or of the prior around what the posterior holds fixed."""
        positive("num_samples", samples, 1)
        whole("seed", seed)
        if source == "posterior" and posterior is not None:
            return cls.of(posterior, samples, seed, joint)
        if source != "prior":
            raise SettingError(f"source={source!r}; expected 'posterior' or 'prior'.")
        process = None if posterior is None else posterior.process
        if process is not None and not process.of_network:
            raise CredoError(
                f"The prior of {process.name!r} is a Gaussian process, not this network's; "
                "source='prior' has nothing to draw."
            )
        if posterior is None or process is not None:
            return cls.prior(model, model.values(), (), samples, seed)
        return cls.prior(model, posterior.mean(), posterior.factors, samples, seed)

    @classmethod
    def point(cls, values: Mapping[str, Tensor]) -> Draws:
        """One set of parameters."""
        return cls([0], lambda _: {n: v.unsqueeze(0) for n, v in values.items()}, frozenset(values))

    @classmethod
    def mean(cls, posterior: Posterior, model: Model) -> Draws:
        """E[w], or the mean function of a process; refused where the mean is no network at all."""
        for family in posterior.factors:
            if family.meaningless_mean is not None and set(family.names) & set(model.sites):
                raise CredoError(
                    f"shortcut='mean' is not meaningful for a {family.name} posterior: "
                    f"{family.meaningless_mean}; predict with draws."
                )
        return replace(
            cls.point(posterior.mean()),
            process=posterior.process,
            average=posterior.process is not None,
        )

    @classmethod
    def prior(
        cls, model: Model, start: Params, families: Sequence[Family], samples: int, seed: int
    ) -> Draws:
        """Draws of the random parameters from the prior; the rest as in ``start``."""
        return cls(
            range(samples),
            lambda numbers: prior_draws(model, start, numbers, seed, families),
            frozenset(start) - frozenset(model.random),
        )


def prior_draws(
    model: Model, fixed: Params, numbers: Sequence[int], seed: int, families: Sequence[Family] = ()
) -> Params:
    """Stacked draws of the random parameters from the prior, one stream per draw; the rest as they
    are.

    Where a posterior is discrete, ``families`` says so, and the prior is drawn on its levels.
    """
    kinds = {name: family for family in families for name in family.names}
    parts = {n: model.prior.at(s) for n, s in model.sites.items() if n in model.random}
    parts = {n: kinds[n].restrict(d, n) if n in kinds else d for n, d in parts.items()}
    prior = Factorised(parts, {n: s.shape for n, s in model.random.items()})
    rows = []
    for number in numbers:
        with isolated(mix(seed, number, "prior"), model.device):
            rows.append(prior.sample(1, fixed))
    drawn = {n: torch.cat([row[n] for row in rows]) for n in model.random}
    return drawn | {
        n: v.expand(len(numbers), *v.shape) for n, v in fixed.items() if n not in model.random
    }


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
