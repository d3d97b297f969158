"""The protocol every posterior family keeps, and what jointly Gaussian ones share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal, kl_divergence, register_kl

from credo.core.errors import CredoError
from credo.core.linear_map import LinearMap
from credo.core.registry import Registry
from credo.core.seeds import Noise
from credo.core.sites import Site
from credo.posteriors.conjugate_normal import ConjugateNormal
from credo.posteriors.draw import Draw, Params
from credo.posteriors.jacobian import Jacobian, joined
from credo.posteriors.start import Start
from credo.priors import Factorised, Flat, Prior

families: Registry[type[Family]] = Registry("posterior family")


class Family(nn.Module, ABC):
    """A distribution over some of the parameters, ``shapes`` by name.

    ``atoms`` is the number of points of a discrete posterior (an ensemble), which prediction then
    visits once each.
    """

    name: ClassVar[str]
    atoms: int | None = None
    chains: int | None = None  # of a set of draws: how many Markov chains they come from
    independent: ClassVar[bool] = False  # whether its parameters may be drawn one by one
    #: Whether a draw carries gradients to the family's parameters.
    reparameterised: ClassVar[bool] = True
    kl_is_bound: ClassVar[bool] = (
        # whether its KL is one; False where an infinite constant is left out, as of points and
        # masks
        True
    )

    #: Whether its density may be the next fit's prior over all its parameters together.
    joint_prior: ClassVar[bool] = True

    startable: ClassVar[bool] = False  # whether ``over`` begins a fit with it, by its name
    is_point: ClassVar[bool] = False  # whether all draws of its weights are its mean
    gated: ClassVar[bool] = False  # whether its draws have ``gates``: masks with learned rates

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        self.shapes = {name: torch.Size(shape) for name, shape in shapes.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters it covers."""
        return tuple(self.shapes)

    @property
    def meaningless_mean(self) -> str | None:
        """Why no prediction should be made with the weights' mean, where there is a reason."""
        return None

    @property
    def parts(self) -> list[Any]:
        """The posteriors it is a mixture of, if it is one."""
        return []

    @property
    def fixed(self) -> frozenset[str]:
        """Parameters that no draw changes, so that predictions compute the layers before the others
        once.
        """
        return frozenset()

    @property
    def varying(self) -> int:
        """How many weights its draws change."""
        return sum(shape.numel() for name, shape in self.shapes.items() if name not in self.fixed)

    @property
    def noisy_modules(self) -> frozenset[str]:
        """Paths of the network's modules whose own noise belongs to a draw: they stay in training
        mode.
        """
        return frozenset()

    @property
    def masks(self) -> dict[str, tuple[int, ...]]:
        """Masks of the network's dropout modules that it covers besides parameters, with their
        shapes.
        """
        return {}

    def keep_mask(self, threshold: float | None = None) -> Params:
        """True where a weight stays, by a rule of the family's own and its threshold; empty where
        it has no such rule.
        """
        return {}

    def std(self) -> Params:
        """Standard deviations of single weights by name; empty where they are not known."""
        return {}

    def hold_width(self) -> None:
        """Stop training the deviations, so that a fit moves means alone; nothing where there are
        none.
        """

    def unpruned_mean(self) -> Params:
        """E[w] before the family's own rule, where it has one, sets weights to zero."""
        return self.mean()

    def chain_draws(self) -> Params:
        """Draws by name, ``(chains, draws, *shape)``; empty where ``chains`` is None."""
        return {}

    def independent_normals(self) -> dict[str, Normal] | None:
        """The marginals of each parameter where all weights are independent normals; None for any
        other family.
        """
        return None

    def rate_params(self) -> list[nn.Parameter]:
        """Parameters that each turn the noise of many weights, such as a drop rate: an optimizer
        may move them faster.
        """
        return []

    def learned_rates(self) -> dict[str, float]:
        """Drop rates that were learned, by place and averaged over its units; empty where none
        were.
        """
        return {}

    def monitor(self) -> dict[str, float]:
        """Numbers worth watching while it is fitted, for the history."""
        return {}

    @classmethod
    def over(cls, sites: Sequence[Site], values: Params, start: Start) -> list[Family]:
        """Families of this kind, usually one, that begin a fit over ``sites`` of one dtype with
        means at ``values``; only of a kind that is ``startable``.
        """
        raise CredoError(
            f"The family {cls.name!r} is not one to begin a fit with; expected one of "
            f"{', '.join(startable())}."
        )

    @abstractmethod
    def begin(self, noise: Noise, fold: Any = None) -> Draw:
        """Draw the latents of one forward pass.

        ``fold``: what :meth:`fold` gave for the prior.
        """

    @abstractmethod
    def mean(self) -> Params:
        """E[w] of each parameter."""

    def draw(self, noise: Noise, names: Iterable[str] | None = None) -> Params:
        """Weights, with the noise's leading axes in front."""
        return self.begin(noise).weights(self.names if names is None else names)

    def latents(self, noise: Noise) -> Params:
        """What the density is over; the weights themselves unless a family says otherwise."""
        return self.draw(noise)

    def assemble(self, latents: Params) -> Params:
        """Weights from latents."""
        return latents

    @abstractmethod
    def log_prob(self, latents: Params) -> Tensor:
        """Log density, summed over all elements, with any leading axes kept."""

    def log_prob_each(self, latents: Params) -> Params:
        """Log density of every single element by name, for families of independent elements;
        NotImplemented otherwise.
        """
        return NotImplemented

    def moments(
        self, op: LinearMap, mean: Tensor, var: Tensor, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of op(x, w) + b for x with independent elements of this mean and
        variance.
        """
        raise CredoError(
            f"The family {self.name!r} has no rule for moments through {op.function.__name__}."
        )

    def joint_moments(
        self, op: LinearMap, mean: Tensor, cov: Tensor | None, w: str, b: str | None
    ) -> tuple[Tensor, Tensor]:
        """Mean and covariance ``(B, D, D)`` of op(x, w) + b for x with this mean and covariance;
        None: x is certain.
        """
        raise CredoError(
            f"The family {self.name!r} has no rule for covariances through {op.function.__name__}."
        )

    @property
    def elementwise(self) -> Mapping[str, Distribution] | None:
        """The distribution of every single weight, for a family of independent ones that may be the
        next fit's prior; None for all others.
        """
        return None

    def prior_from(self, prior: Prior, sites: Mapping[str, Site]) -> FamilyPrior:
        """The part of a prior that concerns this family."""
        joint = prior.joint_over(self.names)
        if joint is not None:
            return joint
        each = {n: self.restrict(prior.at(sites[n]), n) for n in self.names}
        return Factorised(each, self.shapes)

    def kl(self, prior: FamilyPrior | Mapping[str, Distribution]) -> Tensor | None:
        """KL[q, p] ``()`` in nats, summed over weights, in closed form; None where there is none:
        :func:`credo.posteriors.posterior.kl` then samples it.

        ``prior``: a family, or distributions of single weights by parameter.
        """
        each = prior if isinstance(prior, Mapping) else prior.elementwise
        return None if each is None else self.kl_elementwise(each)

    def kl_elementwise(self, prior: Mapping[str, Distribution]) -> Tensor | None:
        """The same under a prior that is independent over weights."""
        return None

    def log_prior(self, prior: FamilyPrior, latents: Params) -> Tensor:
        """log p of draws ``(..., )``: of their weights, unless the prior is itself over latents."""
        return prior.log_prob(latents if prior.elementwise is None else self.assemble(latents))

    def fold(self, prior: FamilyPrior | None) -> Any:
        """What ``begin`` needs of the prior to compute the KL together with the draw, which is
        cheaper; None where that does not apply.
        """
        return None

    def marginals(self) -> tuple[Params, Params] | None:
        """Mean and variance of every single weight, by name; None where they are not known."""
        return None

    def entropy(self) -> Tensor | None:
        """Entropy in nats, in closed form; None where there is none."""

    def as_gaussian(self) -> Gaussian | None:
        """Itself where it is jointly Gaussian, as linearised predictions need; None otherwise."""
        return None

    def conjugate_normal(self) -> ConjugateNormal | None:
        """Itself as the prior of a linear regression; None where it keeps no whole covariance."""
        return None

    def restrict(self, distribution: Distribution, name: str) -> Distribution:
        """What an elementwise prior of one parameter means for this family's values; itself unless
        they are discrete, or some are points.
        """
        return distribution

    def config(self) -> dict[str, Any]:
        """JSON-able arguments that rebuild the family; its numbers are in ``state_dict``."""
        return {
            "name": self.name,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Family:
        """An empty family of this shape, to load a state into."""
        return cls(**{key: value for key, value in config.items() if key != "name"})


FamilyPrior = Factorised | Family


def startable(kind: type[Family] = Family) -> tuple[str, ...]:
    """Names of the families of a ``kind`` that a fit can begin with."""
    return tuple(n for n, each in families.items() if each.startable and issubclass(each, kind))


@register_kl(Normal, Flat)
def _kl_normal_flat(q: Normal, p: Flat) -> Tensor:
    """-H[q]: the flat prior has density 1, so this is a KL only up to a constant."""
    return -q.entropy()


class Gaussian(Family):
    """A jointly Gaussian family."""

    #: Whether ``output_covariance`` makes do with a Jacobian's factors.
    factored: ClassVar[bool] = False

    def as_gaussian(self) -> Self:
        return self

    @abstractmethod
    def marginals(self) -> tuple[Params, Params]:
        """Mean and variance of every single weight, by name."""

    def std(self) -> Params:
        """Square roots of the variances."""
        return {name: var.sqrt() for name, var in self.marginals()[1].items()}

    def unpruned_mean(self) -> Params:
        return self.marginals()[0]

    @abstractmethod
    def entropy(self) -> Tensor:
        """Differential entropy of the joint distribution in nats."""

    def kl_elementwise(self, prior: Mapping[str, Distribution]) -> Tensor | None:
        """sum_i (KL[N(m_i, v_i), p] + h_i) - H[q] with h the entropy of one normal: marginals and
        entropy are all it takes, and torch's own table of KLs gives the terms.
        """
        means, variances = self.marginals()
        total = -self.entropy()
        for name in self.names:
            q = Normal(means[name], variances[name].sqrt(), validate_args=False)
            try:
                total = total + (kl_divergence(q, prior[name]) + q.entropy()).sum()
            except NotImplementedError:
                return None
        return total

    def written(self, name: str, places: int | None) -> int:
        """Numbers of one derivative by a parameter that ``output_covariance`` writes out.

        ``places``: at which an example uses the parameter, None where it has no factors, which may
        be all that is needed.
        """
        shape = self.shapes[name]
        return sum(shape) if self.factored and places == 1 else shape.numel()

    @abstractmethod
    def times_root(self, jacobian: Tensor) -> Tensor:
        """J R for a Jacobian ``(N, K, P)`` by the parameters in the order of ``names``,
        where R R^T is the covariance.
        """

    def output_covariance(self, jacobian: Jacobian) -> Tensor:
        """J C J^T ``(N, K, K)``: how the outputs of a network linear in these parameters vary."""
        root = self.times_root(joined(jacobian, self.names))
        return root @ root.mT

    def output_variance(self, jacobian: Jacobian) -> Tensor:
        """The diagonal of ``output_covariance``, ``(N, K)``."""
        return self.times_root(joined(jacobian, self.names)).square().sum(-1)


def gaussian_entropy(log_det_tril: Tensor, numel: int) -> Tensor:
    """Entropy of a Gaussian from the log determinant of a triangular factor of its covariance."""
    return log_det_tril + 0.5 * numel * (1.0 + math.log(2.0 * math.pi))
