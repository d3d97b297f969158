"""Horseshoe over units: how wide every layer has to be is inferred with its weights.

All incoming weights of an output unit, its bias included, share a scale: w_k = z_k v_k, z_k =
z_local z_global with z_local ~ C+(0, 1) per unit and z_global ~ C+(0, tau0) per layer, v ~ N(mu,
sigma^2) under N(0, 1), log-normal q for the parts of z. A unit that noise drowns, log(sum V[w] /
sum E[w]^2) >= threshold, is switched off; the widths that are left are in the history as
``kept/<weight>``. The output layer has scales too, one per output. Normalisation is a point, and
weights of unknown layers are. The non-centred form, the default, is what makes q's weights and
scales independent enough to learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.core.sites import Site
from credo.engine.method import methods
from credo.methods.sparse.parts.group_fit import GroupMethod, unit_places
from credo.posteriors import Place


@methods.register("horseshoe")
@dataclass(frozen=True)
class Horseshoe(GroupMethod):
    """A half-Cauchy scale per unit."""

    name: ClassVar[str] = "horseshoe"
    summary: ClassVar[str] = (
        "Selection of layer widths: all incoming weights of a unit share a half-Cauchy scale "
        "(horseshoe)."
    )
    reference: ClassVar[str] = (
        "Ghosh, Yao and Doshi-Velez 2018, Structured variational learning of Bayesian neural "
        "networks with horseshoe priors."
    )
    target: ClassVar[str] = "horseshoe"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 800,
        "batch_size": None,
        "lr": 0.02,
        "train_samples": 4,
        "kl_schedule": "constant",
        "lr_schedule": "cosine",
    }

    threshold: float = setting(
        3.0,
        "log of noise to signal, sum V[w] / sum E[w]^2, from which a unit is switched off; 3 is "
        "95 % noise.",
    )
    scale_lr: float = setting(
        5.0, "Learning rate of the scales, as a multiple of the weights'.", gt=0.0
    )
    tau0: float = setting(
        1.0,
        "Scale of the half-Cauchy prior of every layer's global scale; smaller prunes more.",
        gt=0.0,
    )
    centred: bool = setting(
        False, "Whether scales are in the prior alone, instead of multiplying the weights."
    )

    def places(self, sites: Mapping[str, Site]) -> dict[str, Place]:
        """One bank of scales per layer, over its output units."""
        return unit_places(sites)

    def scales(self) -> dict[str, Any]:
        """Log-normal."""
        return {"name": "horseshoe", "tau0": self.tau0}

    def is_centred(self) -> bool:
        """As the user says."""
        return self.centred
