"""log p(D, w) of many weight vectors at once, and its slope: all that samplers use of a model.

The network runs in evaluation mode with the buffers it came with, all chains at once by vmap; one
that vmap cannot run is looped over, said once. Sums over data and weights are in double precision,
because acceptance depends on small differences of large numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from credo.core.errors import SettingError
from credo.core.shell import plain_attention
from credo.core.sites import FlatLayout
from credo.core.tree import take
from credo.core.vectorise import VmapOrLoop
from credo.engine.model import Model
from credo.kernels.log_density import differentiable
from credo.posteriors import Params

Batch = tuple[Any, Tensor]
Evaluated = tuple[Tensor, Tensor]  #: log densities ``(C,)`` and slopes ``(C, P)``
Factor = float | Tensor


@final
class Density:
    """The log joint density over the random parameters, flat ``(C, P)``, given all others.

    ``fitted_alongside`` are the tensors that a sampler fits instead of sampling them: point
    parameters, learned parameters of the likelihood and of the prior.
    """

    def __init__(self, model: Model, values: Params) -> None:
        self.model = model
        kinds = {site.dtype for site in model.random.values()}
        if len(kinds) > 1:
            raise SettingError(
                f"Samplers need random parameters of one type, got {sorted(map(str, kinds))}."
            )
        self.layout = FlatLayout({n: s.shape for n, s in model.random.items()})
        self.dtype = kinds.pop()
        self.points = {n: values[n].detach().clone() for n in model.point}
        self.buffers = model.buffers()
        if model.prior.needs_marginals():
            raise SettingError(
                "The optimal prior is set from the means and variances of q, which chains do not "
                "have; use Learned(...)."
            )
        self.fitted_alongside: list[Tensor] = [
            *self.points.values(),
            *(p for p in model.likelihood.parameters() if p.requires_grad),
            *nn.ModuleList(model.prior.parts()).parameters(),
        ]
        self._track(False)
        self.vectorised = VmapOrLoop("Running chain by chain")
        self._joint = model.prior.joint_log_prob(self.layout.shapes)
        self._prior: dict[str, Distribution] | None = None

    @property
    def numel(self) -> int:
        """P, the number of random parameters."""
        return self.layout.numel

    def log_prior(self, flat: Tensor) -> Tensor:
        """log p(w) ``(C,)`` of ``(C, P)``, in nats, with the hyperprior's and the points' own where
        they have one.
        """
        params = self.layout.split(flat)
        if self._joint is not None:
            return self._joint(params).double()
        if self._prior is None or self.model.prior.parts():  # a learned prior changes
            sites = self.model.sites
            self._prior = {n: self.model.prior.at(sites[n]) for n in self.layout.shapes}
        total: Tensor | float = 0.0
        for name, distribution in self._prior.items():
            each = distribution.log_prob(params[name])
            each = _supported(distribution, params[name], each)
            total = total + each.expand_as(params[name]).double().reshape(len(flat), -1).sum(-1)
        for name, value in self.points.items():
            if self.model.prior_for_point(name):
                total = (
                    total
                    + self.model.prior.at(self.model.sites[name]).log_prob(value).double().sum()
                )
        assert isinstance(total, Tensor)
        penalty = self.model.prior.penalty()
        return total if penalty is None else total - penalty.double()

    def log_likelihood(self, flat: Tensor, batch: Batch, own: bool = False) -> Tensor:
        """sum_n log p(y_n given x_n, w) ``(C,)`` over one batch; ``own``: every chain has its own
        batch, on a leading axis.
        """

        def run() -> Tensor:
            return self._run(flat, batch, own)

        with plain_attention():
            return self.vectorised(run, run)

    def _run(self, flat: Tensor, batch: Batch, own: bool) -> Tensor:
        shell = self.model.shell()
        shell.train(False)
        for tensors in (self.model.frozen(), self.buffers, self.points):
            shell.place(tensors)
        if not self.vectorised.looped:
            return torch.vmap(self._fit, in_dims=(0, 0 if own else None, 0 if own else None))(
                flat, *batch
            )
        x, y = batch
        return torch.stack(
            [
                self._fit(w, take(x, c), y[c]) if own else self._fit(w, x, y)
                for c, w in enumerate(flat)
            ]
        )

    def _fit(self, weights: Tensor, x: Any, y: Tensor) -> Tensor:
        shell = self.model.shell()
        shell.place(self.layout.split(weights))
        return self.model.likelihood.log_prob(self.model.outputs(shell, x), y).double().sum()

    def outputs(self, flat: Tensor, x: Any) -> Tensor:
        """What the network says at ``x``, ``(C, ...)``."""
        shell = self.model.shell()

        def one(weights: Tensor) -> Tensor:
            shell.place(self.layout.split(weights))
            return self.model.outputs(shell, x)

        def place() -> None:
            shell.train(False)
            for tensors in (self.model.frozen(), self.buffers, self.points):
                shell.place(tensors)

        def at_once() -> Tensor:
            place()
            return torch.vmap(one)(flat)

        def in_turn() -> Tensor:
            place()
            return torch.stack([one(weights) for weights in flat])

        with plain_attention():
            return self.vectorised(at_once, in_turn)

    def joint(
        self,
        flat: Tensor,
        batches: Sequence[Batch],
        factor: Factor = 1.0,
        own: bool = False,
        prior: bool = True,
    ) -> Tensor:
        """log p(w) + factor * sum over batches of log p(batch given w), ``(C,)``, differentiable;
        ``prior=False`` leaves the first term out.
        """
        total = torch.stack([self._run(flat, batch, own) for batch in batches]).sum(0) * factor
        return total + self.log_prior(flat) if prior else total

    def slope(
        self,
        flat: Tensor,
        batches: Sequence[Batch],
        factor: Factor = 1.0,
        own: bool = False,
        prior: bool = True,
    ) -> Evaluated:
        """``joint`` and its gradient ``(C, P)``. In a loop each chain is differentiated before the
        next is placed: layers that are recomputed in the backward pass must find their own weights.
        """

        def chain_by_chain() -> Evaluated:
            rows = [
                differentiable(self._alone(batches, factor, own, prior, c))(flat[c : c + 1])
                for c in range(len(flat))
            ]
            return torch.cat([value for value, _ in rows]), torch.cat([slope for _, slope in rows])

        def at_once() -> Evaluated:
            return differentiable(lambda w: self.joint(w, batches, factor, own, prior))(flat)

        with plain_attention():
            return self.vectorised(at_once, chain_by_chain)

    def _alone(
        self, batches: Sequence[Batch], factor: Factor, own: bool, prior: bool, c: int
    ) -> Callable[[Tensor], Tensor]:
        """``joint`` of chain ``c``."""
        part = slice(c, c + 1)
        mine = [(take(x, part), y[part]) for x, y in batches] if own else batches
        share = factor[part] if isinstance(factor, Tensor) else factor
        return lambda w: self.joint(w, mine, share, own, prior)

    def fit_alongside(
        self,
        flat: Tensor,
        batches: Sequence[Batch],
        optimizer: torch.optim.Optimizer,
        factor: Factor = 1.0,
        own: bool = False,
    ) -> None:
        """One ascent step of ``fitted_alongside`` on the mean over chains of ``joint``: stochastic
        approximation of its maximum marginal likelihood, the same aim that a variational fit gives
        point parameters.
        """

        def backward(values: Tensor) -> None:
            (-values.sum() / len(flat)).backward()

        def chain_by_chain() -> None:
            for c in range(len(flat)):
                backward(self._alone(batches, factor, own, True, c)(flat[c : c + 1]))

        self._track(True)
        try:
            optimizer.zero_grad(set_to_none=True)
            with torch.enable_grad(), plain_attention():
                self.vectorised(
                    lambda: backward(self.joint(flat, batches, factor, own)), chain_by_chain
                )
            optimizer.step()
        finally:
            self._track(False)

    def release(self) -> None:
        """Leave the likelihood's and the prior's parameters trainable, as they came."""
        self._track(True)

    def _track(self, wanted: bool) -> None:
        for tensor in self.fitted_alongside:
            tensor.requires_grad_(wanted)
            tensor.grad = None


def _supported(distribution: Distribution, value: Tensor, log_prob: Tensor) -> Tensor:
    """-inf outside a distribution's support, which torch checks only where it validates
    arguments.
    """
    try:
        support = distribution.support
    except NotImplementedError:
        return log_prob
    if support is None or support is constraints.real:
        return log_prob
    return torch.where(support.check(value), log_prob, -torch.inf)
