"""A posterior over functions instead of weights: what a Gaussian process gives."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from credo.core.errors import CredoError
from credo.core.roots import semidefinite_root
from credo.core.seeds import Noise, Streams
from credo.core.shell import Shell
from credo.posteriors.draw import Draw, Params
from credo.posteriors.family import Family


class RowNoise:
    """Standard normal noise of every draw for every input of a call, so that how the inputs are
    batched changes nothing.
    """

    def __init__(self, seed: int, numbers: Sequence[int], total: int) -> None:
        self.numbers, self.total, self.seed = tuple(numbers), total, seed
        self.start, self.stop = 0, total
        self._drawn: dict[str, Tensor] = {}

    def at(self, start: int, stop: int) -> RowNoise:
        """The same noise, seen by the inputs ``start`` to ``stop``."""
        other = RowNoise(self.seed, self.numbers, self.total)
        other.start, other.stop, other._drawn = start, stop, self._drawn
        return other

    def normal(self, key: str, width: int, like: Tensor) -> Tensor:
        """``(S, n, width)`` for the inputs in view."""
        if key not in self._drawn:
            self._drawn[key] = Streams(self.seed, self.numbers).normal(
                key, (self.total, width), like
            )
        return self._drawn[key][:, self.start : self.stop]


class Process(Family):
    """A distribution over functions of what it reads from a network and its inputs.

    It holds no weights, so ``draw`` and ``log_prob`` are refused; predictions ask for function
    values. Point estimates of a network that it reads features from are a :class:`Delta` beside it.
    """

    kl_is_bound = False
    of_network: ClassVar[bool] = (
        # whether it is the network's own functions in some limit, so that the network's prior is
        # its prior
        False
    )

    def read(self, shell: Shell, x: Any) -> Tensor:
        """What the functions are functions of, ``(N, D)``: the inputs themselves, flattened, unless
        a process says otherwise.
        """
        return flattened(x)

    @abstractmethod
    def outputs(self, inputs: Tensor, noise: RowNoise, joint: bool) -> Tensor:
        """Function values ``(S, N, F)`` at ``inputs`` ``(N, D)``.

        ``joint``: draws of functions, whose values at all inputs belong together (cubic in N).
        Otherwise every input by itself has the right distribution, which is all that a prediction
        needs.
        """

    @abstractmethod
    def average(self, inputs: Tensor) -> Tensor:
        """The mean function at ``inputs``, ``(N, F)``."""

    def own_kl(self) -> Tensor:
        """KL of what it is made of from its prior, for the bound; refused by a process in closed
        form, which has its evidence instead.
        """
        raise CredoError(
            f"The posterior {self.name!r} is in closed form and has no lower bound; its evidence "
            "is in the history."
        )

    def begin(self, noise: Noise, fold: Any = None) -> Draw:
        """Refused: there are no weights."""
        raise CredoError(
            f"The posterior {self.name!r} is over functions and has no weights to draw; ask for "
            "predictions or functions."
        )

    def draw(self, noise: Noise, names: Iterable[str] | None = None) -> Params:
        """Refused: there are no weights."""
        self.begin(noise)
        return {}

    def mean(self) -> Params:
        """No weights, no means of weights."""
        return {}

    def log_prob(self, latents: Params) -> Tensor:
        """Refused: there are no weights."""
        raise CredoError(
            f"The posterior {self.name!r} is over functions and has no density over weights."
        )


class Marginals(Protocol):
    """A process whose function values are jointly Gaussian."""

    def marginals_at(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the function values, ``(N, F)`` each."""
        ...

    def joint_at(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``(N, F)`` and covariance between inputs ``(F, N, N)`` or ``(N, N)`` if all outputs
        share it.
        """
        ...


def gaussian_outputs(process: Marginals, inputs: Tensor, noise: RowNoise, joint: bool) -> Tensor:
    """Draws ``(S, N, F)`` of a process with independent Gaussian outputs."""
    if not joint:
        mean, var = process.marginals_at(inputs)
        return mean + var.clamp_min(0.0).sqrt() * noise.normal("function", mean.shape[-1], mean)
    mean, cover = process.joint_at(inputs)
    eps = noise.normal("function", mean.shape[-1], mean)
    if cover.dim() == 2:
        return mean + torch.einsum("nm,smf->snf", semidefinite_root(cover), eps)
    return mean + torch.einsum("fnm,smf->snf", semidefinite_root(cover), eps)


def flattened(x: Any) -> Tensor:
    """One tensor of inputs as rows of numbers."""
    if not isinstance(x, Tensor):
        raise CredoError(
            f"A process over inputs takes one tensor (N, ...), got a {type(x).__name__}."
        )
    return x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
