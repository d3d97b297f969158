"""What a perceptron and its prior become as the hidden layers widen: the activations, and the
variances, times the fan-in, of weights and biases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from credo.core.errors import DataError, NetworkError, SettingError
from credo.core.sites import Site
from credo.engine.fit_job import FitJob
from credo.engine.model import Model
from credo.nets import Erf
from credo.posteriors.process import flattened

ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", Erf: "erf"}
LEADING = (
    nn.Identity,
    nn.Dropout,
    nn.Flatten,
)  # nothing to a prediction, where they come before the first layer
WIDER = 4  # times the fan-in at which a prior is asked again


class Limit(NamedTuple):
    """The kernel's numbers: sigma_w^2 and sigma_b^2 of every linear layer, and the activation of
    every hidden one.
    """

    features: int
    weight_variances: list[float]
    bias_variances: list[float]
    activations: list[str]


def wide_limit(model: Model) -> Limit:
    """Read the limit off a model; refused by name is what has none, or none in closed form."""
    if model.prior.parts():
        raise SettingError(
            f"nngp needs a fixed prior; {model.prior.describe()!r} is learned: use "
            "credo.priors.FanIn(std=...), or method='vi'."
        )
    linears, activations = _layers(model.net)
    own = {id(parameter): name for name, parameter in model.net.named_parameters()}
    weights, biases = [], []
    for depth, layer in enumerate(linears):
        weights.append(_weight_variance(model, own[id(layer.weight)], hidden=depth > 0))
        biases.append(
            0.0 if layer.bias is None else _variance(model, _site(model, own[id(layer.bias)]))
        )
    return Limit(linears[0].in_features, weights, biases, activations)


def _layers(net: nn.Module) -> tuple[list[nn.Linear], list[str]]:
    """The linear layers, and the activation that follows each but the last."""
    linears: list[nn.Linear] = []
    activations: list[str] = []
    for path, module in _steps(net):
        named = f"{path or 'the network itself'} is a {type(module).__name__}"
        if type(module) is nn.Linear:
            if module in linears or any(module.weight is other.weight for other in linears):
                raise NetworkError(
                    f"{named} whose weight is used twice; the limit is that of layers with "
                    "weights of their own."
                )
            if len(activations) < len(linears):
                activations.append("identity")
            linears.append(module)
        elif type(module) in ACTIVATIONS and len(activations) == len(linears) - 1:
            activations.append(ACTIVATIONS[type(module)])
        elif not (type(module) is nn.Identity or (not linears and type(module) in LEADING)):
            known = ", ".join(kind.__name__ for kind in ACTIVATIONS)
            raise NetworkError(
                f"nngp takes nn.Linear layers, one of {known} between them, in an nn.Sequential "
                "such as credo.nets.mlp gives, and knows no limit "
                f"here: {named}."
            )
    if not linears or len(activations) == len(linears):
        last = "no nn.Linear" if not linears else f"{activations[-1]!r} after its last layer"
        raise NetworkError(
            f"nngp takes a network that ends in an nn.Linear, and this one has {last}."
        )
    return linears, activations


def _steps(net: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Every module that runs, in order, with its name; sequences are opened."""
    if type(net) is not nn.Sequential:
        yield path, net
        return
    for leaf, module in net._modules.items():
        if module is not None:
            yield from _steps(module, f"{path}.{leaf}".lstrip("."))


def _site(model: Model, name: str) -> Site:
    if name not in model.random:
        raise SettingError(
            f"nngp is the limit of a network whose parameters are all random, and {name!r} is "
            "not: use random='all' and freeze none "
            "(bias=False leaves biases out)."
        )
    site = model.random[name]
    if site.aliases:
        raise NetworkError(
            f"{name!r} is also {', '.join(site.aliases)}; the limit is that of layers with "
            "parameters of their own."
        )
    return replace(site, dtype=torch.float64, device=torch.device("cpu"))


def _weight_variance(model: Model, name: str, hidden: bool) -> float:
    """sigma_w^2: the prior variance times the fan-in, which must not depend on it where the inputs
    are hidden units.
    """
    site = _site(model, name)
    var = _variance(model, site)
    if hidden:
        rows, columns = site.shape
        wider = _variance(
            model,
            replace(site, fan_in=WIDER * site.fan_in, shape=torch.Size((rows, WIDER * columns))),
        )
        if (
            abs(wider * WIDER / var - 1.0) > 1e-6
        ):  # single precision, in which torch keeps a distribution's arguments
            raise SettingError(
                f"nngp: {model.prior.describe()!r} gives {name!r} the variance {var:.4g} at "
                f"{site.fan_in} inputs and {wider:.4g} at "
                f"{WIDER * site.fan_in}: unless it falls as 1 / fan-in the outputs have no limit "
                "as the network widens; use "
                "prior=credo.priors.FanIn(std=...)."
            )
    return var * site.fan_in


def _variance(model: Model, site: Site) -> float:
    """The variance of every element of a parameter; refused unless they are normal with mean 0 and
    one deviation.
    """
    distribution = model.prior.at(site)
    if (
        type(distribution) is not Normal
        or bool(distribution.loc.ne(0).any())
        or not _single(distribution.scale)
    ):
        raise SettingError(
            f"nngp needs a normal prior with mean 0 and one deviation for all of {site.name!r}, "
            f"which has {distribution}; use "
            "prior=credo.priors.FanIn(std=...)."
        )
    return float(distribution.scale.reshape(-1)[0].double()) ** 2


def _single(scale: Tensor) -> bool:
    return bool((scale == scale.reshape(-1)[0]).all())


def all_data(model: Model, fit_job: FitJob, features: int) -> tuple[Tensor, Tensor]:
    """All inputs ``(N, D)``, D = ``features``, and targets ``(N, F)``, in double precision on the
    model's device.
    """
    rows = [
        (flattened(model.move(x)), model.move(model.likelihood.check_targets(y)))
        for x, y in fit_job.source(None, fit_job.batch_size)
    ]
    x, y = (torch.cat(part).double() for part in zip(*rows, strict=True))
    if len(y) != fit_job.source.num_data:
        raise SettingError(
            f"nngp saw {len(y)} examples in one pass, but num_data is {fit_job.source.num_data}; "
            "it needs all of them, once."
        )
    if x.shape[1] != features:
        raise DataError(
            f"The first layer takes {features} numbers, but an example has {x.shape[1]} "
            "(flattened)."
        )
    return x, y
