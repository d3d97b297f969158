"""Out-of-distribution scores of data under a VAE: by its bound, and by a likelihood ratio.

A low log p(x) is a poor sign of strangeness: a model of clothes gives digits a higher one than clothes, because digits have more empty background,
which is easy (Nalisnick et al. 2019). The ratio to a second model that was trained on perturbed data, and so knows background but no
content, takes that part out (Ren et al. 2019).
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.core.seeds import generator
from credo.generative.vae import VAE


def perturb(x: Tensor, rate: float = 0.2, seed: int = 0) -> Tensor:
    """Data in [0, 1] with a share ``rate`` of their numbers replaced by even draws of [0, 1], for the background model.

    Binary data (zeros and ones alone) get fair coins instead.
    """
    if not 0.0 < rate < 1.0:
        raise SettingError(f"rate={rate!r} is not valid; expected a share above 0 and below 1, such as 0.2.")
    source = generator(seed, "perturb", device=x.device)
    noise, chance = (torch.rand(x.shape, generator=source, device=x.device).to(x.dtype) for _ in range(2))
    binary = bool(((x == 0) | (x == 1)).all())
    return torch.where(chance < rate, noise.round() if binary else noise, x)


@final
class LikelihoodRatio:
    """log p(x) - log p_0(x), the second under a model of perturbed data: high for data like the training data."""

    def __init__(self, model: VAE, background: VAE) -> None:
        if model.shape != background.shape:
            raise SettingError(f"The models are of data of different shapes, {model.shape} and {background.shape}.")
        self.model, self.background = model, background

    def score(self, x: Any, k: int = 100, seed: int = 0, batch_size: int | None = None) -> Tensor:
        """In nats per datum ``(N,)``, both by importance sampling with ``k`` draws; a low score means strange."""
        parts = [vae.log_marginal(x, k=k, seed=seed, batch_size=batch_size) for vae in (self.model, self.background)]
        return parts[0] - parts[1]
