"""Which weights Laplace's approximation is about: layers, or single weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from credo.core.errors import SettingError
from credo.curvature.structures import STRUCTURES, Measured, earlier_families, independent_normal
from credo.curvature.sweep import Sweep
from credo.engine.model import Model
from credo.methods.laplace.parts.single_weights import CHOICES, masked, subnetwork
from credo.posteriors.full import MAX_NUMEL


class Subset(ABC):
    """A choice of weights, before any data are seen."""

    def given(self) -> Mapping[str, Tensor]:
        """Numbers of the choice itself, which a run is not resumed with others of."""
        return {}

    @abstractmethod
    def narrow(self, model: Model) -> Model:
        """The model with no other parameters random than those that may have a chosen weight."""

    @abstractmethod
    def check(self, structure: str, model: Model) -> None:
        """Refuse what cannot end well whatever the data are, so that it is said before any
        training.
        """

    @abstractmethod
    def measure(self, structure: str, sweep: Sweep, rank: int, before: Measured | None) -> Measured:
        """The curvature; weights that ``before`` has chosen stay chosen."""


@final
class Layers(Subset):
    """Whole parameters, by name."""

    def __init__(self, layers: Any) -> None:
        self.layers = layers

    def narrow(self, model: Model) -> Model:
        """As ``random=`` chooses."""
        return model if self.layers == "all" else model.narrow(self.layers, "subset")

    def check(self, structure: str, model: Model) -> None:
        STRUCTURES[structure].check(structure, model)

    def measure(self, structure: str, sweep: Sweep, rank: int, before: Measured | None) -> Measured:
        return STRUCTURES[structure].measure(sweep, rank)


class _Single(Subset):
    """Single weights of any layers, which keep all of their covariance."""

    @abstractmethod
    def count(self, model: Model) -> int:
        """How many there will be."""

    def check(self, structure: str, model: Model) -> None:
        """Their number, and an earlier posterior that says something of every weight by itself."""
        count = self.count(model)
        if count > MAX_NUMEL:
            raise SettingError(
                f"subset: a full covariance over {count} single weights is too large (at most "
                f"{MAX_NUMEL}); choose fewer."
            )
        earlier = earlier_families(model)
        odd = next((f.name for f in earlier if not independent_normal(f)), None)
        if odd is not None:
            raise SettingError(
                "laplace cannot add data about single weights to an earlier posterior of the "
                f"family {odd!r}; fit all data at once, or choose "
                "whole layers with subset= and structure='full'."
            )


@final
class Masked(_Single):
    """Those that a boolean mask by parameter marks."""

    def __init__(self, masks: Mapping[str, Any]) -> None:
        self.masks = masks

    def given(self) -> Mapping[str, Tensor]:
        return {f"subset/{name}": torch.as_tensor(mask) for name, mask in self.masks.items()}

    def count(self, model: Model) -> int:
        return sum(map(len, masked(self.masks, model).values()))

    def narrow(self, model: Model) -> Model:
        """Parameters with a marked weight."""
        return model.only(masked(self.masks, model))

    def measure(self, structure: str, sweep: Sweep, rank: int, before: Measured | None) -> Measured:
        return subnetwork(sweep, masked(self.masks, sweep.model))


@final
class Largest(_Single):
    """The ``size`` first among all random weights by one of ``CHOICES``, which sees the trained
    network.
    """

    def __init__(self, choice: str, size: int) -> None:
        self.choice, self.size = choice, size

    def count(self, model: Model) -> int:
        """``size``, which there must be."""
        numel = sum(site.numel for site in model.random.values())
        if self.size > numel:
            raise SettingError(
                f"laplace: size={self.size} is more than the {numel} random weights there are; "
                "choose fewer."
            )
        return self.size

    def narrow(self, model: Model) -> Model:
        return model

    def measure(self, structure: str, sweep: Sweep, rank: int, before: Measured | None) -> Measured:
        """Of weights chosen at these values, unless they were chosen before."""
        chosen = None if before is None else before.chosen
        return subnetwork(
            sweep, CHOICES[self.choice](sweep, self.size) if chosen is None else chosen
        )


def subset_of(subset: Any, size: int | None, structure: str) -> Subset:
    """The subset that settings describe; settings that do not go together are refused."""
    masks: Mapping[str, Any] | None = subset if isinstance(subset, Mapping) else None
    choice = (
        "" if masks is not None or not isinstance(subset, str) or subset not in CHOICES else subset
    )
    if size is not None and not choice:
        raise SettingError(
            f"laplace: size={size} is how many single weights "
            f"subset={' or '.join(map(repr, CHOICES))} keeps; other subsets take none."
        )
    if masks is None and not choice:
        return Layers(subset)
    if structure != "full":
        raise SettingError(
            f"laplace: structure={structure!r} is not for single weights "
            f"(subset={repr(choice) if choice else 'masks'}), which keep all of "
            "their covariance: set structure='full'."
        )
    if masks is not None:
        return Masked(masks)
    if size is None:
        raise SettingError(
            f"laplace: subset={choice!r} needs size=, the number of single weights to keep."
        )
    return Largest(choice, size)
