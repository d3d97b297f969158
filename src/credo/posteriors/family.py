"""The protocol every posterior family keeps, and the flat layout most of them share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from credo.core.errors import CredoError
from credo.core.linear_map import LinearMap
from credo.core.registry import Registry
from credo.core.seeds import Noise

Params = dict[str, Tensor]
families: Registry[type[Family]] = Registry("posterior family")


class Draw(ABC):
    """What one forward pass sees of a family: latents drawn once, met by linear maps or turned into weights.

    Everything shared over the call is drawn when the object is made, before the network runs, so that checkpointed
    layers recompute with the same values.
    """

    kl: Tensor | None = None  # set where the family folds its KL into the draw

    @abstractmethod
    def weights(self, names: Iterable[str]) -> Params:
        """One joint draw of the named parameters."""

    def prepare(self) -> None:
        """Make whatever linear maps will need, before the network runs; nothing unless a family says otherwise."""

    def local(self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise) -> Tensor:
        """op(x, w) + b with the noise drawn on the output; NotImplemented where the family has no such form."""
        return NotImplemented

    def flipout(self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise) -> Tensor:
        """op(x, w) + b with one perturbation shared and its signs flipped per example; NotImplemented likewise."""
        return NotImplemented


class Family(nn.Module, ABC):
    """A distribution over some of the parameters, ``shapes`` by name.

    ``atoms`` is the number of points of a discrete posterior (an ensemble), which prediction then visits once each.
    """

    name: ClassVar[str]
    atoms: int | None = None

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        self.shapes = {name: torch.Size(shape) for name, shape in shapes.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters it covers."""
        return tuple(self.shapes)

    @abstractmethod
    def begin(self, noise: Noise, fold: Any = None) -> Draw:
        """Draw the latents of one forward pass. ``fold``: prior statistics, see :func:`credo.posteriors.kl.fold`."""

    @abstractmethod
    def mean(self) -> Params:
        """E[w] of each parameter."""

    def draw(self, noise: Noise, names: Iterable[str] | None = None) -> Params:
        """Weights, with the noise's leading axes in front."""
        return self.begin(noise).weights(self.names if names is None else names)

    def latents(self, noise: Noise) -> Params:
        """What the density is over; the weights themselves unless a family says otherwise."""
        return self.draw(noise)

    def assemble(self, latents: Params) -> Params:
        """Weights from latents."""
        return latents

    @abstractmethod
    def log_prob(self, latents: Params) -> Tensor:
        """Log density, summed over all elements, with any leading axes kept."""

    def moments(self, op: LinearMap, mean: Tensor, var: Tensor, w: str, b: str | None) -> tuple[Tensor, Tensor]:
        """Mean and variance of op(x, w) + b for x with independent elements of this mean and variance."""
        raise CredoError(f"The family {self.name!r} has no rule for moments through {op.function.__name__}.")

    def config(self) -> dict[str, Any]:
        """JSON-able arguments that rebuild the family; its numbers are in ``state_dict``."""
        return {"name": self.name, "shapes": {name: list(shape) for name, shape in self.shapes.items()}}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Family:
        """An empty family of this shape, to load a state into."""
        return cls(**{key: value for key, value in config.items() if key != "name"})


class Gaussian(Family):
    """A jointly Gaussian family: its marginals and its entropy give the KL to every elementwise prior with a closed form."""

    @abstractmethod
    def marginals(self) -> tuple[Params, Params]:
        """Mean and variance of every single weight, by name."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Differential entropy of the joint distribution in nats."""


def gaussian_entropy(log_det_tril: Tensor, numel: int) -> Tensor:
    """Entropy of a Gaussian from the log determinant of a triangular factor of its covariance."""
    return log_det_tril + 0.5 * numel * (1.0 + math.log(2.0 * math.pi))


class Layout:
    """Several named tensors as slices of one flat vector: one kernel instead of one per parameter."""

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self.shapes = dict(shapes)
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.numel = sum(self.sizes)

    def split(self, flat: Tensor) -> Params:
        """Views by name; leading axes of ``flat`` stay in front."""
        lead = flat.shape[:-1]
        pieces = flat.split_with_sizes(self.sizes, -1)
        return {name: piece.reshape((*lead, *shape)) for piece, (name, shape) in zip(pieces, self.shapes.items(), strict=True)}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The flat vector of tensors that may have leading axes."""
        return torch.cat(
            [
                tensors[n].flatten(tensors[n].dim() - len(shape)) if len(shape) else tensors[n].unsqueeze(-1)
                for n, shape in self.shapes.items()
            ],
            -1,
        )
