"""The variational information bottleneck: a network whose inner code of x says as much as y needs,
and as little else as possible.

Minimises sum_n E_z~q(z given x_n)[-log q(y_n given z)] + beta KL[q(z given x_n), r(z)] with r =
N(0, I), over all weights as points without a prior, as published. The code is a layer of the
network, ``credo.nets.Bottleneck``. Beta is the price of a nat of I(X; Z) in nats of the
log-likelihood: at 0 this is maximum likelihood with noise, above about 1 a code costs more than it
can tell of y, the rate falls to zero and predictions to the marginal of y. Draws of a prediction
are draws of z, so what spreads them is the code's noise: a regulariser, no posterior over weights,
and not ignorance that more data would remove.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from credo.core.errors import NetworkError
from credo.core.seeds import isolated
from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.method import Method, methods
from credo.engine.model import Fitted, Model
from credo.engine.step import descend
from credo.engine.training_loop import DescentSettings, decays
from credo.methods.variational.parts.bottleneck_elbo import Bottlenecked
from credo.nets.bottleneck import Bottleneck, bottlenecks
from credo.posteriors import Stochastic


@methods.register("vib")
@dataclass(frozen=True)
class VIB(Method, DescentSettings):
    """A noisy code of limited information."""

    name: ClassVar[str] = "vib"
    summary: ClassVar[str] = (
        "Variational information bottleneck: a noisy inner code that pays for what it keeps of x."
    )
    reference: ClassVar[str] = (
        "Alemi, Fischer, Dillon and Murphy 2017, Deep variational information bottleneck."
    )
    conformance_settings: ClassVar[dict[str, Any]] = {"epochs": 200, "batch_size": 16, "lr": 0.02}
    exceptions: ClassVar[dict[str, str]] = {
        "conjugate_mean": "with a code between two linear maps the regression is another model, "
        "whose weights are not identified",
        "conjugate_covariance": "no weight is random, the code is",
    }

    beta: float = setting(
        1e-3, "Weight of the code's information, in nats of the log-likelihood per nat.", ge=0.0
    )
    train_samples: int = setting(1, "Draws of the code per step.", ge=1)

    @classmethod
    def example_network(cls, net: nn.Module, outputs: int) -> nn.Module:
        """With a code of four numbers behind its outputs."""
        with isolated(0):
            return nn.Sequential(net, Bottleneck(outputs, 4), nn.Linear(4, outputs))

    def adapt(self, model: Model) -> Model:
        """Without a prior."""
        return model.flat()

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Descend, then predict with the bottlenecks, and only them, as in training."""
        noisy_modules = tuple(bottlenecks(model.net))
        if not noisy_modules:
            raise NetworkError(
                "vib needs a credo.nets.Bottleneck(in_features, latent_dim) in the network, whose "
                "code it limits; this network has none: "
                "put one in front of its last layers, e.g. nn.Sequential(body, Bottleneck(100, "
                "32), nn.Linear(32, 10))."
            )
        values = model.start_values(self.init, fit_job.seed)
        random = {n: values[n] for n in model.random}
        posterior = model.with_points([Stochastic.of(random, noisy_modules)], values)
        elbo = Bottlenecked(model, posterior, fit_job.source.num_data, self.train_samples)
        decay = decays[self.lr_schedule]
        return descend(elbo, fit_job, beta=self.beta, decay=decay, compile=self.compile)
