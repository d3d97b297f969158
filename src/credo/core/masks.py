"""The masks of a network's own dropout modules, as places that tensors can be put into.

``nn.Dropout`` draws inside the call, so nobody can ask for the same mask again. In a shell a
:class:`Mask` stands for it and multiplies by a tensor that was placed there, under the name
``<module>.mask<k>`` for the k-th call of the module in one pass.
"""

from __future__ import annotations

import re
from typing import final

import torch
from torch import Tensor, nn

from credo.core.errors import NetworkError

#: Modules that multiply by a rescaled Bernoulli mask, and over how many trailing axes one entry of
#: it is shared.
DROPOUTS: dict[type[nn.Module], int] = {
    nn.Dropout: 0,
    nn.Dropout1d: 1,
    nn.Dropout2d: 2,
    nn.Dropout3d: 3,
}
_NAME = re.compile(r"(.+)\.mask(\d+)$")


def dropouts(net: nn.Module) -> dict[str, nn.Module]:
    """The dropout modules of a network by path, whatever their rate; not those that add noise of
    another kind (``AlphaDropout``).
    """
    return {
        path: module for path, module in net.named_modules() if type(module) in DROPOUTS and path
    }


def mask_name(path: str, call: int) -> str:
    """The place of a module's mask in its ``call``-th use of a pass."""
    return f"{path}.mask{call}"


def mask_place(name: str) -> tuple[str, int] | None:
    """Module and number of a mask's name; None for any other name."""
    found = _NAME.match(name)
    return (found[1], int(found[2])) if found else None


@final
class Mask(nn.Module):
    """x -> x * mask, with the masks of a pass used in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.calls = 0, 0

    def expose(self) -> str:
        """One more place; its leaf name."""
        leaf = f"mask{self.count}"
        self._buffers[leaf] = torch.ones(())
        self.count += 1
        return leaf

    def forward(self, x: Tensor) -> Tensor:
        """The input times the mask that is next."""
        if (
            self.count > 1
            and not torch.compiler.is_compiling()
            and torch._C._current_graph_task_id() != -1
        ):
            raise NetworkError(
                "A dropout module that is used several times in one pass is recomputed by "
                "gradient checkpointing, in an order that "
                "mixes up its masks; give every use its own nn.Dropout."
            )
        mask = self._buffers[f"mask{self.calls}"]
        self.calls = (self.calls + 1) % self.count
        assert mask is not None
        return torch.mul(x, mask)
