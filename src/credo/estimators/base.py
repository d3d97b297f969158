"""How randomness enters a forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from credo.core.linear_map import LinearMap
from credo.core.registry import Registry
from credo.core.seeds import Noise
from credo.posteriors import Draw

estimators: Registry[Estimator] = Registry("estimator")


class Estimator(ABC):
    """Decides what a linear map gives when it meets a random weight."""

    name: ClassVar[str]
    intercepts: ClassVar[bool]  # False: weights are drawn first and the network runs untouched

    @abstractmethod
    def meet(self, draw: Draw, op: LinearMap, x: Tensor, w: str, b: Any, noise: Noise) -> Tensor:
        """The output of ``op`` with the family's noise in it, or NotImplemented: then the site is drawn as weights."""
