"""The no-U-turn sampler: trajectories that grow until they turn back, without recursion and for all
chains at once.

A trajectory is doubled in a random direction of time until it, or any of its balanced subtrees,
turns: rho.r <= 0 at either end, rho the sum of the momenta in between. The draw is picked by its
weight exp(-H): evenly within the new half, then with a preference for it (multinomial sampling,
Betancourt 2017). Of a half under construction only the momenta at the corners of unfinished
subtrees are stored, at most one per level (the iterative form of Phan, Pradhan and Jankowiak 2019).
All chains share depth and place in the tree; one that is done waits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from credo.kernels.hamiltonian import Integrator, TrajectoryInfo, kinetic
from credo.kernels.log_density import DIVERGENT, Point, choose, normal, rate_of, uniform


class TreeMove(NamedTuple):
    """One draw: where the chains are, and per chain ``(C,)`` mean acceptance rate, divergence,
    energy, steps and depth of the tree.
    """

    point: Point
    rate: Tensor
    divergent: Tensor
    energy: Tensor
    steps: Tensor
    depth: Tensor

    @property
    def info(self) -> TrajectoryInfo:
        """As diagnostics."""
        return TrajectoryInfo(self.point.value, self.energy, self.divergent, self.rate)


class _Edge(NamedTuple):
    """An end of a trajectory."""

    point: Point
    momentum: Tensor


class _Half(NamedTuple):
    """What doubling adds: its outer end, a pick of its points, their total log weight, the sum of
    momenta, and whether it is whole.
    """

    edge: _Edge
    pick: Point
    energy: Tensor
    log_weight: Tensor
    total: Tensor
    whole: Tensor


def turns(first: Tensor, last: Tensor, total: Tensor) -> Tensor:
    """Whether a stretch turns back, from whitened momenta at its ends and their sum; the ends count
    half.
    """
    inner = total - 0.5 * (first + last)
    return ((inner * first).sum(-1) <= 0) | ((inner * last).sum(-1) <= 0)


def corners(leaf: int) -> tuple[int, int]:
    """Levels whose stored corners belong to subtrees that end at ``leaf``: from the first to the
    last, both included.
    """
    last = (leaf >> 1).bit_count()
    ending = 0
    while leaf >> ending & 1:
        ending += 1
    return last - ending + 1, last


class _Tree:
    """The state of one draw while it grows."""

    def __init__(
        self,
        integrator: Integrator,
        point: Point,
        step: Tensor,
        scale: Tensor,
        generator: torch.Generator,
    ) -> None:
        self.integrator, self.step, self.scale, self.generator = integrator, step, scale, generator
        momentum = normal(point.position, generator)
        self.origin = kinetic(momentum) - point.value.double()
        self.steps = torch.zeros_like(self.origin)
        self.rates = torch.zeros_like(self.origin)
        self.divergent = torch.zeros_like(self.origin, dtype=torch.bool)
        self.left = self.right = _Edge(point, momentum)

    def double(self, depth: int, active: Tensor, forward: Tensor) -> _Half:
        """2^depth more steps of the active chains, onwards from the edge in each one's direction of
        time.
        """
        wide = forward.unsqueeze(-1)
        point = choose(forward, self.right.point, self.left.point)
        momentum = torch.where(wide, self.right.momentum, self.left.momentum)
        step = torch.where(wide, self.step, -self.step)
        pick, energy = point, self.origin
        log_weight = torch.full_like(self.origin, -math.inf)
        total = torch.zeros_like(momentum)
        alive = active
        corner: dict[int, tuple[Tensor, Tensor]] = {}
        for leaf in range(2**depth):
            if leaf and not bool(alive.any()):
                break
            point, momentum = self.integrator(point, momentum, step, self.scale, 1)
            here = kinetic(momentum) - point.value.double()
            gain = torch.nan_to_num(self.origin - here, nan=-math.inf)
            self.rates += torch.where(alive, rate_of(gain), 0.0)
            self.steps += alive
            lost = gain < -DIVERGENT
            self.divergent |= lost & alive
            grown = torch.logaddexp(log_weight, gain)
            taken = alive & ~lost & (uniform(gain, self.generator) < (gain - grown).exp())
            pick, energy = choose(taken, point, pick), torch.where(taken, here, energy)
            log_weight = torch.where(alive, grown, log_weight)
            total = total + momentum
            turning = torch.zeros_like(alive)
            low, high = corners(leaf)
            if leaf % 2 == 0:
                corner[high] = momentum, total
            else:
                for level in range(low, high + 1):
                    first, sum_then = corner[level]
                    turning |= turns(first, momentum, total - sum_then + first)
            alive = alive & ~lost & ~turning
        return _Half(_Edge(point, momentum), pick, energy, log_weight, total, alive)

    def extend(self, half: _Half, forward: Tensor, active: Tensor) -> None:
        """Move the edges outwards; chains that are done stay."""
        self.left = _moved(self.left, half.edge, ~forward & active)
        self.right = _moved(self.right, half.edge, forward & active)


def _moved(edge: _Edge, to: _Edge, chains: Tensor) -> _Edge:
    """The edge, of these chains ``(C,)`` further out."""
    momentum = torch.where(chains.unsqueeze(-1), to.momentum, edge.momentum)
    return _Edge(choose(chains, to.point, edge.point), momentum)


def nuts(
    integrator: Integrator,
    point: Point,
    step: Tensor,
    scale: Tensor,
    max_depth: int,
    generator: torch.Generator,
) -> TreeMove:
    """One draw of every chain with steps of size ``step`` ``(C, 1)``, from at most 2^max_depth - 1
    of them.
    """
    tree = _Tree(integrator, point, step, scale, generator)
    pick, energy = point, tree.origin
    log_weight = torch.zeros_like(tree.origin)
    total = tree.left.momentum
    active = torch.ones_like(tree.origin, dtype=torch.bool)
    depth = torch.zeros_like(tree.origin)
    for level in range(max_depth):
        forward = uniform(tree.origin, generator) < 0.5
        half = tree.double(level, active, forward)
        depth += active
        whole = active & half.whole
        taken = whole & (uniform(tree.origin, generator) < (half.log_weight - log_weight).exp())
        pick, energy = choose(taken, half.pick, pick), torch.where(taken, half.energy, energy)
        log_weight = torch.where(whole, torch.logaddexp(log_weight, half.log_weight), log_weight)
        tree.extend(half, forward, whole)
        total = torch.where(whole.unsqueeze(-1), total + half.total, total)
        active = whole & ~turns(tree.left.momentum, tree.right.momentum, total)
        if not bool(active.any()):
            break
    return TreeMove(
        pick, tree.rates / tree.steps.clamp_min(1), tree.divergent, energy, tree.steps, depth
    )
