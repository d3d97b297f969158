"""Which draws a prediction is made of: of a posterior's weights, of its functions, of the prior, or
its mean alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from credo.core.errors import CredoError, SettingError
from credo.core.seeds import isolated, mix
from credo.core.settings import positive, whole
from credo.engine.model import Model
from credo.posteriors import Family, Params, Posterior, Process
from credo.priors import Factorised

Realise = Callable[[Sequence[int]], Params]


@dataclass(frozen=True)
class Draws:
    """Which draws: ``realise(numbers)`` gives them stacked.

    ``fixed``: parameters they leave alone; ``noisy_modules``: modules that stay noisy.

    A ``process`` draws functions instead, of what it reads from a network with the weights that
    ``realise`` gives for any one number; ``joint`` if values at different inputs must belong
    together; ``average`` for its mean function.
    """

    numbers: Sequence[int]
    realise: Realise
    fixed: Collection[str] = frozenset()
    noisy_modules: Collection[str] = frozenset()
    process: Process | None = None
    joint: bool = field(default=False, kw_only=True)
    average: bool = field(default=False, kw_only=True)

    @classmethod
    def of(cls, posterior: Posterior, samples: int, seed: int, joint: bool = False) -> Draws:
        """``samples`` draws of a posterior, made one chunk after another in the same memory."""
        if posterior.process is not None:
            values = posterior.mean()
            return replace(
                cls.point(values), numbers=range(samples), process=posterior.process, joint=joint
            )
        workspace: dict[object, Tensor] = {}

        def realise(numbers: Sequence[int]) -> Params:
            return posterior.realise(numbers, seed, workspace)

        return cls(posterior.numbers(samples), realise, posterior.fixed, posterior.noisy_modules)

    @classmethod
    def asked(
        cls,
        model: Model,
        posterior: Posterior | None,
        source: str,
        samples: int,
        seed: int,
        joint: bool = False,
    ) -> Draws:
        """Draws of the posterior, or of the prior around what the posterior holds fixed."""
        positive("num_samples", samples, 1)
        whole("seed", seed)
        if source == "posterior" and posterior is not None:
            return cls.of(posterior, samples, seed, joint)
        if source != "prior":
            raise SettingError(f"source={source!r}; expected 'posterior' or 'prior'.")
        process = None if posterior is None else posterior.process
        if process is not None and not process.of_network:
            raise CredoError(
                f"The prior of {process.name!r} is a Gaussian process, not this network's; "
                "source='prior' has nothing to draw."
            )
        if posterior is None or process is not None:
            return cls.prior(model, model.values(), (), samples, seed)
        return cls.prior(model, posterior.mean(), posterior.members, samples, seed)

    @classmethod
    def point(cls, values: Mapping[str, Tensor]) -> Draws:
        """One set of parameters."""
        return cls([0], lambda _: {n: v.unsqueeze(0) for n, v in values.items()}, frozenset(values))

    @classmethod
    def mean(cls, posterior: Posterior, model: Model) -> Draws:
        """E[w], or the mean function of a process; refused where the mean is no network at all."""
        for family in posterior.members:
            if family.meaningless_mean is not None and set(family.names) & set(model.sites):
                raise CredoError(
                    f"shortcut='mean' is not meaningful for a {family.name} posterior: "
                    f"{family.meaningless_mean}; predict with draws."
                )
        return replace(
            cls.point(posterior.mean()),
            process=posterior.process,
            average=posterior.process is not None,
        )

    @classmethod
    def prior(
        cls, model: Model, start: Params, families: Sequence[Family], samples: int, seed: int
    ) -> Draws:
        """Draws of the random parameters from the prior; the rest as in ``start``."""
        return cls(
            range(samples),
            lambda numbers: prior_draws(model, start, numbers, seed, families),
            frozenset(start) - frozenset(model.random),
        )


def prior_draws(
    model: Model, fixed: Params, numbers: Sequence[int], seed: int, families: Sequence[Family] = ()
) -> Params:
    """Stacked draws of the random parameters from the prior, one stream per draw; the rest as they
    are.

    Where a posterior is discrete, ``families`` says so, and the prior is drawn on its levels.
    """
    kinds = {name: family for family in families for name in family.names}
    parts = {n: model.prior.at(s) for n, s in model.sites.items() if n in model.random}
    parts = {n: kinds[n].restrict(d, n) if n in kinds else d for n, d in parts.items()}
    prior = Factorised(parts, {n: s.shape for n, s in model.random.items()})
    rows = []
    for number in numbers:
        with isolated(mix(seed, number, "prior"), model.device):
            rows.append(prior.sample(1, fixed))
    drawn = {n: torch.cat([row[n] for row in rows]) for n in model.random}
    return drawn | {
        n: v.expand(len(numbers), *v.shape) for n, v in fixed.items() if n not in model.random
    }
