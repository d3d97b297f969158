"""Adversarial neighbours of inputs, x + step * sign(d nll / dx): where a member's loss climbs."""

from __future__ import annotations

from typing import Any

import torch

from credo.core.errors import SettingError
from credo.core.tree import leaves, map_leaves
from credo.data.source import Source
from credo.engine.model import Model


def adversarial_steps(model: Model, source: Source, share: float) -> Any:
    """``share`` of the range that every input feature has in the data, as a tree like one input on
    the model's device; None where the share is 0.
    """
    if not share:
        return None
    low = high = None
    for x, _ in model.on_device(source)(None, 4096):
        smallest, largest = map_leaves(lambda t: t.amin(0), x), map_leaves(lambda t: t.amax(0), x)
        low = smallest if low is None else map_leaves(torch.minimum, low, smallest)
        high = largest if high is None else map_leaves(torch.maximum, high, largest)
    if not any(leaf.is_floating_point() for leaf in leaves(low)):
        raise SettingError(
            f"adversarial={share}: neighbours of inputs need real numbers, and these inputs are "
            "whole; use 0."
        )
    return model.move(
        map_leaves(lambda a, b: (b - a) * share if a.is_floating_point() else a, low, high)
    )


def neighbours(x: Any, slope: Any, steps: Any) -> Any:
    """x + steps * sign(slope); whole numbers stay."""
    return map_leaves(
        lambda value, gradient, step: (
            value + step * gradient.sign() if value.is_floating_point() else value
        ),
        x,
        slope,
        steps,
    )
