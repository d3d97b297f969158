"""What a fit gathers on its way: copies of the weights at the ends of cycles, or their mean and
covariance along the path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from credo.core.errors import CredoError
from credo.posteriors import Params


class TrainingPath(nn.Module, ABC):
    """Tensors by kind and name, registered so that a checkpoint holds them.

    Members are shown as parameters of their networks and learned parameters of their likelihoods,
    each by name ``(K, *shape)``. ``seen`` counts what was gathered.
    """

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self._names: dict[str, tuple[str, ...]] = {}

    @abstractmethod
    def begin(self, values: Params, likelihood_params: Params, random: Collection[str]) -> None:
        """Make room for members like these; ``random``: names of random parameters."""

    @abstractmethod
    def observe(self, values: Params, likelihood_params: Params, epoch: int, epochs: int) -> None:
        """Called after every epoch."""

    def _allot(self, kind: str, like: Params, *lead: int) -> None:
        """Zeros ``(*lead, *shape)`` for each of these tensors."""
        self._names[kind] = tuple(like)
        for index, tensor in enumerate(like.values()):
            zeros = tensor.detach().new_zeros((*lead, *tensor.shape))
            self.register_buffer(f"{kind}{index}", zeros)

    def _gathered(self, kind: str) -> Params:
        """The tensors of one kind by name."""
        return {name: getattr(self, f"{kind}{i}") for i, name in enumerate(self._names[kind])}


@final
class Snapshots(TrainingPath):
    """The members at the end of each of ``cycles`` equal parts of the fit: ``(cycles, K,
    *shape)``.
    """

    def __init__(self, cycles: int) -> None:
        super().__init__()
        self.cycles = cycles

    def begin(self, values: Params, likelihood_params: Params, random: Collection[str]) -> None:
        self._allot("value", values, self.cycles)
        self._allot("likelihood", likelihood_params, self.cycles)

    @torch.no_grad()
    def observe(self, values: Params, likelihood_params: Params, epoch: int, epochs: int) -> None:
        """Copy at the end of a cycle."""
        if (epoch + 1) * self.cycles // epochs == epoch * self.cycles // epochs:
            return
        for kind, tensors in (("value", values), ("likelihood", likelihood_params)):
            for name, copies in self._gathered(kind).items():
                copies[int(self.seen)] = tensors[name]
        self.seen += 1

    def taken(self) -> tuple[Params, Params]:
        """Parameters of the network and of the likelihood in the M snapshots that there are, ``(M
        K, *shape)``.
        """
        count = int(self.seen)
        if not count:
            raise CredoError(
                "A callback stopped snapshot before the end of the first cycle; nothing was kept."
            )
        values, likelihood_params = (
            {n: t[:count].flatten(0, 1) for n, t in self._gathered(kind).items()}
            for kind in ("value", "likelihood")
        )
        return values, likelihood_params


class PathMoments(NamedTuple):
    """Of one member: means of all that was learned, variances and the last R deviations ``(R,
    *shape)`` of what is random.
    """

    values: Params
    likelihood_params: Params
    variances: Params
    deviations: Params


@final
class RunningMoments(TrainingPath):
    """Mean, variance and the last ``rank`` deviations of the members after every epoch from the
    share ``start`` of the fit on.

    With weight a = max(1 / n, ``newest``) for the n-th: mean += a (w - mean) and var = (1 - a) (var
    + a (w - mean)^2), so ``newest`` = 0 is the plain average and a larger one the exponential,
    without a bias towards its start.
    """

    def __init__(self, start: float, rank: int, newest: float) -> None:
        super().__init__()
        self.start, self.rank, self.newest = start, rank, newest

    def begin(self, values: Params, likelihood_params: Params, random: Collection[str]) -> None:
        drawn = {n: v for n, v in values.items() if n in random}
        self._allot("value", values)
        self._allot("likelihood", likelihood_params)
        self._allot("variance", drawn)
        self._allot("deviation", drawn, self.rank)

    @torch.no_grad()
    def observe(self, values: Params, likelihood_params: Params, epoch: int, epochs: int) -> None:
        """Move the averages."""
        if epoch / epochs < self.start:  # a quotient, as in the learning rate's schedule
            return
        self.seen += 1
        count = int(self.seen)
        share = max(1.0 / count, self.newest)
        for name, mean in self._gathered("likelihood").items():
            mean += share * (likelihood_params[name] - mean)
        variances, deviations = self._gathered("variance"), self._gathered("deviation")
        for name, mean in self._gathered("value").items():
            gap = values[name] - mean
            mean += share * gap
            if name in variances:
                variances[name].add_(gap.square(), alpha=share).mul_(1.0 - share)
                if self.rank:
                    deviations[name][(count - 1) % self.rank] = values[name] - mean

    def of_member(self, k: int) -> PathMoments:
        """What was gathered of member k."""
        columns = min(int(self.seen), self.rank)
        values, likelihood_params, variances = (
            {n: t[k] for n, t in self._gathered(kind).items()}
            for kind in ("value", "likelihood", "variance")
        )
        last = {n: t[:columns, k] for n, t in self._gathered("deviation").items()}
        return PathMoments(values, likelihood_params, variances, last)
