"""Concrete dropout: MC dropout whose rates are learned, one per layer or per unit.

KL = sum l^2 / (2 (1 - p)) W^2 - K H(p): the entropy of the masks pulls p to one half, the weights
and the data pull it down, more so with more data. ``gradient`` says how a rate is learned through
Bernoulli masks: "concrete" relaxes them (low variance, small bias), "reinforce" weights the score
by the loss (no bias, high variance), "arm" runs two opposite masks and needs no baseline (no bias,
lower variance, two passes). Rates are in ``history`` as ``rate/<place>``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from credo.core.settings import setting
from credo.engine.method import methods
from credo.engine.noise_places import DropoutMethod
from credo.estimators import Estimator, estimators
from credo.estimators.gates import Gated
from credo.posteriors import ConcreteDropout, Places


@methods.register("concrete_dropout")
@dataclass(frozen=True)
class ConcreteDropoutMethod(DropoutMethod):
    """Bernoulli masks at learned rates."""

    name: ClassVar[str] = "concrete_dropout"
    summary: ClassVar[str] = (
        "Concrete dropout: learned drop rates, by relaxation, REINFORCE or ARM."
    )
    reference: ClassVar[str] = (
        "Gal, Hron and Kendall 2017, Concrete dropout; Yin and Zhou 2019, ARM."
    )
    target: ClassVar[str] = "concrete_dropout"
    tolerance: ClassVar[float] = 0.1
    problem: ClassVar[dict[str, Any]] = {
        "num_data": 12,
        "std": 2.0,
    }  # with more certain data the best noise is next to none
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 800,
        "batch_size": None,
        "lr": 0.03,
        "train_samples": 8,
        "rate_lr": 1.0,
    }

    rate_lr: float = setting(
        3.0, "Learning rate of the rates, as a multiple of the weights'.", gt=0.0
    )
    per: str = setting("layer", "What has its own rate.", choices=("layer", "unit"))
    gradient: str = setting(
        "concrete", "How rates are learned.", choices=("concrete", "reinforce", "arm")
    )
    temperature: float = setting(
        0.1, "Of the relaxation; colder has less bias and more variance.", gt=0.0
    )

    def make_family(self, values: Any, places: Places, rates: dict[str, float]) -> ConcreteDropout:
        """Masks at learned rates."""
        return ConcreteDropout.start(values, places, rates, self.per, self.temperature)

    def make_estimator(self) -> Estimator:
        """Masks relaxed where they enter, or hard with a gradient of their own."""
        chosen = (
            estimators[self.gradient] if self.gradient != "concrete" else super().make_estimator()
        )
        return chosen.entering(self.estimator) if isinstance(chosen, Gated) else chosen
