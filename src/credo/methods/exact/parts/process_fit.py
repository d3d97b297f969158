"""The bound of a sparse Gaussian process, what it starts from, and the descent on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor
from torch.distributions import Normal

from credo.core.errors import DataError, NetworkError, SettingError
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.core.shell import Shell
from credo.core.tree import num_rows
from credo.engine.elbo import Buffers
from credo.engine.fit_job import FitJob
from credo.engine.model import Fitted, Model
from credo.engine.outputs import Draws, sampled_outputs
from credo.engine.step import Step
from credo.engine.training_loop import Learner, decays, train
from credo.posteriors import Family, FamilyPrior, Params, Posterior, kl
from credo.posteriors.gaussian_process import SparseProcess, described
from credo.priors import Factorised, Fixed, Flat

WIDE = 3.0**-0.5  # deviation of the prior of features, times the root of a layer's inputs
MAX_STEPS = 5_000  # of a fit whose length is not given, however large the data
MAX_EXAMPLES = 2048  # examples at most, that scales and inducing points are taken from


@final
class ProcessElbo(Learner):
    """``forward(x, y) -> (nll, kl)``: the batch's sum of E_q(f)[-log p(y given f)], and KL[q(u),
    p(u)] of the process.

    The expectation is the likelihood's own, in closed form or by quadrature; where hidden layers
    are drawn it is averaged over ``train_samples`` draws. Point estimates beside the process have
    the prior that the user named for them, else N(0, 1 / (3 I)) where a layer has I inputs, as wide
    as layers start: flat, the features of few data are learned by heart. It counts to the KL.
    ``holds``: they stay as they are.
    """

    def __init__(
        self, model: Model, posterior: Posterior, train_samples: int = 1, holds: bool = False
    ) -> None:
        super().__init__()
        if model.prior.parts():
            raise SettingError(
                "A Gaussian process leaves no weights to learn the prior "
                f"{model.prior.describe()!r} from; give a fixed one, or none."
            )
        self.posterior, self.likelihood, self.train_samples = (
            posterior,
            model.likelihood,
            train_samples,
        )
        self.buffers_ = Buffers(model.buffers())
        self._model = [model]  # in a list, so that the network is not registered
        self.points = [
            (family, model.prior_over(family) or as_they_start(model, family))
            for family in posterior.factors
            if family.atoms == 1 and not holds
        ]
        if holds:
            for family in posterior.factors:
                family.requires_grad_(family.atoms != 1)

    @property
    def model(self) -> Model:
        return self._model[0]

    @property
    def process(self) -> SparseProcess:
        """The posterior's process."""
        return cast(SparseProcess, self.posterior.process)

    def forward(self, x: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        """Both parts in nats; the caller scales the first by N / B."""
        shell = self.model.shell()
        shell.place(self.buffers_.tensors())
        shell.place(self.posterior.mean())
        mean, var = self.process.conditionals(self.process.read(shell, x), self.train_samples)
        self.buffers_.keep(shell)
        nll = -self.likelihood.expected_log_prob(mean, var, y).mean(0).sum()
        total = self.process.own_kl()
        for family, prior in self.points:
            total = total + kl(family, prior)
        return nll, total

    def fitted(self) -> Fitted:
        return Fitted(self.posterior, self.buffers_.tensors())

    def monitor(self) -> dict[str, float]:
        return self.posterior.monitor() | self.likelihood.monitor()


def as_they_start(model: Model, family: Family) -> FamilyPrior:
    """N(0, 1 / (3 I)) over weights and biases of layers with I inputs, the variance that PyTorch
    starts most layers with; flat over what else there is.
    """
    sites = {name: model.sites[name] for name in family.shapes}
    inputs = {s.module: math.prod(s.shape[1:]) for s in sites.values() if len(s.shape) > 1}
    parts: dict[str, Any] = {}
    for name, site in sites.items():
        known = inputs.get(site.module)
        own = Fixed(Normal(0.0, WIDE / math.sqrt(known)) if known else Flat())
        parts[name] = family.restrict(own.at(site), name)
    return Factorised(parts, family.shapes)


@final
class ProcessStep(Step):
    """Plain autograd."""

    def __init__(
        self, learner: ProcessElbo, optimizer: torch.optim.Optimizer, num_data: int
    ) -> None:
        self.learner, self.optimizer, self.num_data = learner, optimizer, num_data

    def __call__(self, x: Any, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        self.optimizer.zero_grad(set_to_none=True)
        nll, divergence = self.learner(x, y)
        (nll / num_rows(x) + divergence * (weight / self.num_data)).backward()
        self.optimizer.step()
        return nll.detach(), divergence.detach()


@dataclass(frozen=True)
class ProcessSettings:
    """Inducing points of a sparse process, and how its learning rate falls."""

    num_inducing: int = setting(
        64,
        "Inducing points, at most one per different training example.",
        ge=1,
        formerly="inducing",
    )
    lr_schedule: str = setting("cosine", "Learning-rate schedule.", choices=("constant", "cosine"))


def descend_on_process(
    learner: ProcessElbo, fit_job: FitJob, lr_schedule: str, faster: float = 1.0
) -> Fitted:
    """Minimise with Adam; the process and the likelihood move ``faster`` than point estimates of
    the network.
    """

    def adam(learner: ProcessElbo, lr: float | Tensor, num_data: int) -> torch.optim.Optimizer:
        points = [p for family, _ in learner.points for p in family.parameters()]
        known = {id(p) for p in points}
        others = [p for p in learner.parameters() if p.requires_grad and id(p) not in known]
        groups: list[dict[str, Any]] = [{"params": others, "lr": lr * faster, "factor": faster}]
        if points:
            groups.append({"params": points})
        return torch.optim.Adam(groups, lr=lr, fused=True, capturable=isinstance(lr, Tensor))

    def step(
        learner: ProcessElbo, optimizer: torch.optim.Optimizer, num_data: int, compile: bool | str
    ) -> Step:
        return ProcessStep(learner, optimizer, num_data)

    return train(learner, fit_job, adam, step, decay=decays[lr_schedule])


class OutputLayer(NamedTuple):
    """The layer that a process takes the place of: its path, and how many outputs it has."""

    path: str
    outputs: int


def last_layer(model: Model, x: Any) -> OutputLayer:
    """The module that owns the model's random parameters, refused by name unless what it gives is
    what the network gives.
    """
    paths = {site.module for site in model.random.values()}
    path = paths.pop()
    if paths:
        raise NetworkError(
            f"A process takes the place of one layer, and {', '.join(sorted([path, *paths]))} "
            "were chosen."
        )
    module = model.shell().module.get_submodule(path)
    given: list[Any] = []
    handle = module.register_forward_hook(lambda module, args, output: given.append(output))
    try:
        outputs, _ = sampled_outputs(model, Draws.point(model.values()), x, model.buffers(), 0)
    finally:
        handle.remove()
    last = given[-1] if given and isinstance(given[-1], Tensor) else None
    if last is None or not torch.equal(
        last.reshape(len(last), -1), outputs[0].reshape(len(outputs[0]), -1)
    ):
        raise NetworkError(
            f"{described(module, path)} owns the network's last trainable parameters, but what it "
            "gives is not what the network gives; a process in "
            "its place would leave out what follows: end the network with that layer."
        )
    return OutputLayer(path, outputs.shape[-1])


def num_outputs(model: Model, x: Any) -> int:
    """How many outputs the network gives."""
    return sampled_outputs(model, Draws.point(model.values()), x, model.buffers(), 0)[0].shape[-1]


@torch.no_grad()
def first_inputs(
    model: Model, fit_job: FitJob, values: Params, read: Callable[[Shell, Any], Tensor]
) -> Tensor:
    """The process's inputs ``(R, D)`` for up to 2,048 random examples: what ``read`` gives, with
    the network at ``values`` and in training mode, as when training begins.
    """
    shell = model.shell()
    shell.train(True)
    shell.place(model.frozen() | model.buffers() | values)
    inputs: list[Tensor] = []
    with isolated(mix(fit_job.seed, "rows"), model.device):
        for x, _ in fit_job.source(generator(fit_job.seed, "rows"), fit_job.batch_size):
            try:
                inputs.append(read(shell, model.move(x)))
            except ValueError as error:  # such as BatchNorm's about a batch of one example
                raise DataError(
                    f"The network cannot train on a batch of {num_rows(x)}: {error}; choose "
                    "another batch_size."
                ) from error
            if sum(map(len, inputs)) >= MAX_EXAMPLES:
                break
    return torch.cat(inputs)[:MAX_EXAMPLES]
