"""How much less than 1 the KL may weigh: with more weights than data can tell, the noise that the
prior leaves in all of them drowns what a few have learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from credo.engine.elbo_fit import ElboSettings

BETAS = (0.3, 0.1, 0.03)  # in the order in which they are tried


def tempered(settings: ElboSettings) -> dict[str, Sequence[Any]]:
    """What a trial goes through of a method that holds its weights back by the whole KL."""
    return {"prior": (), "beta": BETAS if settings.beta is None else ()}
