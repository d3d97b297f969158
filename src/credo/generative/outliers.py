"""Out-of-distribution scores of data under a VAE: log p(x) alone, and its ratio to a background
that knows what is common to all data.

A low log p(x) is a poor sign of strangeness: a model of clothes gives digits a higher one than
clothes, because digits are emptier and so easier (Nalisnick et al. 2019). A likelihood ratio takes
that part out. The background may be a second model, trained on perturbed data (Ren et al. 2019), or
a general-purpose compressor, whose code length is a log-likelihood of all images alike (Serra et
al. 2020).
"""

from __future__ import annotations

import math
import zlib
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor

from credo.core.errors import DataError, SettingError
from credo.core.seeds import generator
from credo.core.settings import whole
from credo.data.checks import check_inputs
from credo.generative.autoencoders import VAE


def perturb(x: Any, rate: float = 0.2, seed: int = 0) -> Tensor:
    """Data in [0, 1] with a share ``rate`` of their numbers replaced by even draws of [0, 1], for a
    background model.

    Binary data (zeros and ones alone) get fair coins instead, and keep their type. Other whole
    numbers are refused.
    """
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0.0 < rate < 1.0:
        raise SettingError(
            f"rate={rate!r} is not valid; expected a share above 0 and below 1, such as 0.2."
        )
    data = _one_tensor(x)
    binary = bool(((data == 0) | (data == 1)).all())
    if not binary and not (data.is_floating_point() and bool(((data >= 0) & (data <= 1)).all())):
        raise DataError(
            f"The data go from {data.min().item():g} to {data.max().item():g}; expected numbers "
            "in [0, 1]: rescale them."
        )
    source = generator(whole("seed", seed), "perturb", device=data.device)
    noise, chance = (torch.rand(data.shape, generator=source, device=data.device) for _ in range(2))
    return torch.where(chance < rate, (noise.round() if binary else noise).to(data.dtype), data)


def _one_tensor(x: Any) -> Tensor:
    tensor = check_inputs(x)
    if not isinstance(tensor, Tensor):
        raise DataError(f"The data are a {type(x).__name__}; expected one tensor or array.")
    return tensor


class Background(Protocol):
    """What a model is compared with: another log-likelihood of the same data."""

    def log_marginal(
        self, x: Any, k: int, samples: int = 1, seed: int = 0, batch_size: int | None = None
    ) -> Tensor:
        """Per datum ``(N,)``, in nats."""
        ...


@final
class Compressor:
    """minus the length of each datum's DEFLATE code, in nats: the likelihood of a coder that knows
    no data set.

    Floats in [0, 1] are taken at ``levels`` grey levels, whole numbers are levels already (``unit``
    says which where the type does not). Of three codes the shortest counts: of the levels
    themselves, and of their differences along either image axis, as in a PNG file. A constant
    overhead of some bytes is in it.
    """

    def __init__(self, levels: int = 256, unit: bool | None = None) -> None:
        if isinstance(levels, bool) or not isinstance(levels, int) or not 2 <= levels <= 256:
            raise SettingError(
                f"Compressor: levels={levels!r} is not valid; expected a whole number from 2 to "
                "256."
            )
        self.levels, self.unit = levels, unit

    def log_marginal(
        self, x: Any, k: int = 1, samples: int = 1, seed: int = 0, batch_size: int | None = None
    ) -> Tensor:
        """Per datum ``(N,)``; the arguments beside ``x`` are those of a model, and mean nothing
        here.
        """
        tensor = _one_tensor(x)
        unit = tensor.is_floating_point() if self.unit is None else self.unit
        values = tensor * (self.levels - 1) if unit else tensor.to(torch.float64)
        if not bool(((values >= 0) & (values <= self.levels - 1)).all()) or not (
            unit or bool((values == values.round()).all())
        ):
            kind = "numbers in [0, 1]" if unit else f"whole numbers from 0 to {self.levels - 1}"
            raise DataError(
                f"The data go from {tensor.min().item():g} to {tensor.max().item():g}; expected "
                f"{kind}: rescale them."
            )
        levels = values.round().to(torch.uint8).cpu().numpy()
        lengths = [_shortest(one) for one in levels]
        return (
            -torch.tensor(lengths, dtype=torch.float64, device=tensor.device) * 8.0 * math.log(2.0)
        )


def _shortest(levels: np.ndarray) -> int:
    """Bytes of the best of three codes; flat data of square size count as an image."""
    side = math.isqrt(levels.size)
    image = (
        levels.reshape(side, side) if levels.ndim == 1 and side * side == levels.size else levels
    )
    zero = np.uint8(0)
    forms = [
        image,
        *(
            np.diff(image, axis=axis, prepend=zero)
            for axis in range(max(0, image.ndim - 2), image.ndim)
        ),
    ]
    return min(len(zlib.compress(np.ascontiguousarray(form).tobytes(), 9)) for form in forms)


@final
class LikelihoodRatio:
    """log p(x) - log p_0(x), the second under a background: high for data like the training data,
    whatever their complexity.
    """

    def __init__(self, model: VAE, background: Background) -> None:
        if isinstance(background, VAE) and model.shape != background.shape:
            raise SettingError(
                f"The models are of data of different shapes, {model.shape} and {background.shape}."
            )
        if model.binarise != (isinstance(background, VAE) and background.binarise):
            raise SettingError(
                "One of the two sees binary draws of the data and the other does not; binarise "
                "both, or neither."
            )
        self.model, self.background = model, background

    def score(
        self, x: Any, k: int = 100, samples: int = 1, seed: int = 0, batch_size: int | None = None
    ) -> Tensor:
        """In nats per datum ``(N,)``, by importance sampling with ``k`` draws and ``samples`` of
        random weights; a low score means strange.
        """
        own, other = (
            m.log_marginal(x, k, samples, seed, batch_size) for m in (self.model, self.background)
        )
        return own - other.to(own.device)
