"""A prior over several parameters at once, independent element by element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

Params = dict[str, Tensor]


@dataclass(frozen=True)
class Factorised:
    """p(w) = prod_i p_i(w_i): one distribution per parameter, independent over its elements."""

    #: The distribution of every element, by parameter.
    elementwise: Mapping[str, Distribution]
    shapes: Mapping[str, torch.Size]

    def log_prob(self, params: Params) -> Tensor:
        """Log density summed over elements, leading axes kept."""
        out: Tensor | float = 0.0
        for name, shape in self.shapes.items():
            log_prob = self.elementwise[name].log_prob(params[name])
            out = out + (
                log_prob.flatten(log_prob.dim() - len(shape)).sum(-1) if len(shape) else log_prob
            )
        assert isinstance(out, Tensor)
        return out

    def log_prob_each(self, params: Params) -> Params:
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

    def sample(self, n: int, like: Params) -> Params:
        """``n`` draws of every parameter from the global generator, in the dtype and on the device
        of ``like``.
        """
        out = {}
        for name, shape in self.shapes.items():
            missing = shape[: len(shape) - len(self.elementwise[name].batch_shape)]
            out[name] = self.elementwise[name].sample(torch.Size([n, *missing])).to(like[name])
        return out
