"""Fill a shell with stand-ins for its random parameters, and read mean and (co)variance off its
output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from credo.core.errors import CredoError, NetworkError, SettingError
from credo.core.shell import Shell, pick
from credo.estimators.moments.state import Moments, make_weight
from credo.estimators.placement import LIKELIHOOD
from credo.posteriors import Family, Posterior

MODES = ("diagonal", "full")


def place_moments(shell: Shell, posterior: Posterior, covariance: str = "diagonal") -> None:
    """Put the posterior into the shell without drawing: ``shell(x)`` then gives :class:`Moments`.

    Gradients flow from both moments to the parameters of the families. Refused for posteriors whose
    families have no rule for moments, such as samples and mixtures.
    """
    if covariance not in MODES:
        raise SettingError(f"covariance={covariance!r}; expected 'diagonal' or 'full'.")
    full = covariance == "full"
    for family in posterior.factors:
        names = [name for name in family.names if not name.startswith(LIKELIHOOD)]
        if family.is_point:
            values = family.mean()
            shell.place({name: values[name] for name in names})
            continue
        _check_rule(family, full)
        first = next(family.parameters())
        shell.place({name: make_weight(name, family, first, full) for name in names})


def _check_rule(family: Family, full: bool) -> None:
    if type(family).moments is Family.moments:
        raise CredoError(
            "Moments need a Gaussian posterior (mean_field, low_rank, full, kron or delta); this "
            f"one is {family.name!r}: "
            "draw samples instead."
        )
    if full and type(family).joint_moments is Family.joint_moments:
        raise CredoError(
            f"The family {family.name!r} has no rule for a full covariance; use "
            "covariance='diagonal'."
        )


def propagate(
    shell: Shell,
    posterior: Posterior,
    x: Any,
    covariance: str = "diagonal",
    output: str | int | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean ``(B, F)`` and variance ``(B, F)``, or covariance ``(B, F, F)`` with
    ``covariance="full"``, of the network's outputs.

    Nothing is sampled. ``output`` names the entry that counts where the network returns several.
    Layers are taken as independent, so what families share between layers is left out. The shell
    keeps the posterior in place.
    """
    place_moments(shell, posterior, covariance)
    out = pick(shell(x), output)
    if isinstance(out, Moments):
        return out.expected, out.var_or_cov
    if not all(family.is_point for family in posterior.factors):
        raise NetworkError(
            "No random parameter reached the network's output by an operation that Python sees, "
            "so it has no moments; "
            "draw samples instead."
        )
    units = out[0].numel()
    return out, torch.zeros_like(out) if covariance == "diagonal" else out.new_zeros(
        len(out), units, units
    )
