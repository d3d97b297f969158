"""Random numbers that leave the global state as found.

Two sources, one interface. :class:`Streams` draws from explicit generators, one stream per (seed,
sample, key), so that any draw can be made again by itself: a loop over samples, chunks of them, or
all at once give the same numbers. :class:`Ambient` draws from torch's global generator inside
:func:`isolated`, which is what noise inside a training step needs (checkpointed layers replay it,
CUDA graphs capture it).
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from credo.core.counter import counter_normal, counter_uniform

LOCK = threading.RLock()  #: held by whoever borrows torch's global generators


def mix(*parts: object) -> int:
    """A 63-bit seed from any values, the same on every machine: unlike ``hash`` it does not depend
    on the process.
    """
    digest = hashlib.blake2b("\x1f".join(map(repr, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*parts: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator seeded by ``mix(*parts)``."""
    return torch.Generator(device=device).manual_seed(mix(*parts))


@contextmanager
def isolated(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed the global generators of the CPU and of ``device`` for the block, then put them back."""
    device = torch.device(device)
    with LOCK, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


State = tuple[Tensor, Tensor | None]  #: of the CPU's global generator and of a GPU's


def take_state(device: torch.device) -> State:
    """Where the global generators of the CPU and of ``device`` stand."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(
        device
    ) if device.type == "cuda" else None


def put_state(device: torch.device, state: State) -> None:
    """Put them back there: what is drawn next is drawn again."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)


class Noise(ABC):
    """Noise of a shape, with ``lead`` axes in front: one entry per posterior sample drawn
    together.
    """

    lead: tuple[int, ...]

    @abstractmethod
    def normal(self, key: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Standard normal ``(*lead, *shape)`` with the dtype and device of ``like``."""

    @abstractmethod
    def uniform(self, key: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Uniform on [0, 1) ``(*lead, *shape)``."""

    def sign(self, key: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Fair signs, +1 or -1."""
        return (self.uniform(key, shape, like) < 0.5).to(like.dtype) * 2 - 1


class Ambient(Noise):
    """torch's global generator; use inside :func:`isolated`."""

    def __init__(self, lead: tuple[int, ...] = ()) -> None:
        self.lead = lead

    def normal(self, key: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Standard normal from the global generator; ``key`` is not used."""
        return torch.randn((*self.lead, *shape), dtype=like.dtype, device=like.device)

    def uniform(self, key: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Uniform from the global generator; ``key`` is not used."""
        return torch.rand((*self.lead, *shape), dtype=like.dtype, device=like.device)


class Streams(Noise):
    """One stream per (seed, sample, key); samples are numbered, so ``Streams(0, [7])`` repeats draw
    7 of seed 0.

    A ``workspace`` handed from one object to the next lets a loop of draws reuse its memory: then a
    draw holds only until the next one is made.
    """

    def __init__(
        self,
        seed: int,
        samples: Sequence[int] | None = None,
        workspace: dict[object, Tensor] | None = None,
    ) -> None:
        self.seed, self.workspace, self._calls = seed, workspace, 0
        self.samples = (0,) if samples is None else tuple(samples)
        self.lead = () if samples is None else (len(self.samples),)

    def normal(self, key: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Standard normal from this key's streams."""
        out = self._counted(counter_normal, key, shape, like)
        return self._fill("normal_", key, shape, like) if out is None else out

    def uniform(self, key: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Uniform from this key's streams."""
        out = self._counted(counter_uniform, key, shape, like)
        return self._fill("uniform_", key, shape, like) if out is None else out

    def _counted(
        self, count: Callable[..., Tensor | None], key: str, shape: Sequence[int], like: Tensor
    ) -> Tensor | None:
        """All rows in one launch, where the device can."""
        if not like.is_cuda or like.dtype != torch.float32:
            return None
        out = count(mix(self.seed, key), self.samples, shape, like.device)
        return None if out is None else out.reshape(*self.lead, *shape)

    def _fill(self, kind: str, key: str, shape: Sequence[int], like: Tensor) -> Tensor:
        out = self._empty((*self.lead, *shape), like)
        for row, sample in zip(out.reshape(len(self.samples), -1), self.samples, strict=True):
            getattr(row, kind)(generator=generator(self.seed, sample, key, device=out.device))
        return out

    def _empty(self, size: tuple[int, ...], like: Tensor) -> Tensor:
        if self.workspace is None:
            return torch.empty(size, dtype=like.dtype, device=like.device)
        # equal calls in equal order get equal memory, and no two calls of one object share any
        self._calls += 1
        key = (self._calls, size, like.dtype, like.device)
        if key not in self.workspace:
            self.workspace[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return self.workspace[key]


class Paired(Ambient):
    """Noise for two passes: the second sees 1 - u wherever the first saw u.

    A key may be asked for again and stays as it was.
    """

    def __init__(self, first: Paired | None = None) -> None:
        super().__init__()
        self._first = first
        self._seen: dict[str, Tensor] = {}

    def uniform(self, key: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Uniform on [0, 1) for the first, its mirror image on (0, 1] for the second."""
        if self._first is not None:
            return 1 - self._first.uniform(key, shape, like)
        if key not in self._seen:
            self._seen[key] = super().uniform(key, shape, like)
        return self._seen[key]
