"""What a student is trained on: soft targets of a teacher, at fixed inputs or at inputs that are
perturbed anew in every epoch.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor

from credo.bnn import BNN
from credo.core.errors import DataError, SettingError
from credo.core.seeds import generator, isolated, mix
from credo.core.standardised import Standardised
from credo.core.tree import Tree, map_named_leaves, named_leaves, num_rows, split, take
from credo.data.checks import check_inputs
from credo.data.source import Batch
from credo.engine.outputs import Draws, sampled_outputs, with_drawn
from credo.likelihoods.base import Likelihood
from credo.likelihoods.continuous_likelihood import ContinuousLikelihood

ROWS = 1024  # inputs the teacher predicts at once
ROUNDING = 1e-6  # deviation, relative to the largest value, that is rounding alone

Perturb = Callable[[Any, torch.Generator], Any]


def inside(bnn: BNN) -> BNN:
    """The model itself, which takes and gives standardised units, where it has any."""
    if bnn.standardised is None:
        return bnn
    view = copy.copy(bnn)
    view._model = replace(bnn.model, standardised=None, _local=threading.local())
    return view


def in_units(
    perturb: Perturb | None, units: Standardised, dtype: torch.dtype | None
) -> Perturb | None:
    """A user's function of x as one of inputs in standardised units."""
    if perturb is None:
        return None
    return lambda z, source: units.inputs(check_inputs(perturb(units.raw_inputs(z), source)), dtype)


def check_units(teacher: BNN, own: Likelihood) -> None:
    """A student of a teacher with standardised targets learns the size of its noise, too."""
    units = teacher.standardised
    learned = isinstance(own, ContinuousLikelihood) and own.learns_size
    if units is not None and units.y_std is not None and not learned:
        raise SettingError(
            f"The teacher's targets are standardised, and the student's {own.name} likelihood does "
            "not learn the size of its noise; give one that does, such as 'heteroscedastic'."
        )


@final
class Teacher:
    """Soft targets for a student with ``likelihood``, from ``samples`` draws of a fitted model."""

    def __init__(self, bnn: BNN, likelihood: Likelihood, samples: int) -> None:
        self.bnn, self.likelihood, self.samples = bnn, likelihood, samples

    def at(self, x: Tree, seed: int) -> Tensor:
        """Soft targets ``(N, ...)``, the same draws of the weights for all inputs."""
        parts = []
        for place, rows in enumerate(split(x, ROWS)):
            p = self.bnn.predict(rows, self.samples, seed)
            parts.append(
                self.likelihood.soft_targets(
                    p.outputs, p.likelihood, self._noise(seed, place, p.outputs)
                )
            )
        return torch.cat(parts)

    def fresh(self, x: Tree, seed: int) -> Tensor:
        """Soft targets from draws that belong to this seed alone.

        Where the posterior is a set of draws, ``samples`` of them at random, each at most once:
        every one has the same chance, so that over seeds the targets average to those of the whole
        set (Korattikara et al. take one draw per batch).
        """
        if (
            self.bnn.method is not None and self.bnn.method.shortcut is not None
        ):  # it predicts without draws of weights
            return self.at(x, seed)
        posterior = self.bnn.posterior
        draws = Draws.of(posterior, self.samples, seed)
        if posterior.atoms is not None:
            order = torch.randperm(posterior.atoms, generator=generator("atoms", seed))
            draws = replace(draws, numbers=order[: self.samples].tolist())
        with torch.no_grad():
            outputs, extra = sampled_outputs(self.bnn.model, draws, x, self.bnn.buffers, seed)
            likelihood = with_drawn(self.bnn.model.likelihood, extra)
            return self.likelihood.soft_targets(outputs, likelihood, self._noise(seed, 0, outputs))

    @staticmethod
    def _noise(seed: int, place: int, like: Tensor) -> torch.Generator:
        return generator("soft", seed, place, device=like.device)


@final
class Jitter:
    """x + noise * std(x) * N(0, 1), with the deviation of each feature over the data.

    A feature that is constant in the data gets the root mean square deviation of all features of
    its tensor: left constant, the student would be taught nothing about it and could say anything
    where it varies. Whole numbers are refused, and data in which all rows are equal.
    """

    def __init__(self, x: Tree, noise: float) -> None:
        self.scale = {name: noise * _deviation(name, leaf) for name, leaf in named_leaves(x, "x")}

    def __call__(self, x: Tree, source: torch.Generator) -> Tree:
        """Fresh copies of these inputs."""

        def move(name: str, leaf: Tensor) -> Tensor:
            return leaf + self.scale[name] * torch.randn(
                leaf.shape, generator=source, dtype=leaf.dtype, device=leaf.device
            )

        return map_named_leaves(move, x, "x")


def _deviation(name: str, leaf: Tensor) -> Tensor:
    """The deviation of each feature, ``leaf.shape[1:]``."""
    if not leaf.is_floating_point():
        raise DataError(
            f"{name} holds whole numbers ({leaf.dtype}), to which noise cannot be added; convert "
            "them to floats, give perturb=, or use "
            "inputs='training'."
        )
    std = leaf.std(0, correction=0)
    constant = std <= ROUNDING * leaf.abs().amax(0)
    if bool(constant.all()):
        raise DataError(
            f"{name} is the same in all {len(leaf)} rows, so that its deviation says nothing "
            "about the size of noise; give perturb=, more data, "
            "or use inputs='training'."
        )
    return torch.where(constant, std.square().mean().sqrt(), std)


@final
class Perturbed:
    """Epochs of perturbed inputs with the teacher's soft targets there; all random numbers come
    from the epoch's generator.

    Without a generator it gives the inputs as they are, in order.
    """

    def __init__(self, x: Tree, perturb: Perturb, teacher: Teacher) -> None:
        self.x, self.perturb, self.teacher = x, perturb, teacher

    def batches(self, generator: torch.Generator | None, batch_size: int | None) -> Iterator[Batch]:
        """One pass over all inputs."""
        total = num_rows(self.x)
        if generator is None:
            for place, rows in enumerate(split(self.x, batch_size or total)):
                yield rows, self.teacher.fresh(rows, mix("ordered", place))
            return
        order = torch.randperm(total, generator=generator, device=generator.device)
        seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
        for place, rows in enumerate(
            order.to(next(named_leaves(self.x, "x"))[1].device).split(batch_size or total)
        ):
            x = self._moved(take(self.x, rows), mix(seed, place, "perturb"))
            yield x, self.teacher.fresh(x, mix(seed, place, "draws"))

    def _moved(self, x: Tree, seed: int) -> Tree:
        where = next(named_leaves(x, "x"))[1].device
        with isolated(seed, where):  # a user's function may draw from the global generator
            moved = self.perturb(x, generator(seed, device=where))
        try:
            moved = check_inputs(moved, like=x)
        except DataError as error:
            raise DataError(f"perturb gave inputs that cannot be used: {error}") from error
        if num_rows(moved) != num_rows(x):
            raise SettingError(
                f"perturb gave {num_rows(moved)} rows for {num_rows(x)}; expected one for each."
            )
        return map_named_leaves(
            lambda name, leaf: leaf.to(dict(named_leaves(x, "x"))[name]), moved, "x"
        )
