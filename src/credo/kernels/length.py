"""How long trajectories should be: a search for the number of steps with the most effective draws per gradient.

What counts are chosen features of the position, such as predictions, which forget the past sooner than weights do. With D the mean squared
jump of a feature in one draw and v its variance, the autocorrelation is rho = 1 - D / (2 v); a draw of L steps is worth
(1 - rho) / (1 + rho) / L. Three lengths take turns, a half shorter and a half longer than the present one, and the best becomes the present
one. Negative rho counts as 0: what anticorrelates means decorrelates little else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from credo.kernels.metric import no_moments, observe
from credo.kernels.target import State

FACTOR = 1.5  #: between neighbouring lengths
_FIRST = 10.0  # steps to start from
_TURNS = 4  # draws of every length before they are compared
_CLOSEST = 0.999  # the largest autocorrelation told apart from 1


@dataclass(frozen=True)
class LengthSearch:
    """Climbs over whole numbers k with lengths 10 * 1.5^k, up to ``max_steps``."""

    max_steps: int

    def start(self, features: Tensor) -> State:
        """Before the first draw, from features ``(C, F)``."""
        return {"level": torch.zeros((), dtype=torch.float64, device=features.device)} | self._clear(features)

    def _clear(self, features: Tensor) -> State:
        zeros = torch.zeros(3, features.shape[-1], dtype=torch.float64, device=features.device)
        spread = no_moments(features, dense=False)
        return {"jumps": zeros, "turns": torch.zeros_like(zeros[:, 0])} | {
            f"feature_{key}": value for key, value in spread.items()
        }

    def steps(self, state: State, offset: int = 1) -> int:
        """The present number of steps, or that of a neighbour: 0 for the shorter, 2 for the longer."""
        return max(1, min(self.max_steps, round(_FIRST * FACTOR ** (float(state["level"]) + offset - 1))))

    def learn(self, state: State, offset: int, before: Tensor, after: Tensor) -> State:
        """Take in one draw's features ``(C, F)`` before and after, of the length at ``offset``; compare when all have had their turns."""
        moments = observe({key: state[f"feature_{key}"] for key in ("seen", "mean", "squares")}, after)
        jumps, turns = state["jumps"].clone(), state["turns"].clone()
        jumps[offset] += (after.double() - before.double()).square().mean(0)
        turns[offset] += 1
        state = state | {f"feature_{key}": value for key, value in moments.items()} | {"jumps": jumps, "turns": turns}
        if not bool((turns >= _TURNS).all()):
            return state
        variance = moments["squares"] / (moments["seen"] - 1).clamp_min(1)
        rho = (1 - jumps / turns.unsqueeze(-1) / (2 * variance).clamp_min(1e-30)).clamp(0.0, _CLOSEST)
        lengths = torch.tensor([self.steps(state, place) for place in range(3)], dtype=torch.float64, device=rho.device)
        worth = ((1 - rho) / (1 + rho)).mean(-1) / lengths
        state = state | {"level": state["level"] + worth.argmax() - 1}
        return state | {"jumps": torch.zeros_like(jumps), "turns": torch.zeros_like(turns)}

    def forget(self, state: State, features: Tensor) -> State:
        """Start the statistics anew, at the present length: the metric or the target has changed."""
        return state | self._clear(features)
