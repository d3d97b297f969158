"""The likelihood of a network whose outputs are bounds on log p(x): what they say of a datum is
what it counts.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch.distributions import Distribution

from credo.core.errors import CredoError
from credo.likelihoods.base import Likelihood, likelihoods


class Evidence(Likelihood):
    """log p(x) >= the first of two outputs; the second is the KL of the latent variables, watched
    while fitting.

    It makes a generative model a model like any other. It has no targets: whatever asks for some
    is refused. ``arguments`` describe the generative model, so that a run holds them and refuses to
    be resumed as another one.
    """

    name: ClassVar[str] = "evidence"
    discrete: ClassVar[bool] = True
    metric_family: ClassVar[str] = "values"
    of_inputs: ClassVar[bool] = True
    sums: Tensor

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        of = likelihoods[arguments["data"]["name"]] if "data" in arguments else None
        self.discrete = of is None or of.discrete  # pyright: ignore  as the data are
        self.register_buffer("sums", torch.zeros(3, dtype=torch.float64), persistent=False)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The bound ``(..., N)``."""
        if torch.is_grad_enabled():  # training: not a validation in between
            with torch.no_grad():
                rows = outputs.detach().flatten(0, -2).double()
                self.sums += torch.cat([rows.sum(0), torch.full_like(rows[:1, 0], rows.shape[0])])
        return outputs[..., 0]

    def monitor(self) -> dict[str, float]:
        """Bound and latent KL since the last call, in nats per datum."""
        bound, kl, count = self.sums.tolist()
        self.sums.zero_()
        return {"bound": bound / count, "latent_kl": kl / count} if count else {}

    def check_targets(self, y: Any) -> Tensor:
        """Whatever stands beside the data is ignored."""
        return torch.as_tensor(y)

    def check_training_targets(self, y: Any) -> Tensor:
        return torch.as_tensor(y)

    def modelled(self, x: Tensor) -> tuple[Likelihood, Tensor]:
        """The data, and the likelihood that they have given the decoder's outputs."""
        if self.config().get("binarise"):
            raise CredoError("Data that are drawn anew in every step have no constant to compare.")
        about = self.config()["data"]
        own = likelihoods[about["name"]].from_config(about["config"])
        return own, own.check_targets(x.flatten(1))

    def num_outputs(self, y: Tensor) -> int:
        """Bound and KL."""
        return 2

    def forward(self, outputs: Tensor) -> Distribution:
        self._refuse()

    def marginals(self, outputs: Tensor) -> Distribution:
        self._refuse()

    def marginal_entropy(self, outputs: Tensor) -> Tensor:
        self._refuse()

    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor:
        self._refuse()

    def mixture_quantile(self, outputs: Tensor, q: float) -> Tensor:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise CredoError(
            "A generative model predicts no targets; use its own sample, reconstruct, elbo and "
            "log_marginal."
        )
