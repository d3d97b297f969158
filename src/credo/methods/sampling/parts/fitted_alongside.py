"""What samplers fit beside the chains: point parameters, learned noise and learned priors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch
from torch import Tensor

from credo.methods.sampling.parts.density import Density

#: of the warm-up during which these move; in the rest the chains adapt to where they ended
SHARE_OF_WARMUP = 0.6
_VALUE = "free"  # of a tensor, in the names of a checkpoint; Adam's averages have their own


@final
class FittedAlongside:
    """One Adam step at each of the first ``num_moves`` moves, towards the maximum marginal
    likelihood; fixed from then on.
    """

    def __init__(self, density: Density, lr: float, num_moves: int) -> None:
        tensors = density.fitted_alongside
        self.tensors, self.num_moves = tensors, num_moves if tensors else 0
        self.optimizer = torch.optim.Adam(tensors, lr=lr) if tensors else None

    @classmethod
    def in_warmup(cls, density: Density, lr: float, num_warmup: int) -> FittedAlongside:
        """Steps in the first part of the warm-up."""
        return cls(density, lr, int(SHARE_OF_WARMUP * num_warmup))

    def step(self, index: int, take: Callable[[torch.optim.Optimizer], None]) -> bool:
        """The step that comes with move ``index``, taken by ``take(optimizer)``; False where there
        is none.
        """
        if index >= self.num_moves:
            return False
        assert self.optimizer is not None
        take(self.optimizer)
        return True

    def named_tensors(self) -> dict[str, Tensor]:
        """Values and Adam's averages, for a checkpoint."""
        out = {f"{_VALUE}/{i}": tensor.detach() for i, tensor in enumerate(self.tensors)}
        for i, tensor in enumerate(self.tensors):
            averages = self.optimizer.state.get(tensor, {}) if self.optimizer else {}
            out |= {f"{key}/{i}": torch.as_tensor(value) for key, value in averages.items()}
        return out

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of ``named_tensors``."""
        for i, tensor in enumerate(self.tensors):
            tensor.copy_(tensors[f"{_VALUE}/{i}"])
            keys = [
                name.rpartition("/")[0]
                for name in tensors
                if name.endswith(f"/{i}") and not name.startswith(f"{_VALUE}/")
            ]
            assert self.optimizer is not None
            if keys:
                self.optimizer.state[tensor] = {
                    key: tensors[f"{key}/{i}"].to("cpu" if key == "step" else tensor.device)
                    for key in keys
                }
