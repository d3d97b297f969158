"""Noise that is in the network already: no weight is random, but the forward pass is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from credo.core.errors import CredoError
from credo.posteriors.delta import Delta
from credo.posteriors.draw import Params
from credo.posteriors.family import families


@families.register("stochastic")
class Stochastic(Delta):
    """Points, run with the modules at the paths in ``noisy_modules`` in training mode, each draw
    with random numbers of its own.

    What such a module does is its own affair (stochastic depth, augmentation, noise of the user's
    making), so the draws have no density, and inputs of one batch may see different noise: these
    are draws of predictions, not of functions.
    """

    name: ClassVar[str] = "stochastic"
    atoms = None

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        noisy_modules: Sequence[str],
        dtype: str | Mapping[str, str] = "float32",
    ) -> None:
        super().__init__(shapes, dtype)
        self.paths = tuple(noisy_modules)

    @classmethod
    def of(cls, values: Mapping[str, Tensor], noisy_modules: Sequence[str]) -> Stochastic:
        """Points at ``values`` and these modules."""
        family = cls(
            {n: v.shape for n, v in values.items()},
            noisy_modules,
            {n: str(v.dtype).removeprefix("torch.") for n, v in values.items()},
        )
        family.place(values)
        return family

    @property
    def noisy_modules(self) -> frozenset[str]:
        """The modules in training mode."""
        return frozenset(self.paths)

    def log_prob(self, latents: Params) -> Tensor:
        """The noise is the network's own: always an error."""
        raise CredoError(
            "A stochastic forward pass has no density over weights; ask for predictions."
        )

    def config(self) -> dict[str, Any]:
        """Shapes, dtypes and modules."""
        return super().config() | {"noisy_modules": list(self.paths)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Stochastic:
        """As every family; files before 0.2 call the modules ``live``."""
        config = dict(config)
        return cls(
            config["shapes"], config.get("noisy_modules", config.get("live", ())), config["dtype"]
        )
