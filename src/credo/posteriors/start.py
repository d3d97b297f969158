"""What families of one fit begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Start:
    """What a family begins with besides its means; each takes of it what it has."""

    init_std: float = 0.01
    std_transform: str = "log"  # by name
    rank: int = 4
    levels: Sequence[float] = (-1.0, 1.0)
    seed: int = 0
