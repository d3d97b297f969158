"""Variance networks' family: Gaussians whose means are zero for good, q(w) = prod_i N(w_i; 0,
sigma_i^2).

All that is learned is how much a weight varies. Under the log-uniform prior p(w) ~ 1 / abs(w),
which has no scale, the KL is the same for every sigma, and zero by the convention that it vanishes
as sigma^2 / mean^2 grows: it is the limit of sparse variational dropout with every weight beyond
its threshold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from credo.core.errors import SettingError
from credo.core.sites import FlatLayout
from credo.posteriors.family import families
from credo.posteriors.mean_field import MeanField
from credo.priors import is_log_uniform

_FLOOR = 1e-3  # of the typical size of a tensor's weights, below which a deviation does not start


@families.register("zero_mean")
class ZeroMean(MeanField):
    """Standard deviations alone.

    Its mean is a network that computes nothing, and no prediction is made with it.
    """

    name: ClassVar[str] = "zero_mean"
    startable: ClassVar[bool] = False
    meaningless_mean: ClassVar[str] = (
        "every weight has mean zero, and a network of zeros computes nothing"
    )

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], scale: str = "log", dtype: str = "float32"
    ) -> None:
        if scale != "log":
            raise SettingError(
                f"ZeroMean: scale={scale!r}; expected 'log': deviations alone need steps relative "
                "to their size."
            )
        super().__init__(shapes, scale, dtype)
        zero = torch.zeros_like(self.raw_std.detach())
        del self.flat_mean
        self.register_buffer("flat_mean", zero, persistent=False)

    @classmethod
    @torch.no_grad()
    def start(
        cls, values: Mapping[str, Tensor], init_std: float = 1.0, scale: str = "log"
    ) -> ZeroMean:
        """Deviations ``init_std`` times the absolute ``values``: units that started equal would
        stay equal for ever.
        """
        sizes = {}
        for name, value in values.items():
            size = value.detach().abs()
            typical = size.square().mean().sqrt()
            sizes[name] = init_std * size.clamp_min(_FLOOR * float(typical) or _FLOOR)
        flat = FlatLayout({name: value.shape for name, value in sizes.items()}).join(sizes)
        family = cls(
            {n: v.shape for n, v in sizes.items()}, scale, str(flat.dtype).removeprefix("torch.")
        ).to(flat.device)
        family.raw_std.copy_(flat.log())
        return family

    def kl_elementwise(self, prior: Mapping[str, Distribution]) -> Tensor | None:
        """Zero under the log-uniform prior, whatever the deviations."""
        if not all(is_log_uniform(p) for p in prior.values()):
            return super().kl_elementwise(prior)
        return self.flat_mean.new_zeros(())
