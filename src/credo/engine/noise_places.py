"""What the dropout methods share: where the noise is, at which rates, and the prior as a length
scale.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, ClassVar

from torch.distributions import Normal

from credo.core.errors import SettingError
from credo.core.masks import dropouts
from credo.core.settings import setting
from credo.core.sites import choose
from credo.engine.elbo import Elbo
from credo.engine.elbo_fit import ElboMethod
from credo.engine.fit_job import FitJob
from credo.engine.initial_posterior import with_points
from credo.engine.model import Model
from credo.engine.own_noise import OwnMasks, is_random, modules_without_norms, own_masks
from credo.engine.training_loop import MakeOptimizer, adam
from credo.estimators import Estimator, estimators
from credo.posteriors import Multiplicative, Places, Posterior
from credo.priors import Fixed

RATE = 0.1  # where neither the user nor the network says


@dataclass(frozen=True)
class DropoutMethod(ElboMethod):
    """A multiplicative family at chosen places; a method says which family."""

    p: Any = setting(
        None,
        "Drop rate, or rates by name pattern; by default that of the network's own dropout "
        f"modules, else {RATE}.",
        kind=(float, int, Mapping),
        gt=0.0,
        le=0.999,
    )
    layers: Any = setting(
        "auto",
        "Whose inputs: 'auto' (the network's own dropout if it has any, else 'hidden'), 'modules' "
        "(its dropout modules), 'hidden' (all "
        "layers but the first), 'all', or name patterns.",
        kind=(str, tuple, list),
    )
    shared: bool = setting(
        True, "Share the mask of a dropout module over the positions of a sequence."
    )
    length_scale: Any = setting(
        None,
        "l of a prior N(0, l^-2) on all random parameters, in place of the model's.",
        kind=(float, int),
        gt=0.0,
    )
    estimator: str = setting(
        "local", "How noise enters training.", choices=("local", "weights", "per_example")
    )

    as_it_is: ClassVar[bool] = (
        False  # whether a network's noise of any kind may stand for the method's own
    )
    rate_lr: ClassVar[float] = (
        3.0  # learning rate of what is learned of the noise, as a multiple of the weights'
    )

    def make_optimizer(self, model: Model) -> MakeOptimizer[Elbo] | None:
        """Adam, faster for rates: one number steers a whole layer, and at the weights' pace it
        would hardly move.
        """
        return partial(adam, rate_lr=self.rate_lr)

    def adapt(self, model: Model) -> Model:
        """Under the prior of the length scale, if one is given."""
        if self.length_scale is None:
            return model
        return replace(model, prior=Fixed(Normal(0.0, 1.0 / self.length_scale)))

    def make_estimator(self) -> Estimator:
        """The chosen estimator."""
        return estimators[self.estimator]

    def make_posterior(self, model: Model, fit_job: FitJob) -> Posterior:
        """The family over all random parameters, noisy at its places; point estimates over the
        rest.
        """
        places, rates = self.places(model, fit_job.source.example(2))
        values = self.start(model, fit_job)
        family = self.make_family({name: values[name] for name in model.random}, places, rates)
        return with_points(model, values, [family])

    @abstractmethod
    def make_family(self, values: Any, places: Places, rates: dict[str, float]) -> Multiplicative:
        """The family at its starting values."""

    def places(self, model: Model, example: Any) -> tuple[Places, dict[str, float]]:
        """Where the noise is, and its rate at every place."""
        x = model.move(example)
        own = self.layers in ("auto", "modules")
        masks = own_masks(model, x, self.shared) if own else OwnMasks({}, {}, {})
        other = is_random(model, x, masks)
        if self.layers == "modules" and not masks.shapes:
            raise SettingError(
                f"{self.name}: layers='modules', but the network has no dropout module with p > "
                "0; use 'hidden'."
            )
        if not own and other:
            raise SettingError(
                f"{self.name}: layers={self.layers!r} on a network that is random by itself (its "
                "dropout modules are "
                f"{', '.join(dropouts(model.net)) or 'none'}); use layers='auto', or a network "
                "without noise of its own."
            )
        if other and not masks.shapes and (self.p is not None or not self.as_it_is):
            raise SettingError(
                f"{self.name}: the network is random by itself, but not through dropout modules, "
                "whose rates could be set or learned "
                f"(p={self.p!r}); use 'mc_dropout' without p or 'stochastic', which take it as it "
                "is."
            )
        noisy_modules = modules_without_norms(model.net) if other else ()
        feeds = {w: m for w, m in masks.feeds.items() if w in model.random}
        fed = {w: (model.random[w].in_axis or 0, model.random[w].groups) for w in feeds}
        axes = {} if masks.shapes or other else self._weights(model)
        places = Places(axes, masks.shapes, feeds, noisy_modules, fed)
        return places, self._rates({**masks.rates, **dict.fromkeys(axes, RATE)})

    def _weights(self, model: Model) -> dict[str, tuple[int, int]]:
        """Weights with known input units, of the chosen layers, with the axis of the units and
        groups.
        """
        both = model.random | model.point
        known = {
            n: both[n]
            for n, _ in model.net.named_parameters()
            if n in both and both[n].in_axis is not None
        }
        if not known:
            raise SettingError(
                f"{self.name}: none of the network's parameters has input units that could be "
                "dropped."
            )
        if self.layers in ("auto", "hidden"):
            first = next(iter(known.values())).module
            chosen = {n for n, s in known.items() if s.module != first} or set(known)
        else:
            chosen = choose(model.net, self.layers, both, "layers") & set(known)
        chosen &= set(model.random)
        if not chosen:
            raise SettingError(
                f"{self.name}: layers={self.layers!r} selects no random weight with input units."
            )
        return {n: (s.in_axis or 0, s.groups) for n, s in known.items() if n in chosen}

    def _rates(self, default: dict[str, float]) -> dict[str, float]:
        if self.p is None:
            return default
        if not isinstance(self.p, Mapping):
            return dict.fromkeys(default, float(self.p))
        rates = dict(default)
        for pattern, rate in self.p.items():
            hits = [
                name
                for name in rates
                if fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[0], pattern)
            ]
            if not isinstance(rate, (int, float)) or not 0 < rate < 1:
                raise SettingError(
                    f"{self.name}: p[{pattern!r}]={rate!r} is not valid; expected a rate between "
                    "0 and 1."
                )
            if not hits:
                raise SettingError(
                    f"{self.name}: p[{pattern!r}] matches no place of noise; they are "
                    f"{', '.join(rates)}."
                )
            rates |= dict.fromkeys(hits, float(rate))
        return rates
