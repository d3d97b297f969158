"""A regression problem whose posterior is known, and one small network of each kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from credo.bnn import BNN
from credo.core.seeds import isolated
from credo.likelihoods import Gaussian
from credo.nets import lstm_classifier, mlp, small_cnn, transformer_classifier


@dataclass(frozen=True)
class Conjugate:
    """Linear regression with known noise: its posterior is N(mean, precision^-1), over weights then
    bias.
    """

    x: Tensor
    y: Tensor
    std: float
    mean: Tensor
    precision: Tensor
    least_squares: Tensor
    log_evidence: float

    @property
    def covariance(self) -> Tensor:
        """The exact posterior covariance."""
        return torch.linalg.inv(self.precision)

    def bnn(
        self, example_network: Callable[[nn.Module, int], nn.Module] = lambda net, outputs: net
    ) -> BNN:
        """The model whose posterior this is: one linear layer, double precision, prior N(0, 1);
        ``example_network`` may put more around the layer.
        """
        with isolated(0):
            net = nn.Linear(self.x.shape[1], 1).double()
        return BNN(example_network(net, 1).double(), Gaussian(std=self.std), prior=Normal(0.0, 1.0))


def conjugate(num_data: int = 40, features: int = 3, std: float = 0.5, seed: int = 0) -> Conjugate:
    """A problem small enough for every method; inputs are correlated, so that a mean-field
    posterior is clearly narrower than the exact one.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_data, features, generator=generator, dtype=torch.float64)
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    design = torch.cat([x, torch.ones(num_data, 1, dtype=torch.float64)], 1)
    weights = torch.randn(features + 1, generator=generator, dtype=torch.float64)
    y = design @ weights + std * torch.randn(num_data, generator=generator, dtype=torch.float64)
    precision = torch.eye(features + 1, dtype=torch.float64) + design.T @ design / std**2
    mean = torch.linalg.solve(precision, design.T @ y / std**2)
    least_squares = torch.linalg.lstsq(design, y.unsqueeze(1)).solution.squeeze(1)
    cover = design @ design.T + std**2 * torch.eye(num_data, dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(torch.zeros_like(y), cover).log_prob(y)
    return Conjugate(x, y, std, mean, precision, least_squares, float(evidence))


class Example(NamedTuple):
    """A network with inputs and targets it fits on."""

    net: nn.Module
    x: Any
    y: Tensor


def examples() -> dict[str, Callable[[], Example]]:
    """One small classifier of each kind: MLP, CNN, LSTM, Transformer."""

    def make(build: Callable[[], nn.Module], x: Tensor) -> Callable[[], Example]:
        def one() -> Example:
            with isolated(1):
                return Example(build(), x, torch.arange(len(x)) % 3)

        return one

    generator = torch.Generator().manual_seed(2)
    flat = torch.randn(24, 5, generator=generator)
    image = torch.randn(24, 1, 8, 8, generator=generator)
    words = torch.randint(0, 11, (24, 6), generator=generator)
    return {
        "mlp": make(lambda: mlp(5, (8,), 3), flat),
        "cnn": make(lambda: small_cnn(1, 3, widths=(4, 4), batch_norm=True), image),
        "lstm": make(lambda: lstm_classifier(vocab=11, hidden=6, outputs=3, width=4), words),
        "transformer": make(
            lambda: transformer_classifier(
                vocab=11, outputs=3, width=8, heads=2, layers=1, feedforward=8
            ),
            words,
        ),
    }
