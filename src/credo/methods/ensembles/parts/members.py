"""Many networks that learn at once: stacked parameters, one vmapped pass, each with its own order
of the data.

Member k minimises its own sum(nll) / B - log p(w) / N and never hears of the others: Adam and SGD
move every number by itself, so stacked members end where members trained one after another do, up
to the order in which floating-point sums are taken. What the network draws by itself while it
trains (dropout) comes from another stream than alone. Where vmap cannot run the network, members
take turns.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.utils import _pytree as pytree

from credo.core.errors import SettingError
from credo.core.recorded_pass import Traced
from credo.core.seeds import generator, mix, put_state, take_state
from credo.core.shell import plain_attention
from credo.core.tree import take
from credo.data.source import Source
from credo.engine.batches import own_batches
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.model import Model
from credo.engine.training_loop import Learner
from credo.estimators import LIKELIHOOD
from credo.methods.ensembles.parts.stacked_linear import StackedLinear
from credo.posteriors import Delta, FamilyPrior, Params, Posterior, Samples
from credo.priors import Factorised, Flat


def member_seeds(seed: int, count: int) -> list[int]:
    """A seed for every member, the first the fit's own: an ensemble of one is the fit of one."""
    return [seed, *(mix(seed, "member", k) for k in range(1, count))]


def pays(net: nn.Module) -> bool:
    """Whether a pass of all members at once is the faster one: not with convolutions, which vmap
    turns into grouped ones.
    """
    return not any(isinstance(module, nn.modules.conv._ConvNd) for module in net.modules())


Feed = Callable[[Source, Sequence[torch.Generator], int | None], Iterator[tuple[Any, Tensor]]]


class Trace(nn.Module, ABC):
    """What a fit gathers on its way; it is part of the checkpoint."""

    @abstractmethod
    def begin(self, flock: Flock) -> None:
        """Make room for what this flock will show."""

    @abstractmethod
    def see(self, flock: Flock, epoch: int, epochs: int) -> None:
        """Called after every epoch."""


