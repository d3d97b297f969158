"""What a prior is: an elementwise distribution for every random parameter. ``Factorised`` is the
part of one that meets a posterior family, ``Fixed`` the same distribution for every parameter; and
how torch's distributions are written down as JSON.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributions
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from credo.core.errors import CredoError
from credo.core.registry import Registry
from credo.core.sites import Site

if TYPE_CHECKING:
    from credo.priors.scaled import Scaled
#: Parameters ``(..., *shape)`` by name to their log density ``(...)``.
JointLogProb = Callable[[Mapping[str, Tensor]], Tensor]


class Prior(ABC):
    """Gives each site its distribution over single weights, whose log density sums over the site's
    elements.

    A prior with hyperparameters of its own also says what a fit starts from (``fresh``), what it
    learns (``parts``), what that costs (``penalty``) and what it takes from q in closed form
    (``observe``). The defaults are those of a fixed prior.
    """

    @abstractmethod
    def at(self, site: Site) -> Distribution:
        """The distribution of one element of ``site``, or of all of them if its batch shape is the
        site's.
        """

    @abstractmethod
    def describe(self) -> str:
        """One line for reports and run files."""

    def config(self) -> dict[str, Any] | None:
        """A JSON-able description for run files, or None where there is none; then loading needs
        the prior given again.
        """
        return None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Prior:
        """The inverse of ``config``: the structure.

        Learned numbers come through the state of ``fresh(sites).parts()``.
        """
        raise CredoError(
            f"{cls.__name__} has no stored form ({dict(config)}); give the prior again."
        )

    def fresh(self, sites: Mapping[str, Site]) -> Prior:
        """The prior a fit over ``sites`` starts from: itself where nothing is learned."""
        return self

    def parts(self) -> list[nn.Module]:
        """The modules that hold what is learned; their parameters are trained, their buffers kept
        by ``observe``.
        """
        return []

    def joint_over(self, names: Collection[str]) -> Any | None:
        """A density over exactly these parameters together, where the prior is not elementwise."""
        return None

    @property
    def is_learned(self) -> bool:
        """Whether a fit trains parameters of it; a width that evidence sets is no such one."""
        return any(True for part in self.parts() for _ in part.parameters())

    def matches(self, name: str) -> bool:
        """Whether the user named a prior for this very parameter."""
        return False

    @property
    def tunable(self) -> Scaled | None:
        """Itself where a method sets its width from outside; None for any other prior."""
        return None

    @property
    def earlier_posterior(self) -> Any:
        """The :class:`Posterior` of an earlier fit that is the prior of this one; None for any
        other prior.
        """
        return None

    def penalty(self) -> Tensor | None:
        """-log of the hyperprior, summed, in nats; None where there is none."""
        return None

    def observe(self, means: Mapping[str, Tensor], variances: Mapping[str, Tensor]) -> None:
        """Closed-form updates from q's marginal means and variances, called once per step with
        every site, before ``at``.
        """
        return None

    def needs_marginals(self) -> frozenset[str]:
        """Parameters whose distribution ``observe`` sets: q must have marginals over them."""
        return frozenset()

    def joint_log_prob(self, names: Collection[str]) -> JointLogProb | None:
        """The log density of all parameters ``names`` at once, where it does not factorise over
        them; None where ``at`` says it all.
        """
        return None

    def relevance(self, name: str) -> Tensor | None:
        """Learned prior standard deviation of each input feature of the parameter ``name``; None
        where nothing is learned of it.
        """
        return None


@dataclass(frozen=True)
class Factorised:
    """p(w) = prod_i p_i(w_i): one distribution per parameter, independent over its elements."""

    #: The distribution of every element, by parameter.
    elementwise: Mapping[str, Distribution]
    shapes: Mapping[str, torch.Size]

    def log_prob(self, params: dict[str, Tensor]) -> Tensor:
        """Log density summed over elements, leading axes kept."""
        out: Tensor | float = 0.0
        for name, shape in self.shapes.items():
            log_prob = self.elementwise[name].log_prob(params[name])
            out = out + (
                log_prob.flatten(log_prob.dim() - len(shape)).sum(-1) if len(shape) else log_prob
            )
        assert isinstance(out, Tensor)
        return out

    def log_prob_each(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Log density element by element."""
        return {name: self.elementwise[name].log_prob(params[name]) for name in self.shapes}

    def independent_normals(self) -> dict[str, Normal] | None:
        """The prior of each parameter where all are normal; None otherwise."""
        out = {}
        for name, shape in self.shapes.items():
            prior = self.elementwise[name]
            if type(prior) is not Normal:
                return None
            out[name] = Normal(prior.loc.expand(shape), prior.scale.expand(shape))
        return out

    def sample(self, n: int, like: dict[str, Tensor]) -> dict[str, Tensor]:
        """``n`` draws of every parameter from the global generator, in the dtype and on the device
        of ``like``.
        """
        out = {}
        for name, shape in self.shapes.items():
            missing = shape[: len(shape) - len(self.elementwise[name].batch_shape)]
            out[name] = self.elementwise[name].sample(torch.Size([n, *missing])).to(like[name])
        return out


#: The longest vector that goes into a run file as numbers.
LONGEST = 1000

#: Torch's distributions of one number whose arguments are what their ``arg_constraints`` name.
_TORCH = (
    "Normal",
    "Laplace",
    "StudentT",
    "Cauchy",
    "Gumbel",
    "LogNormal",
    "Uniform",
    "Exponential",
    "Gamma",
    "InverseGamma",
    "HalfNormal",
    "HalfCauchy",
    "Beta",
    "Chi2",
    "FisherSnedecor",
    "Kumaraswamy",
    "Pareto",
    "VonMises",
    "Weibull",
)


