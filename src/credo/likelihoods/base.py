"""What every likelihood offers: p(y given f) for network outputs f, expectations, and equal-weight
mixtures over draws.

Outputs have shape ``(..., N, F)``: N data, F numbers per datum, and any leading axes, usually the S
posterior draws. A subclass says which distribution the outputs stand for; everything it leaves out
is computed numerically here, and one shared test compares the two.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credo.core.errors import CredoError, DataError, SettingError
from credo.core.registry import Registry
from credo.core.roots import semidefinite_root
from credo.likelihoods.fisher_information import NormalNoiseTerms, drawn_information
from credo.likelihoods.from_teacher import drawn_targets, outputs_for_teacher
from credo.likelihoods.mixtures import entropy_by_draws, over_data
from credo.likelihoods.quadrature import normal_nodes

if TYPE_CHECKING:
    from credo.likelihoods.gaussian import Gaussian


class Likelihood(nn.Module, ABC):
    """p(y given f), abstract. Parameters such as noise only ever broadcast, so a leading sample
    axis may replace them.
    """

    name: ClassVar[str]
    discrete: ClassVar[bool]
    #: Which metrics ``evaluate`` reports: those of ``labels`` or those of real ``values``.
    metric_family: ClassVar[str]
    #: Outputs that one target dimension depends on; None when every output meets every target.
    latents_per_target: ClassVar[int | None] = 1
    #: Whether y is one label out of C classes, whose probabilities ``(..., N, C)`` are ``probs``.
    one_of_classes: ClassVar[bool] = False
    of_inputs: ClassVar[bool] = False  #: whether it scores inputs, which ``modelled`` gives
    #: What targets must be for anything to be learned from them.
    varying: ClassVar[str] = "values that vary"

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self._arguments = arguments

    # --- what a subclass must say -----------------------------------------------------------------

    @abstractmethod
    def forward(self, outputs: Tensor) -> Distribution:
        """The distribution of y: batch shape ``(..., N)``, event shape ``()`` for one label or
        count, else ``(D,)``.
        """

    @abstractmethod
    def check_targets(self, y: Tensor) -> Tensor:
        """Targets cast to the type and shape ``log_prob`` wants, or a ``DataError`` that names the
        first bad row.
        """

    def check_training_targets(self, y: Tensor) -> Tensor:
        """``check_targets``, and refuse targets nothing can be learned from: one single class, a
        constant column.
        """
        return refuse_constant(self.check_targets(y), self.name, self.varying)

    @abstractmethod
    def num_outputs(self, y: Tensor) -> int:
        """How many outputs F a network needs for these (checked) targets."""

    @abstractmethod
    def marginals(self, outputs: Tensor) -> Distribution:
        """Each target dimension alone: batch shape ``(..., N, D)``, event shape ``()``."""

    @abstractmethod
    def marginal_entropy(self, outputs: Tensor) -> Tensor:
        """Entropy in nats, ``(..., N, D)``, of each target dimension under the mixture over axis 0
        of ``(S, ..., N, F)``.
        """

    @abstractmethod
    def sample(self, outputs: Tensor, generator: torch.Generator | int = 0) -> Tensor:
        """One y per leading index and datum, from a generator on the outputs' device or a seed; the
        global RNG is not touched.
        """

    def inputs(self, y: Tensor) -> Tensor:
        """Checked targets as the input of a network that reads them, such as an encoder:
        themselves, as floats, in their shape.
        """
        return y if y.is_floating_point() else y.to(torch.get_default_dtype())

    # --- given f ----------------------------------------------------------------------------------

    def target_dim(self, num_outputs: int) -> int:
        """D, the number of target dimensions that F outputs describe."""
        return num_outputs // (self.latents_per_target or 1)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log p(y given f) of checked targets, ``(..., N)``; y may carry leading axes of its own,
        which broadcast.
        """
        return self(outputs).log_prob(y.to(outputs.dtype))

    def expected_log_prob(self, mean: Tensor, var: Tensor, y: Tensor) -> Tensor:
        """E log p(y given f) under independent f ~ N(mean, var) per output, ``(..., N)``.

        Gauss-Hermite where each target depends on at most two outputs, otherwise 512 antithetic
        scrambled Sobol points with a fixed seed (exact for the part linear in f). Loses accuracy
        where log p has kinks or the variance is very large.
        """
        points, weights = normal_nodes(mean.shape[-1], self.latents_per_target)
        axes = (1,) * (max(mean.dim(), var.dim()) - 1)
        points = points.to(mean).reshape(-1, *axes, mean.shape[-1])
        f = mean + var.clamp_min(torch.finfo(var.dtype).tiny).sqrt() * points
        return torch.tensordot(weights.to(mean), self.log_prob(f, y), dims=1)

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y given f, each ``(..., N, D)``."""
        marginals = self.marginals(outputs)
        return marginals.mean, marginals.variance

    def entropy(self, outputs: Tensor) -> Tensor:
        """Entropy of p(y given f) in nats, ``(..., N)``, differential for continuous y; the default
        sums over dimensions.
        """
        return self.marginal_entropy(outputs.unsqueeze(0)).sum(-1)

    def marginal_cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """P(Y_d <= y_d given f), ``(..., N, D)``, for y of shape ``(..., N, D)``."""
        return self.marginals(outputs).cdf(y.to(outputs.dtype))

    # --- curvature --------------------------------------------------------------------------------

    def as_gaussian(self) -> Gaussian | None:
        """Itself where y is f plus normal noise of one deviation for all inputs, so that networks
        linear in their weights have a posterior in closed form; None for any other likelihood.
        """
        return None

    def information(self, outputs: Tensor) -> Tensor:
        """Fisher information E_y[s s^T] about the outputs, s the score, ``(..., N, F, F)``; here
        estimated from fixed draws of y.

        For the exponential families it is the negative second derivative of log p(y given f),
        whatever y is.
        """
        return drawn_information(self, outputs)

    def information_root(self, outputs: Tensor) -> Tensor:
        """R ``(..., N, F, K)`` with R R^T the information."""
        return semidefinite_root(self.information(outputs))

    def noise_terms(self, nll: float, num_data: int, num_outputs: int) -> NormalNoiseTerms | None:
        """What a summed nll says about normal noise of one size that is learned; None where there
        is no such noise.
        """
        return None

    def widen_noise(self, factor: float) -> None:
        """Multiply that noise's deviation."""
        raise CredoError(f"The {self.name} likelihood has no noise of one size.")

    # --- equal-weight mixtures over axis 0 --------------------------------------------------------

    def mixture_log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """log (1/S) sum_s p_s(y), ``(N,)``, for outputs ``(S, N, F)``."""
        return torch.logsumexp(self.log_prob(outputs, y), 0) - math.log(outputs.shape[0])

    def mixture_moments(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, aleatoric variance (1/S) sum_s v_s and epistemic variance (1/S) sum_s (m_s - m)^2
        of y, each ``(N, D)``.
        """
        mean, variance = self.moments(outputs)
        return mean.mean(0), variance.mean(0), mean.var(0, correction=0)

    def mixture_entropy(self, outputs: Tensor) -> Tensor:
        """Entropy of the mixture in nats, ``(N,)``: deterministic for D = 1, a fixed-seed Monte
        Carlo estimate for D > 1.

        The estimate is mean_s H_s + (1/S) sum_s E_s[log p_s - log p], about 512 stratified draws
        per datum, and so only its second term is noisy.
        """
        if self.target_dim(outputs.shape[-1]) == 1:
            return self.marginal_entropy(outputs).squeeze(-1)
        return over_data(lambda part: entropy_by_draws(self, part), outputs, outputs.shape[0], -1)

    def mixture_cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """P(Y_d <= y_d) under the mixture, ``(N, D)``, for y of shape ``(N,)`` or ``(N, D)``."""
        columns = y.unsqueeze(-1) if y.dim() == 1 else y
        return self.marginal_cdf(outputs, columns).mean(0)

    @abstractmethod
    def mixture_quantile(self, outputs: Tensor, q: float) -> Tensor:
        """The q-quantile of each target dimension under the mixture, ``(N, D)``; a ``CredoError``
        where y has no order.
        """

    # --- what predictions report ------------------------------------------------------------------

    def uncertainty(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Aleatoric and epistemic uncertainty; here in nats, ``(N,)``: mean entropy given f and
        mutual information.
        """
        aleatoric = self.entropy(outputs).mean(0)
        return aleatoric, (self.mixture_entropy(outputs) - aleatoric).clamp_min(
            0.0
        )  # below zero only by rounding

    def reported_variance(self, outputs: Tensor) -> Tensor:
        """The variance a prediction reports, ``(N, D)``: here the total variance of y."""
        _, aleatoric, epistemic = self.mixture_moments(outputs)
        return aleatoric + epistemic

    def probs(self, outputs: Tensor) -> Tensor:
        """Probabilities ``(..., N, C)`` where y is a label."""
        raise CredoError(
            f"The {self.name} likelihood has no class probabilities; use mean, quantile or "
            "log_prob."
        )

    def label(self, probs: Tensor) -> Tensor:
        """The most probable label ``(N,)`` for probabilities ``(N, C)``."""
        raise CredoError(f"The {self.name} likelihood has no labels; use mean or quantile.")

    def label_table(self, probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities ``(M, C)`` summing to one and labels ``(M,)``: the form that accuracy, ECE
        and Brier score take.
        """
        raise CredoError(
            f"The {self.name} likelihood has no labels to score; use metrics of real values such "
            "as rmse or crps."
        )

    def softened(self, mean: Tensor, var: Tensor) -> Tensor:
        """Outputs ``(N, F)`` whose prediction stands for that of outputs N(mean, var): the probit
        approximation, for labels only.
        """
        raise CredoError(
            f"The {self.name} likelihood has no probit approximation, which is for labels; use "
            "'linear'."
        )

    def monitor(self) -> dict[str, float]:
        """Numbers worth watching while a model is fitted, for the history; none unless a likelihood
        says otherwise.
        """
        return {}

    # --- learning from a teacher ------------------------------------------------------------------

    @property
    def observed(self) -> Likelihood:
        """The likelihood of y itself: this one, unless its targets are a teacher's."""
        return self

    def student(self) -> Likelihood:
        """The likelihood with which one network can state the uncertainty of this one's
        predictions: here one made the same way.
        """
        return type(self).from_config(self.config())

    def student_outputs(self, teacher: Likelihood, num_outputs: int) -> int:
        """Outputs F that a network with this likelihood needs to state what a teacher with
        ``num_outputs`` predicts.

        A ``SettingError`` where y is of another kind: labels against values, counts against real
        numbers.
        """
        return outputs_for_teacher(self, teacher, num_outputs)

    def soft_targets(
        self, outputs: Tensor, teacher: Likelihood, generator: torch.Generator | int = 0
    ) -> Tensor:
        """What a student with this likelihood learns of a teacher's mixture over draws ``(S, N,
        F)``; ``soft_log_prob`` reads it.

        Here one y from each draw, ``(N, S)`` or ``(N, S, D)``: a Monte Carlo stand-in that any pair
        of likelihoods can use, whose noise falls with S. A ``DataError`` where the teacher draws y
        that this likelihood has no probability for.
        """
        return drawn_targets(self, outputs, teacher, generator)

    def soft_log_prob(self, outputs: Tensor, soft: Tensor) -> Tensor:
        """E log p(y given f) over y of the soft targets, ``(..., N)``, for outputs ``(..., N, F)``:
        here the mean over drawn y.
        """
        y = soft.transpose(0, 1)
        y = y.reshape(len(y), *(1,) * (outputs.dim() - 2), *y.shape[1:])
        return self.log_prob(outputs, y).mean(0)

    # --- checks, storage --------------------------------------------------------------------------

    def accepts(self, num_outputs: int, y: Tensor) -> bool:
        """Whether F outputs can describe these (checked) targets."""
        return num_outputs == self.num_outputs(y)

    def check_pair(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Checked targets that also fit these outputs, ``(..., N, F)``, in length and in width."""
        y = self.check_targets(y).to(outputs.device)
        if y.shape[0] != outputs.shape[-2]:
            raise DataError(
                f"There are {y.shape[0]} targets for {outputs.shape[-2]} predictions; give one "
                "target per prediction."
            )
        if not self.accepts(outputs.shape[-1], y):
            raise DataError(
                f"The network gives {outputs.shape[-1]} outputs per datum, but the {self.name} "
                "likelihood needs "
                f"{self.num_outputs(y)} for these targets of shape {tuple(y.shape)}; "
                "change the network's last layer or the targets."
            )
        return y

    def frozen(self) -> Self:
        """A detached copy whose parameters later training cannot change."""
        other = copy.copy(self)
        other._parameters = {
            k: v if v is None else nn.Parameter(v.detach().clone(), False)
            for k, v in self._parameters.items()
        }
        other._buffers = {
            k: v if v is None else v.detach().clone() for k, v in self._buffers.items()
        }
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                object.__setattr__(other, name, value.detach().clone())
        return other

    def config(self) -> dict[str, Any]:
        """The constructor's arguments, ready for JSON; with ``state_dict`` it restores the
        likelihood.
        """
        return dict(self._arguments)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The inverse of ``config``; learned values come from ``load_state_dict``."""
        return cls(**config)


likelihoods: Registry[type[Likelihood]] = Registry("likelihood")


def target_tensor(y: Any, owner: str) -> Tensor:
    """Targets as a tensor of real numbers with at least one row."""
    try:
        y = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise DataError(
            f"{owner}: targets of type {type(y).__name__} are not numbers; encode them first."
        ) from problem
    if y.dim() == 0 or y.shape[0] == 0:
        raise DataError(f"{owner}: the targets have shape {tuple(y.shape)}; expected at least one.")
    if y.is_complex():
        raise DataError(
            f"{owner}: complex targets ({y.dtype}) have no likelihood here; split them into real "
            "columns."
        )
    return y


def refuse(bad: Tensor, y: Tensor, owner: str, expected: str) -> None:
    """An error that names the first target that is ``bad``."""
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        row = f"row {where[0]}" + (f", column {where[1]}" if len(where) > 1 else "")
        raise DataError(f"{owner}: the target in {row} is {y[where].item()}; expected {expected}.")


def refuse_constant(y: Tensor, owner: str, what: str) -> Tensor:
    """The targets unchanged, unless a whole column holds one single value."""
    columns = y.reshape(y.shape[0], -1)
    constant = (columns == columns[:1]).all(0)
    if bool(constant.any()):
        column = int(constant.nonzero()[0])
        where = f" in column {column}" if columns.shape[1] > 1 else ""
        raise DataError(
            f"{owner}: all {y.shape[0]} targets{where} are {columns[0, column].item():g}; "
            f"expected {what}."
        )
    return y


def get(spec: str | Likelihood) -> Likelihood:
    """A likelihood from its registry name (with default arguments), or the object itself."""
    if isinstance(spec, Likelihood):
        return spec
    if isinstance(spec, str):
        return likelihoods[spec]()
    raise SettingError(
        f"likelihood={spec!r} is a {type(spec).__name__}; expected a credo.likelihoods object or "
        f"one of {', '.join(likelihoods)}."
    )
