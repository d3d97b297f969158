"""What samplers fit beside the chains: point parameters, learned noise and learned priors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch
from torch import Tensor

from credo.kernels.target import State
from credo.methods.sampling.parts.chains import Transition
from credo.methods.sampling.parts.density import Density

#: of the warm-up during which these move; the rest adapts the chains to where they have come
LEARNING = 0.6


@final
class Free:
    """One Adam step per move towards the maximum marginal likelihood, then held."""

    def __init__(self, density: Density, lr: float, until: int) -> None:
        self.density, self.until = density, until if density.free else 0
        self.optimizer = torch.optim.Adam(density.free, lr=lr) if density.free else None

    def learns(self, index: int) -> bool:
        """Whether move ``index`` comes with a step."""
        return index < self.until

    def learn(self, step: Callable[[torch.optim.Optimizer], None]) -> None:
        """One step, which ``step(optimizer)`` takes."""
        assert self.optimizer is not None
        step(self.optimizer)

    def record(self) -> State:
        """Values and Adam's averages."""
        out = {f"free/{i}": tensor.detach() for i, tensor in enumerate(self.density.free)}
        for i, tensor in enumerate(self.density.free):
            moments = self.optimizer.state.get(tensor, {}) if self.optimizer else {}
            out |= {f"{key}/{i}": torch.as_tensor(value) for key, value in moments.items()}
        return out

    def recall(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of ``record``."""
        for i, tensor in enumerate(self.density.free):
            tensor.copy_(tensors[f"free/{i}"])
            keys = [
                name.rpartition("/")[0]
                for name in tensors
                if name.endswith(f"/{i}") and not name.startswith("free/")
            ]
            assert self.optimizer is not None
            if keys:
                self.optimizer.state[tensor] = {
                    key: tensors[f"{key}/{i}"].to("cpu" if key == "step" else tensor.device)
                    for key in keys
                }


class Fitting(Transition):
    """Moves that come with steps of what is free, which a resumed run must find as it was."""

    free: Free

    def record(self) -> State:
        """What is free."""
        return self.free.record()

    def recall(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of ``record``."""
        self.free.recall(tensors)
