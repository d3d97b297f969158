"""The evidence lower bound of a batch, in its two parts.

ELBO = E_q[log p(D given w)] - KL[q, p]. The module returns the negative log-likelihood of the
batch, summed over its examples and averaged over draws, and the KL of the whole posterior; the
caller scales the first by N / B. Both in nats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.core.shell import Shell
from credo.core.sites import Site
from credo.core.tree import num_rows, structure
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import Learner
from credo.estimators import Estimator, Pass, Plan, make_plan
from credo.estimators.placement import Replan, with_masks
from credo.posteriors import FamilyPrior, Posterior, kl


class Terms(NamedTuple):
    """Prior of every family of a posterior, and the statistics of it that are folded into the
    draw.
    """

    priors: Sequence[FamilyPrior | None]
    folds: Sequence[Any]


class Buffers(nn.Module):
    """The network's buffers as credo's own, so that they are saved, moved and broadcast with the
    posterior.
    """

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


class Elbo(Learner):
    """``forward(x, y) -> (nll, kl)``: a module of posterior, likelihood, buffers and what is
    learned of the prior, ready for DDP.

    The shell stays hidden from it. A mixture is trained by the mean of its components' ELBOs, a
    bound like each of them. ``kl``: "closed" where a closed form is known, "sampled" always,
    "optimizer" where the optimizer knows the prior of everything but points by itself.
    """

    def __init__(
        self,
        model: Model,
        posterior: Posterior,
        estimator: Estimator,
        train_samples: int = 1,
        buffers: Mapping[str, Tensor] | None = None,
        autocast: torch.dtype | None = None,
        kl: str = "closed",
    ) -> None:
        super().__init__()
        self.posterior = posterior
        self.likelihood = model.likelihood
        self.buffers_ = Buffers(model.buffers() if buffers is None else buffers)
        self.prior_parts = nn.ModuleList(model.prior.parts())
        self.state = None if estimator.memory is None else estimator.memory()
        self.estimator, self.train_samples, self.autocast, self.kl_kind = (
            estimator,
            train_samples,
            autocast,
            kl,
        )
        self._components = [
            posterior.components()
        ]  # in a list, so that they are not registered twice
        self._model = [model]  # likewise the network
        if len(self.components) > 1 and self.prior_parts:
            raise SettingError(
                "A mixture of posteriors cannot share a learned prior; give it a fixed one."
            )
        self._check_marginals()
        self._priors: list[Terms] | None = None
        if not self.prior_parts:
            self._priors = [self._terms(component) for component in self.components]
        self._plans: dict[Any, Plan] = {}

    @property
    def model(self) -> Model:
        """The model, unregistered."""
        return self._model[0]

    @property
    def sites(self) -> dict[str, Site]:
        """Random parameters, and the masks of dropout modules that the posterior covers."""
        return with_masks(self.model.random, self.components[0])

    @property
    def components(self) -> list[Posterior]:
        """The posteriors whose ELBOs are averaged: one, unless the posterior is a mixture."""
        return self._components[0]

    def _check_marginals(self) -> None:
        """A prior set from q's marginals needs families that have them, and a width: under a point
        it would collapse onto it.
        """
        seen = self.model.prior.needs_marginals()
        for family in self.posterior.factors:
            if seen & set(family.names) and family.marginals() is None:
                raise SettingError(
                    "The optimal prior is set from the means and variances of a Gaussian "
                    f"posterior; {', '.join(sorted(seen & set(family.names)))} "
                    f"has the family {family.name!r}: use Learned(...) or a fixed prior."
                )

    def _terms(self, component: Posterior) -> Terms:
        """Each family's prior, and what it can fold of it; made anew at every pass where the prior
        is learned.
        """
        priors = [self.model.prior_over(family) for family in component.factors]
        if self.kl_kind != "closed" or self.prior_parts:
            return Terms(priors, [None] * len(priors))
        return Terms(
            priors,
            [family.fold(prior) for family, prior in zip(component.factors, priors, strict=True)],
        )

    def terms(self, place: int) -> Terms:
        """Priors and folds of one component, after a prior with closed-form updates has seen q."""
        if self._priors is not None:
            return self._priors[place]
        component = self.components[place]
        means, variances = {}, {}
        for family in component.factors:
            if (found := family.marginals()) is not None:
                mean, var = found
                means |= {n: v.detach() for n, v in mean.items()}
                variances |= {n: v.detach() for n, v in var.items()}
        self.model.prior.observe(means, variances)
        return self._terms(component)

    def after_fit(self) -> None:
        """Let a prior with closed-form updates see q as the last step has left it."""
        if self.prior_parts:
            self.terms(0)

    def plan(self, shell: Shell, x: Any) -> Plan:
        """The plan for inputs of this structure, made by a dry run the first time."""
        key = (shell.module.training, structure(x))
        if key not in self._plans:
            shell.place(self.model.frozen())
            self._plans[key] = make_plan(
                shell,
                self.components[0],
                self.sites,
                self.estimator,
                x,
                self.buffers_.tensors(),
                self.model.device,
            )
            # torch looks up a KL between two distributions in a way that no compiler traces, but
            # only once
            with torch.no_grad():
                for family, prior in zip(
                    self.components[0].factors, self.terms(0).priors, strict=True
                ):
                    if prior is not None:
                        family.kl(prior)
        return self._plans[key]

    def forward(self, x: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        """Summed nll of the batch, averaged over components and ``train_samples`` draws, and the
        KL; ``plan`` must have been made.
        """
        shell = self.model.shell()
        plan = self.plan(shell, x)
        turns = self.estimator.passes
        count = self.train_samples * turns * len(self.components)
        passes, versions = [], []
        for place in range(len(self.components)):
            terms = self.terms(place)
            for number in range(self.train_samples * turns):
                version = self.buffers_.tensors()
                if count > 1:
                    version = {name: buffer.clone() for name, buffer in version.items()}
                shell.place(version)
                passes.append(
                    self._pass(shell, self.components[place], terms, plan, x, y, number % turns)
                )
                versions.append({name: shell.placed(name) for name in version})
        if count == 1:
            self.buffers_.keep(shell)
        elif self.buffers_.names and shell.module.training:
            self.buffers_.average(versions)
        nll, kl = self.estimator.combine(passes, self.state, num_rows(x))
        penalty = self.model.prior.penalty()
        return nll, kl if penalty is None else kl + penalty.to(kl.dtype)

    def _pass(
        self,
        shell: Shell,
        posterior: Posterior,
        terms: Terms,
        plan: Plan,
        x: Any,
        y: Tensor,
        turn: int,
    ) -> Pass:
        draws = self.estimator.place(shell, posterior, plan, terms.folds, turn=turn)
        context = (
            torch.autocast(self.model.device.type, self.autocast)
            if self.autocast
            else nullcontext()
        )
        with context:
            outputs = self.model.outputs(shell, x)
        each = self.estimator.nll(self.likelihood, outputs.float() if self.autocast else outputs, y)
        nll, total = each.sum(), None
        for draw, family, prior in zip(draws, posterior.factors, terms.priors, strict=True):
            part = draw.kl
            if (
                part is None
                and prior is not None
                and (self.kl_kind != "optimizer" or family.atoms == 1)
            ):
                part = self.estimator.kl(draw, family, prior, self.kl_kind == "sampled")
            if part is not None:
                total = part if total is None else total + part
        return Pass(
            nll, torch.zeros_like(nll) if total is None else total.to(nll.dtype), draws, each
        )

    def fitted(self) -> Fitted:
        """The posterior and the buffers."""
        return Fitted(self.posterior, self.buffers_.tensors())

    def monitor(self) -> dict[str, float]:
        """What posterior and likelihood say."""
        return self.posterior.monitor() | self.likelihood.monitor()

    @torch.no_grad()
    def divergence(self) -> Tensor | None:
        """The KL averaged over components, where the optimizer's steps do not compute it."""
        if self.kl_kind != "optimizer":
            return None
        totals = []
        for place, component in enumerate(self.components):
            pairs = zip(component.factors, self.terms(place).priors, strict=True)
            totals.append(
                sum(
                    (kl(family, prior) for family, prior in pairs if prior is not None),
                    torch.zeros(()),
                )
            )
        return torch.stack([torch.as_tensor(t) for t in totals]).mean()

    def learn(self, replan: Replan, x: Any) -> None:
        """Draw as weights, from now on, the sites an operation without a rule has met."""
        key = (self.model.shell().module.training, structure(x))
        plan = self._plans[key]
        sites = self.sites
        gone = {
            sites[n].partner if sites[n].partner in plan.example_axis else n for n in replan.names
        } | replan.names
        axes = {n: axis for n, axis in plan.example_axis.items() if n not in gone}
        self._plans[key] = Plan(axes, frozenset(b for b in plan.bias if sites[b].partner in axes))
