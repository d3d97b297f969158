"""Settings of the methods whose KL sets in late: a network that has learned nothing yet would be
pruned whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from credo.core.settings import setting

#: What they need on the small problems of the conformance checks, where nothing is to be pruned.
CONFORMANCE: dict[str, Any] = {
    "epochs": 800,
    "batch_size": None,
    "lr": 0.02,
    "train_samples": 4,
    "kl_schedule": "constant",
    "lr_schedule": "cosine",
}


@dataclass(frozen=True)
class LateKLSettings:
    """In place of those of ``ElboSettings`` and ``DescentSettings``."""

    lr_schedule: str = setting(
        "linear", "Learning-rate schedule.", choices=("constant", "cosine", "linear")
    )
    kl_schedule: str = setting(
        "late", "KL weight schedule.", choices=("constant", "linear", "cosine", "late")
    )
    kl_warmup: int = setting(
        20,
        "Epochs until the KL counts fully; 'late' leaves it out for the first quarter of them.",
        ge=0,
    )
