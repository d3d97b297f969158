"""Where a network has multiplicative noise, and at which rates: settings of every method that puts
noise on units, and what they mean for a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from torch.distributions import Normal

from credo.core.errors import SettingError
from credo.core.masks import dropouts
from credo.core.settings import setting
from credo.core.sites import choose
from credo.engine.model import Model
from credo.engine.own_noise import OwnMasks, is_random, modules_without_norms, own_masks
from credo.estimators import pathwise_estimators
from credo.posteriors import Places
from credo.priors import Fixed

RATE = 0.1  # where neither the user nor the network says
SMALLER = (0.02, 0.005)  #: rates to try on held-out rows


@dataclass(frozen=True)
class NoiseSettings:
    """Settings of methods that multiply units by noise: where, how much, and how it enters."""

    p: Any = setting(
        None,
        "Drop rate, or rates by name pattern; by default that of the network's own dropout "
        f"modules, else {RATE}, or what predicts held-out rows best where a trial is made.",
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
        "local", "How noise enters training.", choices=pathwise_estimators(masks=True)
    )


def open_rates(settings: NoiseSettings, model: Model) -> dict[str, Sequence[Any]]:
    """What a trial may try of these settings: smaller rates where neither the user nor the network
    says one, and no other prior where a length scale says it.
    """
    found: dict[str, Sequence[Any]] = {} if settings.length_scale is None else {"prior": ()}
    rates_open = settings.p is None and not dropouts(model.net)
    return found | ({"p": SMALLER} if rates_open else {})


def with_length_scale(model: Model, length_scale: float | None) -> Model:
    """The model under the prior N(0, l^-2) on all random parameters, where an l is given."""
    if length_scale is None:
        return model
    return replace(model, prior=Fixed(Normal(0.0, 1.0 / length_scale)))


def noise_places(
    model: Model, example: Any, settings: NoiseSettings, method: str, as_it_is: bool = False
) -> tuple[Places, dict[str, float]]:
    """Where the noise is, and its rate at every place.

    ``as_it_is``: whether a network's noise of any kind may stand for the method's own.
    """
    x = model.move(example)
    own = settings.layers in ("auto", "modules")
    masks = own_masks(model, x, settings.shared) if own else OwnMasks({}, {}, {})
    other = is_random(model, x, masks)
    if settings.layers == "modules" and not masks.shapes:
        raise SettingError(
            f"{method}: layers='modules', but the network has no dropout module with p > "
            "0; use 'hidden'."
        )
    if not own and other:
        raise SettingError(
            f"{method}: layers={settings.layers!r} on a network that is random by itself (its "
            "dropout modules are "
            f"{', '.join(dropouts(model.net)) or 'none'}); use layers='auto', or a network "
            "without noise of its own."
        )
    if other and not masks.shapes and (settings.p is not None or not as_it_is):
        raise SettingError(
            f"{method}: the network is random by itself, but not through dropout modules, "
            "whose rates could be set or learned "
            f"(p={settings.p!r}); use 'mc_dropout' without p or 'stochastic', which take it as it "
            "is."
        )
    noisy_modules = modules_without_norms(model.net) if other else ()
    feeds = {w: m for w, m in masks.feeds.items() if w in model.random}
    fed = {w: (model.random[w].in_axis or 0, model.random[w].groups) for w in feeds}
    axes = {} if masks.shapes or other else _weights(model, settings, method)
    places = Places(axes, masks.shapes, feeds, noisy_modules, fed)
    return places, _rates({**masks.rates, **dict.fromkeys(axes, RATE)}, settings, method)


def _weights(model: Model, settings: NoiseSettings, method: str) -> dict[str, tuple[int, int]]:
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
            f"{method}: none of the network's parameters has input units that could be dropped."
        )
    if settings.layers in ("auto", "hidden"):
        first = next(iter(known.values())).module
        chosen = {n for n, s in known.items() if s.module != first} or set(known)
    else:
        chosen = choose(model.net, settings.layers, both, "layers") & set(known)
    chosen &= set(model.random)
    if not chosen:
        raise SettingError(
            f"{method}: layers={settings.layers!r} selects no random weight with input units."
        )
    return {n: (s.in_axis or 0, s.groups) for n, s in known.items() if n in chosen}


def _rates(default: dict[str, float], settings: NoiseSettings, method: str) -> dict[str, float]:
    if settings.p is None:
        return default
    if not isinstance(settings.p, Mapping):
        return dict.fromkeys(default, float(settings.p))
    rates = dict(default)
    for pattern, rate in settings.p.items():
        hits = [
            name
            for name in rates
            if fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[0], pattern)
        ]
        if not isinstance(rate, (int, float)) or not 0 < rate < 1:
            raise SettingError(
                f"{method}: p[{pattern!r}]={rate!r} is not valid; expected a rate between 0 and 1."
            )
        if not hits:
            raise SettingError(
                f"{method}: p[{pattern!r}] matches no place of noise; they are {', '.join(rates)}."
            )
        rates |= dict.fromkeys(hits, float(rate))
    return rates
