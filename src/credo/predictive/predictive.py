"""What ``predict`` returns: S draws of the network's outputs, the likelihood, and everything that
follows from them, with where the uncertainty comes from.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from credo.core.errors import CredoError, SettingError
from credo.core.seeds import generator as seeded
from credo.likelihoods.base import Likelihood


class Uncertainty(NamedTuple):
    """total = aleatoric + epistemic: ``(N,)`` in nats for discrete outcomes, variances ``(N, D)``
    otherwise.
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def decompose(outputs: Tensor, likelihood: Likelihood) -> Uncertainty:
    """Split the uncertainty of the mixture (1/S) sum_s p(y given f_s) into noise in y and
    disagreement between draws.

    Discrete: H[mean_s p_s] = mean_s H[p_s] + mutual information. Continuous: the law of total
    variance, var y = mean_s v_s + var_s m_s. With S = 1 the epistemic part is zero whatever the
    model knows.
    """
    aleatoric, epistemic = likelihood.uncertainty(outputs)
    return Uncertainty(aleatoric + epistemic, aleatoric, epistemic)


def joined(parts: Iterable[tuple[Predictive, Tensor]]) -> tuple[Predictive, Tensor]:
    """Predictions with their targets, batch by batch, as one of all data."""
    predictions, targets = zip(*parts, strict=True)
    outputs = torch.cat([p.outputs for p in predictions], 1)
    return Predictive(outputs, predictions[0].likelihood), torch.cat(targets).to(outputs.device)


def mutual_information(outputs: Tensor, likelihood: Likelihood) -> Tensor:
    """I(y; draw) = H[mixture] - mean_s H[p_s] in nats, ``(N,)``, for any likelihood.

    At most log S, so too small where draws hardly overlap. Monte Carlo for more than one target
    dimension, and then noise may make it slightly negative for continuous y; for discrete y it is
    cut at zero.
    """
    information = likelihood.mixture_entropy(outputs) - likelihood.entropy(outputs).mean(0)
    return information.clamp_min(0.0) if likelihood.discrete else information