class Flock(Learner):
    """K members: ``values`` of the network, learned parameters of the likelihood and buffers, each
    with a leading axis K.
    """

    def __init__(
        self,
        model: Model,
        starts: Sequence[Params],
        seeds: Sequence[int],
        trace: Trace | None = None,
        vectorise: bool | None = None,
    ) -> None:
        super().__init__()
        if model.prior.parts():
            raise SettingError(
                "Members of an ensemble cannot share a learned prior; give it a fixed one."
            )
        self.count, self.seeds = len(starts), tuple(seeds)
        self._model = [model]  # in a list, so that it is not registered
        self._voice = [
            copy.deepcopy(model.likelihood)
        ]  # likewise: the likelihood as one member speaks it
        self.names = tuple(starts[0])
        self.stacked = nn.ParameterList(
            [torch.stack([start[name] for start in starts]) for name in self.names]
        )
        learned = {n: p for n, p in model.likelihood.named_parameters() if p.requires_grad}
        inner = next((name for name in learned if "." in name), None)
        if inner is not None:
            raise SettingError(
                f"The {model.likelihood.name} likelihood learns {inner!r} in a module inside it; "
                "for members of an ensemble make it a "
                "parameter of the likelihood itself."
            )
        self.noise_names = tuple(learned)
        self.noise = nn.ParameterList(
            [p.detach().expand(self.count, *p.shape).clone() for p in learned.values()]
        )
        self.buffer_names = tuple(model.buffers())
        for index, buffer in enumerate(model.buffers().values()):
            self.register_buffer(f"b{index}", buffer.expand(self.count, *buffer.shape).clone())
        self.trace = trace
        if trace is not None:
            trace.begin(self)
        at_once = pays(model.net) if vectorise is None else vectorise
        self.looped, self._settled = self.count == 1 or not at_once, False
        self.traced: Traced | None = None
        self.feed: Feed = own_batches
        self._priors = self._split_prior()

    @property
    def model(self) -> Model:
        """The model, unregistered."""
        return self._model[0]

    def values(self) -> Params:
        """Parameters of the network by name, ``(K, *shape)``."""
        return dict(zip(self.names, self.stacked, strict=True))

    def voices(self) -> Params:
        """Learned parameters of the likelihood by name, ``(K, *shape)``."""
        return dict(zip(self.noise_names, self.noise, strict=True))

    def buffers_(self) -> Params:
        """Buffers of the network by name, ``(K, *shape)``."""
        return {name: getattr(self, f"b{index}") for index, name in enumerate(self.buffer_names)}

    # --- the prior --------------------------------------------------------------------------------

    def _split_prior(self) -> list[tuple[tuple[str, ...], FamilyPrior]]:
        """Names and their prior, for what has one."""
        first = {name: value[0] for name, value in self.values().items()}
        families = self.model.point_posterior(first).members
        return [
            (f.names, prior) for f in families if (prior := self.model.prior_over(f)) is not None
        ]

    def decays(self) -> dict[str, float]:
        """1 / std^2 of parameters under a normal prior around zero, whose pull an optimizer takes
        into its own step.
        """
        out = {}
        for names, prior in self._priors:
            for name in names if isinstance(prior, Factorised) else ():
                given = prior.distributions[name]  # type: ignore[union-attr]
                if (
                    type(given) is Normal
                    and given.loc.numel() == given.scale.numel() == 1
                    and not bool(given.loc.any())
                ):
                    out[name] = 1.0 / float(given.scale) ** 2
        return out

    def taxes(self) -> list[tuple[tuple[str, ...], FamilyPrior]]:
        """The priors whose pull is differentiated."""
        decayed, out = self.decays(), []
        for names, prior in self._priors:
            if isinstance(prior, Factorised):
                left = {
                    n: d
                    for n, d in prior.distributions.items()
                    if n not in decayed and not isinstance(d, Flat)
                }
                names, prior = tuple(left), Factorised(left, {n: prior.shapes[n] for n in left})
            if names:
                out.append((names, prior))
        return out

    def tax(self, taxes: Sequence[tuple[tuple[str, ...], FamilyPrior]]) -> Tensor:
        """-log p(w) ``(K,)`` under these priors."""
        values = self.values()
        parts = [-prior.log_prob({n: values[n] for n in names}) for names, prior in taxes]
        return torch.stack(parts).sum(0)

    @torch.no_grad()
    def divergence(self) -> Tensor | None:
        """-log p(w), averaged over members."""
        return self.tax(self._priors).double().mean() if self._priors else None

    # --- the data term ----------------------------------------------------------------------------

    def batches(self, source: Source, fit_job: FitJob, epoch: int) -> Iterator[tuple[Any, Tensor]]:
        """One epoch, ``(K, B, ...)``, each member in its own order."""
        return self.feed(
            source, [generator(seed, "order", epoch) for seed in self.seeds], fit_job.batch_size
        )

    def examples(self, y: Tensor) -> int:
        """B."""
        return y.shape[1]

    def pull(self, x: Any, y: Tensor, share: float, keep: bool = False) -> tuple[Tensor, Any]:
        """Add the gradient of ``share`` times every member's nll; the nll ``(K,)``, and with
        ``keep`` its gradient at the inputs.
        """
        if self.looped and self.traced is None:
            return self._in_turn(x, y, share, keep)
        if self._settled or self.looped:
            return self._at_once(x, y, share, keep)
        before = [(b, b.clone()) for b in self.buffers_().values()]
        grads = [(p, None if p.grad is None else p.grad.clone()) for p in self.parameters()]
        state = take_state(self.model.device)
        try:
            result = self._at_once(x, y, share, keep)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            self.looped = True
            for buffer, value in before:
                buffer.copy_(value)
            for parameter, grad in grads:  # a pass may fail in the middle of its backward
                parameter.grad = grad
            put_state(self.model.device, state)
            result = self._in_turn(
                x, y, share, keep
            )  # if this fails too, its error is the one to see
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"Training member by member: vmap cannot run this network ({reason}).", stacklevel=5
            )
        self._settled = True
        return result

    def _at_once(self, x: Any, y: Tensor, share: float, keep: bool) -> tuple[Tensor, Any]:
        leaves = [*self.stacked, *self.noise]
        inputs, shape = pytree.tree_flatten(x)

        def slopes(*tensors: Tensor) -> list[Tensor]:
            return self.slopes(tensors, shape, share, keep)

        if self.traced is None:
            found = slopes(
                *(leaf.detach() for leaf in leaves), *self.buffers_().values(), *inputs, y
            )
        else:
            found = self.traced((shape, share, keep), slopes, [*inputs, y])
        after = 1 + len(leaves)
        for leaf, grad in zip(leaves, found[1:after], strict=True):
            leaf.grad = grad if leaf.grad is None else leaf.grad + grad
        last = after + len(self.buffer_names)
        self._note(found[after:last])
        return found[0], pytree.tree_unflatten(found[last:], shape) if keep else None

    def slopes(
        self,
        tensors: Sequence[Tensor],
        shape: pytree.TreeSpec,
        share: float,
        keep: bool = False,
        alone: bool = False,
    ) -> list[Tensor]:
        """nll ``(K,)``, gradients of ``share`` times it, buffers after the pass, and with ``keep``
        the gradients at the inputs.

        ``tensors``: parameters of networks and likelihood, buffers, the leaves of the inputs,
        targets; ``alone``: all without the axis K.
        """
        values, places = len(self.names), len(self.names) + len(self.noise_names)
        leaves = [value.detach().requires_grad_() for value in tensors[:places]]
        *inputs, y = tensors[places + len(self.buffer_names) :]
        inputs = _watched(inputs) if keep else inputs
        tables = (
            dict(zip(self.names, leaves, strict=False)),
            dict(zip(self.noise_names, leaves[values:], strict=True)),
            dict(zip(self.buffer_names, tensors[places:], strict=False)),
        )
        wanted = [*leaves, *(leaf for leaf in inputs if keep and _real(leaf))]
        with torch.enable_grad(), plain_attention(), StackedLinear():
            many = (
                self._single if self.count == 1 else torch.vmap(self._nll, randomness="different")
            )
            run = self._nll if alone else many
            nll, after = run(*tables, pytree.tree_unflatten(inputs, shape), y)
            # A parameter that this pass does not reach still feels its prior and its momentum: its
            # gradient is zero.
            grads = iter(
                torch.autograd.grad(
                    nll.sum() * share, wanted, allow_unused=True, materialize_grads=True
                )
            )
        out = [
            nll.detach(),
            *(next(grads).contiguous() for _ in leaves),
        ]  # as an optimizer wants them
        out += [after[name].detach() for name in self.buffer_names]
        return out + ([next(grads) if _real(leaf) else leaf for leaf in inputs] if keep else [])

    def _single(
        self, values: Params, voice: Params, buffers: Params, x: Any, y: Tensor
    ) -> tuple[Tensor, Params]:
        """``_nll`` of a flock of one, with the leading axes that vmap would give it."""
        own = [
            {name: tensor[0] for name, tensor in table.items()}
            for table in (values, voice, buffers)
        ]
        nll, after = self._nll(own[0], own[1], own[2], take(x, 0), y[0])
        return nll.unsqueeze(0), {name: tensor.unsqueeze(0) for name, tensor in after.items()}

    def record(self) -> None:
        """From now on passes are recorded and replayed, of all members at once or of the only
        one.
        """
        if self.looped and self.count > 1:
            raise SettingError(
                "compile=True records passes of all members at once, and these take turns "
                "(convolutions, or vectorise=False); on a CPU use "
                "compile=False, or vectorise=True."
            )
        leaves = [leaf.detach() for leaf in (*self.stacked, *self.noise)]
        self.traced = Traced([*leaves, *self.buffers_().values()])

    def _in_turn(self, x: Any, y: Tensor, share: float, keep: bool) -> tuple[Tensor, Any]:
        """Each member is differentiated before the next is placed: layers recomputed in the
        backward pass must find their weights.
        """
        tables = (self.values(), self.voices())
        grads = [
            {n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in table.items()}
            for table in tables
        ]
        nlls, slopes = [], []
        for k in range(self.count):
            own = [
                {n: t.detach()[k].requires_grad_() for n, t in table.items()} for table in tables
            ]
            mine = _watched(take(x, k)) if keep else take(x, k)
            buffers = {n: b[k] for n, b in self.buffers_().items()}
            nll, after = self._nll(own[0], own[1], buffers, mine, y[k])
            (nll * share).backward()
            with torch.no_grad():
                for name, buffer in buffers.items():
                    buffer.copy_(after[name])
                for table, part in zip(grads, own, strict=True):
                    for name, leaf in part.items():
                        table[name][k] += 0 if leaf.grad is None else leaf.grad
            nlls.append(nll.detach())
            slopes.append(_grads(mine) if keep else None)
        for table, total in zip(tables, grads, strict=True):
            for name, parameter in table.items():
                parameter.grad = total[name]
        return torch.stack(nlls), pytree.tree_map(
            lambda *g: torch.stack(g), slopes[0], *slopes[1:]
        ) if keep else None

    def _nll(
        self, values: Params, voice: Params, buffers: Params, x: Any, y: Tensor
    ) -> tuple[Tensor, Params]:
        """One member's summed nll, and its buffers after the pass."""
        shell = self.model.shell()
        shell.place(values)
        shell.place(buffers)
        likelihood = self._voice[0]
        for name, value in voice.items():
            likelihood._parameters[name] = value  # type: ignore[assignment]
        nll = -likelihood.log_prob(self.model.outputs(shell, x), y).sum()
        return nll, {name: shell.placed(name) for name in buffers}

    @torch.no_grad()
    def _note(self, after: Sequence[Tensor]) -> None:
        """Copy back what the network replaced by assignment instead of changing it in place."""
        for buffer, value in zip(self.buffers_().values(), after, strict=True):
            if value.data_ptr() != buffer.data_ptr():
                buffer.copy_(value)

    def forget(self) -> None:
        """Put plain values where those of the last pass are: they keep its graph alive."""
        shell = self.model.shell()
        shell.place({n: v.detach()[0] for n, v in self.values().items()})
        shell.place({n: b[0] for n, b in self.buffers_().items()})
        for name, value in self.voices().items():
            self._voice[0]._parameters[name] = value.detach()[0]  # type: ignore[assignment]

    # --- the loop's questions ---------------------------------------------------------------------

    def monitor(self) -> dict[str, float]:
        """What the likelihood says, averaged over members."""
        rows = []
        for k in range(self.count):
            for name, value in self.voices().items():
                self._voice[0]._parameters[name] = value.detach()[k]  # type: ignore[assignment]
            rows.append(self._voice[0].monitor())
        return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}

    def after_epoch(self, epoch: int, epochs: int) -> None:
        """The likelihood speaks as the members do, for whoever watches; then let the trace see."""
        self._speak()
        if self.trace is not None:
            self.trace.see(self, epoch, epochs)

    def after_fit(self) -> None:
        """Drop the last pass."""
        self.forget()
        self._speak()

    @torch.no_grad()
    def _speak(self) -> None:
        """The likelihood takes the members' mean, which is what a single number can say of them."""
        for name, value in self.voices().items():
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
        return Fitted(several(self.model, self.values(), self.voices(), own), shared)


