"""Priors whose arguments are learned with the posterior: empirical Bayes, type-II maximum
likelihood or MAP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Transform, biject_to, constraints

from credo.core.errors import SettingError, nearest
from credo.core.settings import positive, whole
from credo.core.sites import Site
from credo.priors.base import (
    Prior,
    arguments,
    distribution_on,
    kinds,
    of_config,
    rebuilt,
    state_name,
    to_config,
)
from credo.priors.gaussian_mixture import GaussianMixture
from credo.priors.sharing import Grouping, find, groupings, relevance, sizes


@kinds.register("learned")
class Learned(nn.Module, Prior):
    """``distribution`` with the arguments in ``learn`` trained on the same objective as q, one
    value per group of weights.

    ``learn``: names of arguments, all by default; each starts at its value in ``distribution`` and
    is kept unconstrained through ``torch.distributions.biject_to``. ``per``: "global", "layer",
    "tensor", "unit", "input" or "weight". ``hyperprior``: argument -> torch distribution over its
    value; the penalty is -sum log p(value) over groups, a density of the value itself and not of
    its unconstrained form, so the optimum is the MAP in the value (no Jacobian). Without one, small
    groups let the prior collapse onto q, and the KL no longer holds anything back. Vector
    arguments, as of a mixture, allow "global", "layer", "tensor".
    """

    def __init__(
        self,
        distribution: Distribution,
        learn: Sequence[str] | None = None,
        per: str = "global",
        hyperprior: Mapping[str, Distribution] | None = None,
    ) -> None:
        super().__init__()
        self.distribution = distribution
        self.learn = (
            tuple(arguments(distribution))
            if learn is None
            else (learn,)
            if isinstance(learn, str)
            else tuple(learn)
        )
        self.per = per
        self.hyperprior = dict(hyperprior or {})
        self.sites: dict[str, Site] = {}
        self._check()

    def _check(self) -> None:
        single = self.grouping.single
        if self.distribution.event_shape:
            raise SettingError(
                f"A prior must be elementwise; {self.distribution} has event shape "
                f"{tuple(self.distribution.event_shape)}."
            )
        if self.distribution.support is not constraints.real:
            raise SettingError(
                f"Learned: {self.distribution} lives on {self.distribution.support}, and a weight "
                "may be any real number; "
                "expected e.g. Normal, Laplace, ScaleMixture or GaussianMixture."
            )
        known = arguments(self.distribution)
        if not self.learn or not known:
            raise SettingError(
                f"{self.distribution} has no argument to learn; learn={list(self.learn)}, "
                f"arguments {list(known)}."
            )
        for name in self.learn:
            if name not in known:
                raise SettingError(
                    f"learn={name!r}: {type(self.distribution).__name__} has no such "
                    f"argument.{nearest(name, known)}"
                )
            self.transform(name)
        for name, value in known.items():
            vector = self._event_dim(name)
            if value.dim() != vector:
                raise SettingError(
                    f"Learned: argument {name!r} has shape {tuple(value.shape)}; expected "
                    f"{'one vector' if vector else 'a single number'}: per={self.per!r} makes the "
                    "values of the groups."
                )
            if vector and not single:
                raise SettingError(
                    f"per={self.per!r} does not go with {type(self.distribution).__name__}, whose "
                    f"argument {name!r} is a vector; "
                    "expected per='global', 'layer' or 'tensor'."
                )
        for name in self.hyperprior:
            if name not in self.learn:
                raise SettingError(
                    f"hyperprior for {name!r}, which is not learned.{nearest(name, self.learn)}"
                )

    @property
    def grouping(self) -> Grouping:
        """What ``per`` names."""
        return groupings[self.per]

    def _event_dim(self, name: str) -> int:
        return self.distribution.arg_constraints[name].event_dim

    def transform(self, name: str) -> Transform:
        """The bijection from unconstrained numbers to the argument's values."""
        try:
            return biject_to(self.distribution.arg_constraints[name])
        except NotImplementedError as error:
            raise SettingError(
                f"learn={name!r}: torch knows no unconstrained form of "
                f"{type(self.distribution).__name__}'s {name!r} "
                f"({self.distribution.arg_constraints[name]}); learn another argument."
            ) from error

    def fresh(self, sites: Mapping[str, Site]) -> Prior:
        """A new prior whose hyperparameters are at their start, in the dtype and on the device of
        the first site of each group.
        """
        out = Learned(self.distribution, self.learn, self.per, self.hyperprior)
        out.sites = dict(sites)
        if sites:  # constants travel once, here, and not at every step
            first = next(iter(sites.values()))
            out.distribution = distribution_on(self.distribution, first.dtype, first.device)
            out.hyperprior = {
                name: distribution_on(p, first.dtype, first.device)
                for name, p in self.hyperprior.items()
            }
        for name in self.learn:
            start = arguments(self.distribution)[name].detach()
            for key, (n, site) in sizes(self.per, sites).items():
                raw: Any = self.transform(name).inv(start.to(site.device, site.dtype))
                out.register_parameter(
                    state_name(name, key), nn.Parameter(raw.expand(n, *start.shape).clone())
                )
        return out

    def parts(self) -> list[nn.Module]:
        """Itself."""
        return [self]

    def _value(self, name: str, key: str) -> Tensor:
        value = self.transform(name)(self.get_parameter(state_name(name, key)))
        assert isinstance(value, Tensor)
        return value

    def values(self) -> dict[str, dict[str, Tensor]]:
        """Group -> argument -> its learned values, (n,) or (1, K) for vector arguments,
        detached.
        """
        return {
            key: {n: self._value(n, key).detach() for n in self.learn}
            for key in sizes(self.per, self.sites)
        }

    def learned(self, name: str) -> dict[str, Tensor]:
        """Argument -> its values for the parameter called ``name``, in its shape or as one value,
        connected to the gradient.
        """
        site = find(name, self.sites, "learned")
        return {argument: self._placed(argument, site) for argument in self.learn}

    def _placed(self, argument: str, site: Site) -> Tensor:
        values = self._value(argument, self.grouping.key(site))
        if self._event_dim(argument):
            return values[0].to(site.device, site.dtype)
        return self.grouping.to_elements(values, site)

    def at(self, site: Site) -> Distribution:
        """The distribution with its current values; before ``fresh``, with those it starts from."""
        if not self.sites:
            return distribution_on(self.distribution, site.dtype, site.device)
        fixed = {
            n: v.to(site.device, site.dtype)
            for n, v in arguments(self.distribution).items()
            if n not in self.learn
        }
        return rebuilt(self.distribution, fixed | self.learned(site.name))

    def penalty(self) -> Tensor | None:
        """-sum over groups of log hyperprior(value), in nats."""
        total: Tensor | None = None
        for name, hyperprior in self.hyperprior.items():
            for key in sizes(self.per, self.sites):
                value = self._value(name, key)
                term = -distribution_on(hyperprior, value.dtype, value.device).log_prob(value).sum()
                total = term if total is None else total + term.to(total)
        return total

    def relevance(self, name: str) -> Tensor:
        """Prior standard deviation of each input feature of the parameter called ``name``,
        (in_features,); needs per="input".
        """
        site = find(name, self.sites, "learned")
        return relevance(self.at(site), site, self.per)

    def describe(self) -> str:
        """What it starts from and what is learned."""
        hyper = "".join(f", {name} ~ {p}" for name, p in self.hyperprior.items())
        return f"learned {', '.join(self.learn)} per {self.per} from {self.distribution}{hyper}"

    def config(self) -> dict[str, Any] | None:
        """The structure and the start; the learned values are in the state of the module."""
        start = to_config(self.distribution)
        hyper = {name: to_config(p) for name, p in self.hyperprior.items()}
        if start is None or None in hyper.values():
            return None
        return {
            "name": "learned",
            "distribution": start,
            "learn": list(self.learn),
            "per": self.per,
            "hyperprior": hyper,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Prior:
        """The inverse of ``config``: the prior at its start."""
        hyper = {name: of_config(p) for name, p in config["hyperprior"].items()}
        return cls(of_config(config["distribution"]), config["learn"], config["per"], hyper)


def learned_mixture(
    components: int = 5,
    spread: float = 1.0,
    scale: float | None = None,
    per: str = "global",
    hyperprior: Mapping[str, Distribution] | None = None,
) -> Learned:
    """A learned mixture of normals, which makes weights share values (Nowlan and Hinton 1992;
    Hinton and van Camp 1993).

    Means start evenly over [-spread, spread] (a lone one at 0), weights equal, standard deviations
    at ``scale``, by default half the distance between neighbours.
    """
    if whole("components", components) < 1:
        raise SettingError(
            f"components={components} is not valid; expected a whole number above 0."
        )
    spread = positive("spread", spread, 1.0)
    loc = torch.linspace(-spread, spread, components) if components > 1 else torch.zeros(1)
    scales = torch.full(
        (components,), float(positive("scale", scale, spread / max(1, components - 1)))
    )
    return Learned(
        GaussianMixture(torch.zeros(components), loc, scales), per=per, hyperprior=hyperprior
    )
