"""The evidence lower bound of a batch, in its two parts.

ELBO = E_q[log p(D given w)] - KL[q, p]. The module returns the negative log-likelihood of the batch, summed over its examples
and averaged over draws, and the KL of the whole posterior; the caller scales the first by N / B. Both in nats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from credo.core.seeds import Ambient
from credo.core.shell import Shell
from credo.engine.model import Model
from credo.estimators import Estimator, Plan, make_plan, place, structure
from credo.estimators.slot import Replan
from credo.posteriors import Delta, Factorised, Family, Posterior, fold, kl, prior_of
from credo.posteriors.kl import FamilyPrior
from credo.priors import Flat


class Buffers(nn.Module):
    """The network's buffers as credo's own, so that they are saved, moved and broadcast with the posterior."""

    def __init__(self, buffers: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = tuple(buffers)
        for index, buffer in enumerate(buffers.values()):
            self.register_buffer(f"b{index}", buffer.clone())

    def tensors(self) -> dict[str, Tensor]:
        """By the network's names."""
        return {name: getattr(self, f"b{index}") for index, name in enumerate(self.names)}

    @torch.no_grad()
    def average(self, versions: Sequence[Mapping[str, Tensor]]) -> None:
        """Take the mean over draws; counters take the last value."""
        for name, buffer in self.tensors().items():
            values = [version[name] for version in versions]
            buffer.copy_(torch.stack(values).mean(0) if buffer.is_floating_point() else values[-1])

    @torch.no_grad()
    def keep(self, shell: Shell) -> None:
        """Copy back what the network replaced by assignment instead of changing it in place."""
        for name, buffer in self.tensors().items():
            now = shell.placed(name)
            if now is not buffer:
                buffer.copy_(now)


def family_prior(family: Family, model: Model) -> FamilyPrior | None:
    """The prior of one family; point estimates have a flat one, except the parameters the user named a prior for."""
    if not isinstance(family, Delta) or any(name in model.random for name in family.names):
        return prior_of(family, model.prior, model.sites)
    named = {name for name in family.names if model.prior_for_point(name)}
    if not named:
        return None
    sites = model.sites
    return Factorised({name: model.prior.at(sites[name]) if name in named else Flat() for name in family.names}, family.shapes)


class Elbo(nn.Module):
    """``forward(x, y) -> (nll, kl)``: a module of posterior, likelihood and buffers, ready for DDP; the shell stays hidden from it."""

    def __init__(
        self,
        model: Model,
        posterior: Posterior,
        estimator: Estimator,
        train_samples: int = 1,
        buffers: Mapping[str, Tensor] | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.posterior = posterior
        self.likelihood = model.likelihood
        self.buffers_ = Buffers(model.buffers() if buffers is None else buffers)
        self.estimator, self.train_samples, self.autocast = estimator, train_samples, autocast
        self.priors = [family_prior(family, model) for family in posterior.members]
        self.folds = [fold(family, prior) for family, prior in zip(posterior.members, self.priors, strict=True)]
        self._model = [model]  # in a list, so that the network is not registered as a submodule
        self._plans: dict[Any, Plan] = {}

    @property
    def model(self) -> Model:
        """The model, unregistered."""
        return self._model[0]

    def plan(self, shell: Shell, x: Any) -> Plan:
        """The plan for inputs of this structure, made by a dry run the first time."""
        key = (shell.module.training, structure(x))
        if key not in self._plans:
            shell.place(self.model.frozen())
            self._plans[key] = make_plan(
                shell, self.posterior, self.model.random, self.estimator, x, self.buffers_.tensors(), self.model.device
            )
        return self._plans[key]

    def forward(self, x: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        """Summed nll of the batch, averaged over ``train_samples`` draws, and the KL; ``plan`` must have been made."""
        shell = self.model.shell()
        plan = self.plan(shell, x)
        if self.train_samples == 1:
            shell.place(self.buffers_.tensors())
            result = self._pass(shell, plan, x, y)
            self.buffers_.keep(shell)
            return result
        passes, versions = [], []
        for _ in range(self.train_samples):
            version = {name: buffer.clone() for name, buffer in self.buffers_.tensors().items()}
            shell.place(version)
            passes.append(self._pass(shell, plan, x, y))
            versions.append({name: shell.placed(name) for name in version})
        if self.buffers_.names and shell.module.training:
            self.buffers_.average(versions)
        nll, kls = (torch.stack(part).mean(0) for part in zip(*passes, strict=True))
        return nll, kls

    def _pass(self, shell: Shell, plan: Plan, x: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        draws = place(shell, self.posterior, self.estimator, plan, folds=self.folds)
        context = torch.autocast(self.model.device.type, self.autocast) if self.autocast else nullcontext()
        with context:
            outputs = self.model.outputs(shell, x)
        nll = -self.likelihood.log_prob(outputs.float() if self.autocast else outputs, y).sum()
        total = None
        for draw, family, prior in zip(draws, self.posterior.members, self.priors, strict=True):
            part = draw.kl if draw.kl is not None or prior is None else kl(family, prior, Ambient())
            if part is not None:
                total = part if total is None else total + part
        return nll, torch.zeros_like(nll) if total is None else total.to(nll.dtype)

    def learn(self, replan: Replan, x: Any) -> None:
        """Draw as weights, from now on, the sites an operation without a rule has met."""
        key = (self.model.shell().module.training, structure(x))
        plan = self._plans[key]
        sites = self.model.random
        gone = {sites[n].partner if sites[n].partner in plan.example_axis else n for n in replan.names} | replan.names
        axes = {n: axis for n, axis in plan.example_axis.items() if n not in gone}
        self._plans[key] = Plan(axes, frozenset(b for b in plan.bias if sites[b].partner in axes))
