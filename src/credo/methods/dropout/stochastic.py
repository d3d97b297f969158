"""Noise that is already in the forward pass, taken as the posterior: no weight is random, but every
pass is.

Weights are fitted as ``map`` fits them, with the network in training mode; a draw is a pass in
training mode, with random numbers of its own. Stochastic depth, augmentation inside the network
(``credo.nets.Augmented``), functional dropout, any module of the user's that is random in training
mode. Batch statistics are not noise here: see ``mc_batchnorm``. How much the draws differ is
whatever the noise makes of it, not an inference; check calibration before trusting it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from credo.core.errors import NetworkError, SettingError, nearest
from credo.core.settings import setting
from credo.engine.elbo_fit import point_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.own_noise import OwnMasks, is_random, modules_without_norms
from credo.engine.training_loop import DescentSettings
from credo.posteriors import Stochastic


@final
class _Jitter(nn.Module):
    """Additive noise in training mode: what a conformance network needs to be random at all."""

    def forward(self, x: Tensor) -> Tensor:
        """x plus N(0, 0.1^2) in training mode."""
        return x + 0.1 * torch.randn_like(x) if self.training else x


@methods.register("stochastic")
@dataclass(frozen=True)
class StochasticForward(Method, DescentSettings):
    """Passes in training mode as draws."""

    name: ClassVar[str] = "stochastic"
    summary: ClassVar[str] = (
        "The network's own noise in training mode as posterior: stochastic depth, augmentation, "
        "any module."
    )
    reference: ClassVar[str] = (
        "Gal and Ghahramani 2016; Huang et al. 2016, Stochastic depth; Ayhan and Berens 2018, "
        "test-time augmentation."
    )
    network_noise: ClassVar[str | None] = "any"
    target: ClassVar[str] = "map"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {"epochs": 600, "batch_size": None, "lr": 0.02}
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_covariance": "no weight is random, the forward pass is"
    }

    modules: Any = setting(
        "all",
        "Paths (patterns) of the modules whose noise counts; the others are in evaluation mode.",
        kind=(str, tuple, list),
    )

    @classmethod
    def example_network(cls, net: nn.Module, outputs: int) -> nn.Module:
        """With noise on the outputs."""
        return nn.Sequential(net, _Jitter())

    def noisy_modules(self, model: Model) -> tuple[str, ...]:
        """Paths of the chosen modules and of what is inside them."""
        known = modules_without_norms(model.net)
        if self.modules == "all":
            return known
        patterns = [self.modules] if isinstance(self.modules, str) else list(self.modules)
        for pattern in patterns:
            if not any(fnmatchcase(path, pattern) for path in known):
                raise SettingError(
                    f"stochastic: modules={pattern!r} matches no module.{nearest(pattern, known)}"
                )
        return tuple(
            p for p in known if any(fnmatchcase(p, q) or fnmatchcase(p, f"{q}.*") for q in patterns)
        )

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Fit a point; predictions then run as in training."""
        noisy_modules = self.noisy_modules(model)
        if not is_random(
            model, model.move(fit_job.source.example(2)), OwnMasks({}, {}, {}), noisy_modules
        ):
            raise NetworkError(
                "The network gives the same outputs every time in training mode, so its forward "
                "pass is no posterior; put noise into "
                "it (dropout, stochastic depth, credo.nets.Augmented), or use 'mc_dropout', which "
                "brings its own."
            )
        values = model.start_values(self.init, fit_job.seed)
        random = Stochastic.of({n: values[n] for n in model.random}, noisy_modules)
        return point_fit(model, fit_job, model.with_points([random], values), descent=self)
