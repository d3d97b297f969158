"""What a fit gathers on its way: copies of the weights at the ends of cycles, or their mean and
spread along the path.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor

from credo.methods.ensembles.parts.members import Flock, Trace
from credo.posteriors import Params


def _copy(tensors: Params, *lead: int) -> list[Tensor]:
    return [tensor.detach().new_zeros((*lead, *tensor.shape)) for tensor in tensors.values()]


class Gathered(Trace):
    """Tensors by kind and number, registered so that a checkpoint holds them."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def keep(self, kind: str, tensors: list[Tensor]) -> None:
        """Register a list of tensors."""
        for index, tensor in enumerate(tensors):
            self.register_buffer(f"{kind}{index}", tensor)

    def kept(self, kind: str, names: tuple[str, ...]) -> Params:
        """They, by name."""
        return {name: getattr(self, f"{kind}{index}") for index, name in enumerate(names)}


@final
class Snapshots(Gathered):
    """The members at the end of each of ``cycles`` equal parts of the fit: ``(cycles, K,
    *shape)``.
    """

    def __init__(self, cycles: int) -> None:
        super().__init__()
        self.cycles = cycles

    def begin(self, flock: Flock) -> None:
        """Make room."""
        self.keep("value", _copy(flock.values(), self.cycles))
        self.keep("voice", _copy(flock.voices(), self.cycles))

    @torch.no_grad()
    def see(self, flock: Flock, epoch: int, epochs: int) -> None:
        """Copy at the end of a cycle."""
        if (epoch + 1) * self.cycles // epochs == epoch * self.cycles // epochs:
            return
        for kind, tensors in (("value", flock.values()), ("voice", flock.voices())):
            for name, kept in self.kept(kind, tuple(tensors)).items():
                kept[int(self.seen)] = tensors[name]
        self.seen += 1

    def found(self, flock: Flock) -> tuple[Params, Params]:
        """Parameters and learned noise of the snapshots taken, ``(M K, *shape)``."""
        count = int(self.seen)
        tables = (self.kept("value", flock.names), self.kept("voice", flock.noise_names))
        values, voices = (
            {n: t[:count].flatten(0, 1) for n, t in table.items()} for table in tables
        )
        return values, voices


class Spread(NamedTuple):
    """Of one member: means of all that was learned, variances and the last deviations ``(R,
    *shape)`` of what is random.
    """

    values: Params
    voices: Params
    variances: Params
    deviations: Params


@final
class PathMoments(Gathered):
    """Mean, variance and the last ``rank`` deviations of the members after every epoch from the
    share ``start`` of the fit on.

    With weight a = max(1 / n, ``newest``) for the n-th: mean += a (w - mean) and var = (1 - a) (var
    + a (w - mean)^2), so ``newest`` = 0 is the plain average and a larger one the exponential,
    without a bias towards its start.
    """

    def __init__(self, start: float, rank: int, newest: float) -> None:
        super().__init__()
        self.start, self.rank, self.newest = start, rank, newest

    def begin(self, flock: Flock) -> None:
        """Make room."""
        random = {n: v for n, v in flock.values().items() if n in flock.model.random}
        self.keep("value", _copy(flock.values()))
        self.keep("voice", _copy(flock.voices()))
        self.keep("variance", _copy(random))
        self.keep("deviation", _copy(random, self.rank))

    @torch.no_grad()
    def see(self, flock: Flock, epoch: int, epochs: int) -> None:
        """Move the averages."""
        if epoch / epochs < self.start:  # a quotient, as the learning rate's course goes by it
            return
        self.seen += 1
        count = int(self.seen)
        share = max(1.0 / count, self.newest)
        random = tuple(n for n in flock.names if n in flock.model.random)
        variances, deviations = self.kept("variance", random), self.kept("deviation", random)
        for kind, tensors in (("value", flock.values()), ("voice", flock.voices())):
            for name, mean in self.kept(kind, tuple(tensors)).items():
                gap = tensors[name] - mean
                mean += share * gap
                if name in variances and kind == "value":
                    variances[name].add_(gap.square(), alpha=share).mul_(1.0 - share)
                    if self.rank:
                        deviations[name][(count - 1) % self.rank] = tensors[name] - mean

    def spread(self, flock: Flock, member: int) -> Spread:
        """What was gathered of one member."""
        random = tuple(n for n in flock.names if n in flock.model.random)
        columns = min(int(self.seen), self.rank)
        tables = (
            self.kept("value", flock.names),
            self.kept("voice", flock.noise_names),
            self.kept("variance", random),
        )
        values, voices, variances = ({n: t[member] for n, t in table.items()} for table in tables)
        last = {n: t[:columns, member] for n, t in self.kept("deviation", random).items()}
        return Spread(values, voices, variances, last)
