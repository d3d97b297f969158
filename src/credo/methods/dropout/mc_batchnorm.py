"""MC BatchNorm: the statistics of random training batches as posterior of the normalisation.

Training normalises by the mean and variance of whatever batch an example is in, so the network was
fitted under that noise. A draw normalises by the statistics of one training batch, recorded after
the fit; all inputs share them, so a draw is a function. The spread is that of statistics of
``batch_size`` examples: with large batches there is hardly any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from credo.core.errors import NetworkError
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import setting
from credo.engine.batchnorm import norms
from credo.engine.elbo_fit import point_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings
from credo.posteriors import Posterior, Samples


@methods.register("mc_batchnorm")
@dataclass(frozen=True)
class MCBatchNorm(Method, DescentSettings):
    """Statistics of training batches as draws."""

    name: ClassVar[str] = "mc_batchnorm"
    summary: ClassVar[str] = "MC BatchNorm: statistics of random training batches as posterior."
    reference: ClassVar[str] = (
        "Teye, Azizpour and Smith 2018, Bayesian uncertainty estimation for batch normalized deep "
        "networks."
    )
    batch_size: ClassVar[int | None] = 32
    network_noise: ClassVar[str | None] = "batch statistics"
    target: ClassVar[str] = "map"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {"epochs": 200, "batch_size": 16, "lr": 0.02}
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_mean": "with batch normalisation the regression is another model, whose "
        "weights have no known posterior",
        "conjugate_covariance": "no weight is random, the normalisation is",
    }

    num_batches: int = setting(
        100, "Training batches whose statistics are kept.", ge=2, formerly="batches"
    )

    @classmethod
    def example_network(cls, net: nn.Module, outputs: int) -> nn.Module:
        """With normalised outputs."""
        return nn.Sequential(net, nn.BatchNorm1d(outputs))

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Fit a point, then record statistics."""
        paths = norms(model.net)
        if not paths:
            raise NetworkError(
                "mc_batchnorm needs a network with BatchNorm layers that keep running statistics; "
                "this one has none."
            )
        start = model.start_values(self.init, fit_job.seed)
        fitted = point_fit(model, fit_job, model.point_posterior(start), descent=self)
        statistics = Samples.of(self._record(model, fit_job, fitted, paths))
        return Fitted(Posterior([*fitted.posterior.factors, statistics]), fitted.buffers)

    @torch.no_grad()
    def _record(
        self, model: Model, fit_job: FitJob, fitted: Fitted, paths: list[str]
    ) -> dict[str, Tensor]:
        """Mean and variance of every normalised layer's inputs, one row per batch, as training
        computes them.
        """
        shell = model.shell()
        shell.train(False, paths)
        shell.place(model.frozen())
        shell.place({n: v.detach() for n, v in fitted.posterior.mean().items()})
        rows: dict[str, list[Tensor]] = {
            f"{path}.{leaf}": [] for path in paths for leaf in ("running_mean", "running_var")
        }

        def hook(path: str) -> Any:
            def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
                flat = args[0].movedim(1, 0).flatten(1)
                rows[f"{path}.running_mean"].append(flat.mean(1))
                rows[f"{path}.running_var"].append(flat.var(1, correction=0))

            return note

        modules = dict(shell.module.named_modules())
        handles = [modules[path].register_forward_pre_hook(hook(path)) for path in paths]
        try:
            for x in self._inputs(model, fit_job):
                shell.place({name: buffer.clone() for name, buffer in fitted.buffers.items()})
                shell(x)
        finally:
            for handle in handles:
                handle.remove()
            shell.train(False)
        twice = [
            name.rpartition(".")[0]
            for name, values in rows.items()
            if len(values) != self.num_batches
        ]
        if twice:
            raise NetworkError(
                f"The BatchNorm layer {twice[0]!r} is not used once in a pass; give every use a "
                "layer of its own."
            )
        return {name: torch.stack(values) for name, values in rows.items()}

    def _inputs(self, model: Model, fit_job: FitJob) -> Iterator[Any]:
        """``batches`` batches in orders of their own."""
        left, epoch, most = self.num_batches, 0, 2
        while left:
            order = generator(fit_job.seed, "statistics", epoch)
            with isolated(mix(fit_job.seed, "statistics", epoch), model.device):
                for x, y in fit_job.source(order, fit_job.batch_size):
                    if len(y) < most:
                        continue  # statistics of a smaller last batch have another spread
                    most = len(y)
                    yield model.move(x)
                    left -= 1
                    if not left:
                        return
            epoch += 1
