"""``F.linear`` of many members at once, with gradients laid out as the weights are.

Under vmap torch differentiates the batched product and hands back the weights' gradient transposed,
which an optimizer has to copy first: for layers of a few hundred units that copy costs as much as
the optimizer itself.
"""

from __future__ import annotations

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Stacked(torch.autograd.Function):
    """x ``(K, M, I)``, w ``(K, O, I)``, b ``(K, O)`` or None -> ``(K, M, O)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.bmm(x, w.mT) if b is None else torch.baddbmm(b.unsqueeze(1), x, w.mT)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, w = ctx.saved_tensors
        (grad,) = grads
        wanted = ctx.needs_input_grad
        return (
            torch.bmm(grad, w) if wanted[0] else None,
            torch.bmm(grad.mT, x) if wanted[1] else None,
            grad.sum(1) if wanted[2] else None,
        )


class _Linear(torch.autograd.Function):
    """``F.linear``, which vmap runs as ``_Stacked``."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return F.linear(x, w, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, w = ctx.saved_tensors
        rows, wanted = grads[0].reshape(-1, w.shape[0]), ctx.needs_input_grad
        return (
            grads[0] @ w if wanted[0] else None,
            rows.mT @ x.reshape(-1, w.shape[1]) if wanted[1] else None,
            rows.sum(0) if wanted[2] else None,
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor, b: Tensor | None
    ) -> tuple[Tensor, int]:
        x, w, b = (
            _lead(t, dim, info.batch_size) for t, dim in zip((x, w, b), in_dims, strict=True)
        )  # type: ignore[misc]
        assert x is not None and w is not None
        inner = x.shape[1:-1]
        out = _Stacked.apply(x.reshape(len(x), -1, x.shape[-1]), w, b)
        assert isinstance(out, Tensor)
        return out.reshape(len(x), *inner, out.shape[-1]), 0


def _lead(tensor: Tensor | None, dim: int | None, count: int) -> Tensor | None:
    if tensor is None:
        return None
    return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


@final
class StackedLinear(TorchFunctionMode):
    """While it is entered, linear layers inside one level of vmap run as one batched product."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Everything but ``F.linear`` passes."""
        if func is not F.linear:
            return func(*args, **(kwargs or {}))
        return _linear(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    return _Linear.apply(input, weight, bias)
