"""Nodes and weights for expectations under normal distributions."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

LINE_NODES = 64
PLANE_NODES = 32  # per axis
SOBOL_POINTS = 256  # each used with both signs
SOBOL_SEED = 20


def hermite(num_nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights with sum_k w_k g(x_k) = E g(x), x ~ N(0, 1), exact for polynomials up to
    degree 2 num_nodes - 1.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


def legendre(num_nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights with sum_k w_k g(x_k) = integral of g over [0, 1], exact for polynomials up
    to degree 2 num_nodes - 1.
    """
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    return torch.from_numpy((nodes + 1.0) / 2.0), torch.from_numpy(weights / 2.0)


@lru_cache(maxsize=64)
def normal_nodes(num_outputs: int, latents_per_target: int | None) -> tuple[Tensor, Tensor]:
    """Points ``(K, F)`` and weights ``(K,)`` for E g(f), f ~ N(0, I), float64 on the CPU.

    With one latent per target g is a sum over outputs of functions of one output, so every output
    may share the same line of nodes; with two, targets depend on columns d and D + d, and every
    pair may share the same plane. None: g is general, and more than two outputs take antithetic
    scrambled Sobol points.
    """
    latents = min(num_outputs, 3) if latents_per_target is None else latents_per_target
    if latents == 1:
        nodes, weights = hermite(LINE_NODES)
        return nodes.unsqueeze(1).expand(-1, num_outputs), weights
    if latents == 2:
        nodes, weights = hermite(PLANE_NODES)
        first, second = (
            axis.reshape(-1, 1) for axis in torch.meshgrid(nodes, nodes, indexing="ij")
        )
        half = num_outputs // 2
        return torch.cat([first.expand(-1, half), second.expand(-1, half)], 1), torch.outer(
            weights, weights
        ).flatten()
    engine = torch.quasirandom.SobolEngine(num_outputs, scramble=True, seed=SOBOL_SEED)
    uniform = engine.draw(SOBOL_POINTS, dtype=torch.float64).clamp(1e-12, 1.0 - 1e-12)
    points = torch.special.ndtri(uniform)
    return torch.cat([points, -points]), torch.full(
        (2 * SOBOL_POINTS,), 0.5 / SOBOL_POINTS, dtype=torch.float64
    )
