"""The posterior that draws are."""

from __future__ import annotations

from torch import Tensor

from credo.engine.fit_job import Fitted
from credo.methods.sampling.parts.density import Density
from credo.posteriors import Posterior, Samples


def posterior_of(density: Density, draws: Tensor, num_chains: int) -> Posterior:
    """The posterior of draws ``(C, D, P)``, as they are, and of the points that were fitted
    alongside; ``num_chains`` is 1 where the C are not Markov chains.
    """
    shapes = {n: tuple(s) for n, s in density.layout.shapes.items()}
    samples = Samples.hold(draws.flatten(0, 1), shapes, num_chains)
    return density.model.with_points([samples], density.points)


def fitted_draws(density: Density, draws: Tensor, num_chains: int) -> Fitted:
    """What a fit that ends in these draws returns."""
    density.release()
    return Fitted(posterior_of(density, draws, num_chains), density.buffers)