def _none(distribution: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Stored:
    """A class of distributions that can be written down: its tensors by ``arg_constraints``, and
    ``constants`` beside them.

    ``constants`` reads the constructor arguments that are not tensors, such as the name of a mixing
    density.
    """

    kind: type[Distribution]
    constants: Callable[[Any], dict[str, Any]] = _none


#: Name of a class -> how it is written down. Register a class of your own to have it in run files.
stored: Registry[Stored] = Registry("prior distribution")
for _name in _TORCH:
    stored.register(_name)(Stored(getattr(torch.distributions, _name)))


def _entry(distribution: Distribution) -> Stored | None:
    name = type(distribution).__name__
    return stored[name] if name in stored and stored[name].kind is type(distribution) else None


def arguments(distribution: Distribution) -> dict[str, Tensor]:
    """The tensors a distribution was made from, by the names of its ``arg_constraints``."""
    return {name: getattr(distribution, name) for name in distribution.arg_constraints}


def rebuilt(distribution: Distribution, values: Mapping[str, Any]) -> Distribution:
    """The same kind of distribution from other argument values, without validation, which would
    wait for the device.
    """
    entry = _entry(distribution)
    constants = entry.constants(distribution) if entry is not None else {}
    kind: Any = type(distribution)
    return kind(**constants, **values, validate_args=False)


def to_config(distribution: Distribution) -> dict[str, Any] | None:
    """``{"distribution", "arguments"}`` of JSON values, or None for a class that is not stored or
    arguments that are not short.
    """
    entry = _entry(distribution)
    if entry is None:
        return None
    values = arguments(distribution)
    constants = entry.constants(distribution)
    if any(
        not isinstance(v, Tensor) or v.dim() > 1 or v.numel() > LONGEST for v in values.values()
    ):
        return None
    if not all(math.isfinite(x) for v in values.values() for x in v.reshape(-1).tolist()):
        return None
    return {
        "distribution": type(distribution).__name__,
        "arguments": constants | {name: v.detach().tolist() for name, v in values.items()},
    }


def of_config(config: Mapping[str, Any]) -> Distribution:
    """The inverse of ``to_config``."""
    kind: Any = stored[config["distribution"]].kind
    return kind(**{name: _tensor(value) for name, value in config["arguments"].items()})


def _tensor(value: Any) -> Any:
    if not isinstance(value, (int, float, list)):
        return value
    exact = torch.tensor(value, dtype=torch.float64)
    short = exact.to(torch.get_default_dtype())
    return (
        short if torch.equal(short.double(), exact) else exact
    )  # the default dtype unless it would round what was stored


#: Name in a run file -> class of prior, which rebuilds itself by ``from_config``.
kinds: Registry[type[Prior]] = Registry("prior")


def from_config(config: Mapping[str, Any]) -> Prior:
    """The inverse of ``Prior.config``."""
    return kinds[config["name"]].from_config(config)


@kinds.register("fixed")
@dataclass(frozen=True)
class Fixed(Prior):
    """The same torch distribution for every site."""

    distribution: Distribution

    def at(self, site: Site) -> Distribution:
        """The distribution in the site's dtype and on its device."""
        return distribution_on(self.distribution, site.dtype, site.device)

    def describe(self) -> str:
        """The distribution as torch prints it."""
        return str(self.distribution)

    def config(self) -> dict[str, Any] | None:
        """Class name and arguments, where they are numbers or short vectors of a distribution in
        ``stored``.
        """
        described = to_config(self.distribution)
        return None if described is None else {"name": "fixed", **described}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Prior:
        """The inverse of ``config``."""
        return cls(of_config(config))


@dataclass(frozen=True)
class Unstored(Prior):
    """Stands for the prior of a loaded run that had no JSON form: predictions do not need it,
    anything else says so.
    """

    text: str

    def at(self, site: Site) -> Distribution:
        """Always an error."""
        raise CredoError(
            f"The prior of this run ({self.text}) could not be stored with it; give it again: "
            "credo.load(path, net, prior=...)."
        )

    def describe(self) -> str:
        """As it was described when it was saved."""
        return self.text


def distribution_on(
    distribution: Distribution, dtype: torch.dtype, device: torch.device
) -> Distribution:
    """The same distribution with its tensors in another dtype and on another device."""
    clone = object.__new__(type(distribution))
    for key, value in distribution.__dict__.items():
        if isinstance(value, Distribution):
            value = distribution_on(value, dtype, device)
        elif isinstance(value, Tensor):
            value = value.to(device, dtype if value.is_floating_point() else None)
        clone.__dict__[key] = value
    # validation reads its verdict back from the device at every step, which no graph can capture
    clone._validate_args = False
    return clone


def default_prior() -> Prior:
    """What ``prior=None`` means: N(0, 1), tied with FanIn(3) as the best normal prior and more
    robust to raw inputs.

    See ``benchmarks/results/default_prior.md``. Laplace(0, 0.5) lost a little less there; a normal
    prior is kept because it is conjugate.
    """
    return Fixed(Normal(0.0, 1.0))


def state_name(label: str, key: str) -> str:
    """The name of one vector in a module's state: torch allows no dot in it, and '@' keeps it apart
    from methods.
    """
    return f"{label}@{key.replace('~', '~0').replace('.', '~1')}"