@final
class Predictive:
    """The mixture p(y) = (1/S) sum_s p(y given f_s) for N data, from outputs ``(S, N, F)``.

    The likelihood is copied as it is now, so later training does not change a prediction. Gradients
    flow through the outputs.
    """

    def __init__(self, outputs: Tensor, likelihood: Likelihood) -> None:
        if outputs.dim() != 3 or outputs.shape[0] == 0 or not outputs.is_floating_point():
            raise CredoError(
                f"Predictive got outputs of shape {tuple(outputs.shape)} and type {outputs.dtype}; "
                "expected floats of shape (S, N, F) with S >= 1."
            )
        self.outputs = outputs
        self.likelihood = likelihood.frozen()

    @property
    def num_samples(self) -> int:
        """S, the number of posterior draws."""
        return self.outputs.shape[0]

    def __len__(self) -> int:
        return self.outputs.shape[1]

    # --- moments and probabilities ----------------------------------------------------------------

    @cached_property
    def mean(self) -> Tensor:
        """E[y]: mean probabilities ``(N, C)`` for labels, else the mean of y, ``(N, D)``."""
        return self.likelihood.mixture_moments(self.outputs)[0]

    @cached_property
    def variance(self) -> Tensor:
        """For labels that of the probabilities across draws, (1/S) sum (p_s - p)^2, ``(N, C)``;
        else the total variance of y.
        """
        return self.likelihood.reported_variance(self.outputs)

    @property
    def std(self) -> Tensor:
        """The square root of ``variance``."""
        return self.variance.sqrt()

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities of each draw, ``(S, N, C)``; a ``CredoError`` unless y is a label."""
        return self.likelihood.probs(self.outputs)

    @cached_property
    def label(self) -> Tensor:
        """The most probable label under the mean probabilities, ``(N,)``; ``(N, D)`` for D binary
        labels.
        """
        return self.likelihood.label(self.probs.mean(0))

    # --- uncertainty ------------------------------------------------------------------------------

    @cached_property
    def _parts(self) -> Uncertainty:
        return decompose(self.outputs, self.likelihood)

    @property
    def total(self) -> Tensor:
        """aleatoric + epistemic: ``(N,)`` nats for discrete y, variances ``(N, D)`` otherwise."""
        return self._parts.total

    @property
    def aleatoric(self) -> Tensor:
        """Noise in y that more data would not remove: mean entropy (nats) or mean variance of the
        draws.
        """
        return self._parts.aleatoric

    @property
    def epistemic(self) -> Tensor:
        """Disagreement between draws, which more data would remove: mutual information (nats) or
        variance of the means.
        """
        return self._parts.epistemic

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of the mixture in nats, ``(N,)``; differential for continuous y."""
        return self.likelihood.mixture_entropy(self.outputs)

    @cached_property
    def mutual_information(self) -> Tensor:
        """Mutual information of y and the draw in nats, ``(N,)``, for any likelihood."""
        return mutual_information(self.outputs, self.likelihood)

    # --- quantiles, draws, densities --------------------------------------------------------------

    def quantile(self, q: float) -> Tensor:
        """The q-quantile of y, ``(N, D)``, observation noise included; a ``CredoError`` for
        labels.
        """
        return self.likelihood.mixture_quantile(self.outputs, q)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, each ``(N, D)``, of the central interval that holds y with
        probability ``level``.
        """
        if not 0.0 < level < 1.0:
            raise SettingError(
                f"level={level!r} is not valid; expected a probability strictly between 0 and 1, "
                "such as 0.9."
            )
        return self.quantile((1.0 - level) / 2.0), self.quantile((1.0 + level) / 2.0)

    def sample(self, n: int = 1, seed: int = 0) -> Tensor:
        """n draws of y for all N data, ``(n, N)`` or ``(n, N, D)``: each picks one posterior draw,
        shared by all data, then y.
        """
        if n < 1:
            raise SettingError(f"n={n!r} is not valid; expected a whole number of draws from 1.")
        generator = seeded("predictive", seed, device=self.outputs.device)
        chosen = torch.randint(
            self.num_samples, (n,), generator=generator, device=self.outputs.device
        )
        # Every round draws y from all S components, because the likelihood's noise may have one
        # value per posterior draw.
        counts = torch.bincount(chosen, minlength=self.num_samples)
        rounds = torch.stack(
            [self.likelihood.sample(self.outputs, generator) for _ in range(int(counts.max()))]
        )
        order = chosen.argsort(stable=True)
        starts = counts.cumsum(0) - counts
        visit = torch.empty_like(chosen)
        visit[order] = torch.arange(n, device=chosen.device) - starts[chosen[order]]
        return rounds[visit, chosen]

    def log_prob(self, y: Tensor) -> Tensor:
        """log (1/S) sum_s p(y given f_s) of targets as a user gives them, ``(N,)``."""
        return self.likelihood.mixture_log_prob(
            self.outputs, self.likelihood.check_pair(self.outputs, y)
        )

    # --- handling ---------------------------------------------------------------------------------

    def to(self, device: torch.device | str) -> Predictive:
        """The same prediction on another device."""
        return Predictive(self.outputs.to(device), self.likelihood.frozen().to(device))

    def __getitem__(self, index: int | slice | Tensor) -> Predictive:
        """The predictions of some data: a mask, indices, a slice, or one index (which keeps the
        data axis).
        """
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"index {index} is out of range for {len(self)} predictions")
            index = slice(index % len(self), index % len(self) + 1)
        return Predictive(self.outputs[:, index], self.likelihood)

    def __repr__(self) -> str:
        shape = "samples={}, data={}, outputs={}".format(*self.outputs.shape)
        return f"Predictive({self.likelihood.name}, {shape}, device={self.outputs.device})"