def several(
    model: Model,
    values: Mapping[str, Tensor],
    voices: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
) -> Posterior:
    """The posterior of equally likely points, stacked: parameters, learned noise, and statistics of
    normalisation.
    """
    tables = [
        {n: values[n] for n in model.random},
        {n: values[n] for n in model.point},
        {f"{LIKELIHOOD}{n}": v for n, v in voices.items()},
        dict(buffers),
    ]
    kinds: dict[tuple[int, torch.dtype], dict[str, Tensor]] = {}
    for place, table in enumerate(tables):
        for name, value in table.items():
            kinds.setdefault((place, value.dtype), {})[name] = value
    return Posterior([Samples.of(part) for part in kinds.values()])


def one(model: Model, values: Mapping[str, Tensor], voices: Mapping[str, Tensor]) -> list[Delta]:
    """Points over parameters that are not random and over learned noise, of one member."""
    parts = [
        {n: values[n] for n in model.point},
        {f"{LIKELIHOOD}{n}": v for n, v in voices.items()},
    ]
    return [Delta.start(part) for part in parts if part]


def _watched(x: Any) -> Any:
    """Inputs whose gradients are kept."""
    return pytree.tree_map(lambda t: t.detach().requires_grad_() if _real(t) else t, x)


def _grads(x: Any) -> Any:
    return pytree.tree_map(
        lambda t: (torch.zeros_like(t) if t.grad is None else t.grad) if _real(t) else t, x
    )


def _real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
