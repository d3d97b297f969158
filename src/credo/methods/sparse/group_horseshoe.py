"""Group horseshoe: the weights of a unit share a half-Cauchy scale, and a layer shares another.

w = z v, v ~ N(mu, sigma^2) under N(0, 1), z = z_local z_global with z_local ~ C+(0, 1) per group
and z_global ~ C+(0, tau0) per layer. Squares of half-Cauchy numbers are products of a Gamma and an
inverse-Gamma number, each with a log-normal q, so that all KLs are closed. A group is pruned when
noise drowns it, log(sum V[w] / sum E[w]^2) >= threshold. ``centred=True`` gives q to w itself and
leaves z in the prior: the same model, another q, with less noise in the weights and slower scales.
Biases and normalisation are points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.core.sites import Site
from credo.engine.method import methods
from credo.methods.sparse.parts.group_fit import GroupMethod, places_of
from credo.posteriors import Place


@methods.register("group_horseshoe")
@dataclass(frozen=True)
class GroupHorseshoe(GroupMethod):
    """A log-normal scale per group and per layer under half-Cauchy priors."""

    name: ClassVar[str] = "group_horseshoe"
    summary: ClassVar[str] = (
        "Group sparsity: weights of a unit share a half-Cauchy scale (horseshoe); whole units are "
        "pruned."
    )
    reference: ClassVar[str] = (
        "Louizos, Ullrich and Welling 2017, Bayesian compression for deep learning."
    )
    target: ClassVar[str] = "group_horseshoe"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 800,
        "batch_size": None,
        "lr": 0.02,
        "train_samples": 4,
        "kl_schedule": "constant",
        "lr_schedule": "cosine",
    }

    groups: str = setting(
        "auto",
        "What shares a scale: input units, output units, or 'auto': filters, gates and units of "
        "recurrent layers, words, else inputs.",
        choices=("auto", "input", "output"),
    )
    threshold: float = setting(
        3.0,
        "log of noise to signal, sum V[w] / sum E[w]^2, from which a group is pruned; 3 is 95 % "
        "noise.",
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
        """One bank of scales per weight."""
        return places_of(sites, self.groups)

    def scales(self) -> dict[str, Any]:
        """Log-normal."""
        return {"name": "horseshoe", "tau0": self.tau0}

    def is_centred(self) -> bool:
        """As the user says."""
        return self.centred
