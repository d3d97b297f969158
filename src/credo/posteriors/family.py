"""The protocol every posterior family keeps, and the flat layout most of them share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credo.core.errors import CredoError
from credo.core.linear_map import LinearMap
from credo.core.registry import Registry
from credo.core.seeds import Ambient, Noise
from credo.posteriors.jacobian import Jacobian, joined

Params = dict[str, Tensor]
families: Registry[type[Family]] = Registry("posterior family")


class Draw(ABC):
    """What one forward pass sees of a family: latents drawn once, met by linear maps or turned into
    weights.

    Everything shared over the call is drawn when the object is made, before the network runs, so
    that checkpointed layers recompute with the same values.
    """

    kl: Tensor | None = None  # set where the family folds its KL into the draw
    drawn: Params | None = (
        # the latents of this pass, where all of them were drawn: a sampled KL uses the same draw
        None
    )
    scored: Sequence[tuple[Tensor, Tensor]] | None = (
        None  # (log q, sampled KL) of the pass, for the score function
    )
    owner: Family  # the family it was drawn from
    _each: tuple[tuple[Any, ...], Params] | None = (
        None  # how many for whom were drawn first, and the draws
    )

    @abstractmethod
    def weights(self, names: Iterable[str]) -> Params:
        """One joint draw of the named parameters."""

    def each(self, count: int, names: Sequence[str]) -> Params:
        """``count`` independent draws ``(count, *shape)``; a family whose parameters depend on each
        other is drawn whole, once.

        A checkpointed layer that drew during the forward pass draws again when it is recomputed,
        from the restored random state: it must save as many tensors as it did the first time.
        """
        noise = Ambient((count,))
        if self.owner.independent:
            return self.owner.draw(noise, names)
        again = (
            self._each is not None
            and self._each[0] == (count, *names)
            and torch._C._current_graph_task_id() != -1
        )
        if self._each is None or again or self._each[0][0] != count:
            self._each = (count, *names), self.owner.draw(noise)
        return self._each[1]

    def straight_through(self, names: Iterable[str]) -> Params:
        """A draw of discrete weights whose gradient is that of their mean; NotImplemented for
        continuous families.
        """
        return NotImplemented

    def relaxed(self, names: Iterable[str], temperature: float) -> Params:
        """A draw of discrete weights whose gradient is that of their Gumbel-softmax relaxation;
        NotImplemented likewise.
        """
        return NotImplemented

    def prepare(self) -> None:
        """Make whatever linear maps will need, before the network runs; nothing unless a family
        says otherwise.
        """

    def local(
        self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise
    ) -> Tensor:
        """op(x, w) + b with the noise drawn on the output; NotImplemented where the family has no
        such form.
        """
        return NotImplemented

    def flipout(
        self, op: LinearMap, x: Tensor, w: str, b: str | Tensor | None, noise: Noise
    ) -> Tensor:
        """op(x, w) + b with one perturbation shared and its signs flipped per example;
        NotImplemented likewise.
        """
        return NotImplemented


class ConjugateNormal(NamedTuple):
    """A normal over the flat vector of ``names``, as the prior of a linear regression: mean and
    Cholesky factor of the covariance, in double precision.

    ``noise``: shape and rate of the inverse-gamma of the noise variance, in whose units the
    covariance then is; None where the noise is known.
    """

    names: tuple[str, ...]
    mean: Tensor
    tril: Tensor
    noise: tuple[float, float] | None = None


class Family(nn.Module, ABC):
    """A distribution over some of the parameters, ``shapes`` by name.

    ``atoms`` is the number of points of a discrete posterior (an ensemble), which prediction then
    visits once each.
    """

    name: ClassVar[str]
    atoms: int | None = None
    independent: ClassVar[bool] = False  # whether its parameters may be drawn one by one
    reparameterised: ClassVar[bool] = (
        True  # whether a draw carries gradients to the family's parameters
    )
    meaningless_mean: ClassVar[str | None] = (
        None  # why no prediction should be made with the weights' mean, where there is a reason
    )
    kl_is_bound: ClassVar[bool] = (
        # whether its KL is one; False where an infinite constant is left out, as of points and
        # masks
        True
    )

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        self.shapes = {name: torch.Size(shape) for name, shape in shapes.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters it covers."""
        return tuple(self.shapes)

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

    def rate_params(self) -> list[nn.Parameter]:
        """Parameters that each turn the noise of many weights, such as a drop rate: an optimizer
        may move them faster.
        """
        return []

    def monitor(self) -> dict[str, float]:
        """Numbers worth watching while it is fitted, for the history."""
        return {}

    @abstractmethod
    def begin(self, noise: Noise, fold: Any = None) -> Draw:
        """Draw the latents of one forward pass.

        ``fold``: prior statistics, see :func:`credo.posteriors.kl.fold`.
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


class Gaussian(Family):
    """A jointly Gaussian family: its marginals and its entropy give the KL to every elementwise
    prior with a closed form.
    """

    factored: ClassVar[bool] = (
        False  # whether ``output_covariance`` makes do with a Jacobian's factors
    )

    def as_gaussian(self) -> Self:
        return self

    @abstractmethod
    def marginals(self) -> tuple[Params, Params]:
        """Mean and variance of every single weight, by name."""

    def std(self) -> Params:
        """Square roots of the variances."""
        return {name: var.sqrt() for name, var in self.marginals()[1].items()}

    @abstractmethod
    def entropy(self) -> Tensor:
        """Differential entropy of the joint distribution in nats."""

    def written(self, name: str, places: int | None) -> int:
        """Numbers of one derivative by a parameter that ``output_covariance`` writes out.

        ``places``: at which an example uses the parameter, None where it has no factors, which may
        be all that is needed.
        """
        shape = self.shapes[name]
        return sum(shape) if self.factored and places == 1 else shape.numel()

    @abstractmethod
    def spread(self, rows: Tensor) -> Tensor:
        """J R for rows ``(N, K, P)`` of a Jacobian by the parameters in the order of ``names``,
        where R R^T is the covariance.
        """

    def output_covariance(self, jacobian: Jacobian) -> Tensor:
        """J C J^T ``(N, K, K)``: how the outputs of a network linear in these parameters vary."""
        spread = self.spread(joined(jacobian, self.names))
        return spread @ spread.mT

    def output_variance(self, jacobian: Jacobian) -> Tensor:
        """The diagonal of ``output_covariance``, ``(N, K)``."""
        return self.spread(joined(jacobian, self.names)).square().sum(-1)


def gaussian_entropy(log_det_tril: Tensor, numel: int) -> Tensor:
    """Entropy of a Gaussian from the log determinant of a triangular factor of its covariance."""
    return log_det_tril + 0.5 * numel * (1.0 + math.log(2.0 * math.pi))


class FlatLayout:
    """Several named tensors as slices of one flat vector: one kernel instead of one per
    parameter.
    """

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self.shapes = dict(shapes)
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.numel = sum(self.sizes)

    def split(self, flat: Tensor) -> Params:
        """Views by name; leading axes of ``flat`` stay in front."""
        lead = flat.shape[:-1]
        pieces = flat.split_with_sizes(self.sizes, -1)
        return {
            name: piece.reshape((*lead, *shape))
            for piece, (name, shape) in zip(pieces, self.shapes.items(), strict=True)
        }

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The flat vector of tensors that may have leading axes."""
        return torch.cat(
            [
                tensors[n].flatten(tensors[n].dim() - len(shape))
                if len(shape)
                else tensors[n].unsqueeze(-1)
                for n, shape in self.shapes.items()
            ],
            -1,
        )
