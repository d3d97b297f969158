"""The mixture of soft weight sharing: one normal held at zero with a share that is given, and
others that may be learned.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Gamma, Normal, constraints

from credo.core.errors import SettingError
from credo.priors.base import Stored, stored
from credo.priors.gaussian_mixture import GaussianMixture
from credo.priors.learned import Learned

_VECTOR = constraints.independent(constraints.real, 1)
_POSITIVE_VECTOR = constraints.independent(constraints.positive, 1)
#: (shape, rate) of the gamma hyperpriors of the precisions: of the component at zero, and of the
#: others (Ullrich et al. 2017).
ZERO_GAMMA, OTHER_GAMMA = (5e3, 2.0), (250.0, 0.1)


class ZeroMixture(Distribution):
    """p(w) = share N(0, 1 / precision_0) + (1 - share) sum_k softmax(logits)_k N(w; free_k, 1 /
    precision_k), k = 1..K.

    ``logits`` and ``free`` have shape (K,), ``precision`` (K + 1,) with the component at zero
    first, ``share`` is a number. Of use as the start of a ``Learned`` prior, whose arguments these
    are: what is to stay fixed is not among them. Precisions and not deviations, since they have the
    gamma hyperpriors.
    """

    arg_constraints = {  # type: ignore[assignment]
        "logits": _VECTOR,
        "free": _VECTOR,
        "precision": _POSITIVE_VECTOR,
    }
    support = constraints.real  # type: ignore[assignment]

    def __init__(
        self,
        share: float,
        logits: Any,
        free: Any,
        precision: Any,
        validate_args: bool | None = None,
    ) -> None:
        if not 0.0 < share < 1.0:
            raise SettingError(
                f"share={share!r} is not valid; expected a number above 0 and below 1, the share "
                "of the weights at zero."
            )
        given = (logits, free, precision)
        values = [
            torch.as_tensor(v, dtype=None if isinstance(v, Tensor) else torch.get_default_dtype())
            for v in given
        ]
        sizes = [tuple(v.shape) for v in values]
        if (
            len(sizes[0]) != 1
            or not sizes[0][0]
            or sizes[1] != sizes[0]
            or sizes[2] != (sizes[0][0] + 1,)
        ):
            raise SettingError(
                f"ZeroMixture: logits, free and precision have shapes {sizes}; expected (K,), "
                "(K,) and (K + 1,) with K >= 1."
            )
        self.share = share
        self.logits, self.free, self.precision = values
        super().__init__(validate_args=validate_args)

    @property
    def mixture(self) -> GaussianMixture:
        """The same distribution with all K + 1 components alike, the one at zero first."""
        logits = torch.cat(
            [
                self.logits.new_full((1,), math.log(self.share)),
                math.log1p(-self.share) + self.logits.log_softmax(-1),
            ]
        )
        return GaussianMixture(logits, self.loc, self.scale, validate_args=False)

    @property
    def loc(self) -> Tensor:
        """Means of all components (K + 1,), exactly zero first."""
        return torch.cat([torch.zeros_like(self.free[:1]), self.free])

    @property
    def scale(self) -> Tensor:
        """Standard deviations of all components (K + 1,)."""
        return self.precision.rsqrt()

    @property
    def weights(self) -> Tensor:
        """Mixing proportions of all components (K + 1,)."""
        return self.mixture.weights

    @property
    def mean(self) -> Tensor:
        """Of the mixture."""
        return self.mixture.mean

    @property
    def variance(self) -> Tensor:
        """Of the mixture."""
        return self.mixture.variance

    def log_prob(self, value: Tensor) -> Tensor:
        """By logsumexp over components, of the shape of ``value``."""
        if self._validate_args:
            self._validate_sample(value)
        return self.mixture.log_prob(value)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """From torch's global generator."""
        return self.mixture.sample(sample_shape)

    def responsible(self, value: Tensor) -> Tensor:
        """The component with the largest share of the density at every value: whole numbers of its
        shape, 0 for the one at zero.
        """
        parts = Normal(self.loc, self.scale, validate_args=False).log_prob(value.unsqueeze(-1))
        return (self.weights.log() + parts).argmax(-1)

    def collapse(self, value: Tensor) -> Tensor:
        """Every value at the mean of its responsible component, so that at most K + 1 different
        ones are left, and zeros are exact.
        """
        return self.loc[self.responsible(value)].to(value.dtype)

    def __repr__(self) -> str:
        return f"ZeroMixture(share {self.share:g}, {self.mixture!r})"


stored.register("ZeroMixture")(Stored(ZeroMixture, lambda mixture: {"share": mixture.share}))


def shared_values(
    components: int, share: float, low: float, high: float, per: str = "global"
) -> Learned:
    """A learned ``ZeroMixture``: one component at zero and ``components`` others over [low, high],
    gamma hyperpriors on precisions.

    All start as narrow as their hyperpriors' means say, but no narrower than a quarter of the
    distance between neighbours: a component that reaches no weight learns nothing.
    """
    if components < 1 or not low < high:
        raise SettingError(
            f"components={components}, low={low:g}, high={high:g}; expected at least one "
            "component and a range that is not empty."
        )
    free = (
        torch.linspace(low, high, components + 2)[1:-1]
        if components == 1
        else torch.linspace(low, high, components)
    )
    widest = 0.25 * (high - low) / max(components - 1, 1)
    means = [shape / rate for shape, rate in (ZERO_GAMMA, *[OTHER_GAMMA] * components)]
    precision = torch.tensor([min(mean, widest**-2) for mean in means])
    gammas = torch.tensor([ZERO_GAMMA, *[OTHER_GAMMA] * components])
    start = ZeroMixture(share, torch.zeros(components), free, precision)
    return Learned(start, per=per, hyperprior={"precision": Gamma(gammas[:, 0], gammas[:, 1])})
