"""What goes into a network's linear layers and what comes out, caught during one pass, so that
derivatives by their weights are products.

For a layer z = W a + b used at places r, d f / d W = sum_r (d f / d z_r) a_r^T: a pass gives the
inputs a, one backward pass per direction of the outputs gives d f / d z for all layers. No weight
gradient of any single example is ever formed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credo.core.shell import Shell, plain_attention
from credo.core.sites import Site
from credo.core.tree import map_leaves, num_rows, one_more
from credo.engine.model import Model
from credo.estimators.plan import refuse_reentrant
from credo.posteriors import Params
from credo.posteriors.jacobian import FactoredDerivatives

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Tap(NamedTuple):
    """A layer whose weight (and bias) have derivatives in factors."""

    path: str
    weight: str | None
    bias: str | None
    places: int = 1  # at which the weights are used for one example, as the dry run showed

    @property
    def names(self) -> tuple[str, ...]:
        """The random parameters of the layer."""
        return tuple(name for name in (self.weight, self.bias) if name is not None)


class Caught(NamedTuple):
    """Inputs ``(N, R, I)`` and the layer's output as autograd knows it."""

    inputs: Tensor
    output: Tensor
    channel: int  # the axis of the output's units


def find_taps(
    model: Model, values: Params, buffers: Mapping[str, Tensor], x: Any
) -> dict[str, Tap]:
    """Layers that are called once in a pass, on examples along the first axis, with weights that
    nothing else uses; by path.

    Found by dry runs on few examples: B, one more, and B once more with derivatives.
    """
    shell = prepared(model, values, buffers)
    tied = {name for name, site in model.sites.items() if site.aliases}
    taps = {}
    for path, module in shell.module.named_modules(remove_duplicate=False):
        if _plain(module):
            names = {leaf: f"{path}.{leaf}".lstrip(".") for leaf in ("weight", "bias")}
            chosen = {
                leaf: name
                for leaf, name in names.items()
                if name in model.random and name not in tied
            }
            if chosen:
                taps[path] = Tap(path, chosen.get("weight"), chosen.get("bias"))
    examples = model.move(x)
    calls: dict[str, list[tuple[torch.Size, torch.Size]]] = {path: [] for path in taps}
    sizes = (num_rows(examples), num_rows(examples) + 1)
    for batch in (examples, one_more(examples)):
        with (
            _hooked(
                shell, taps, lambda path, module, a, out: calls[path].append((a.shape, out.shape))
            ),
            torch.no_grad(),
            plain_attention(),
        ):
            model.outputs(shell, batch)
    regular = {}  # layers called once per pass, on examples along the first axis
    for path, shapes in calls.items():
        if len(shapes) == 2 and all(
            shape[0] == size and len(shape) > 1
            for pair, size in zip(shapes, sizes, strict=True)
            for shape in pair
        ):
            units = _units(shell.module.get_submodule(path))
            regular[path] = taps[path]._replace(places=shapes[0][1].numel() // (sizes[0] * units))
    otherwise = _used_otherwise(model, shell, regular, examples)
    return {path: tap for path, tap in regular.items() if path not in otherwise}


def _plain(module: nn.Module) -> bool:
    """Whether a module is one of torch's own layers and gives what it computes: subclasses and
    hooks may do anything.
    """
    if module._forward_hooks:
        return False
    if isinstance(module, CONVOLUTIONS):
        return (
            type(module) in CONVOLUTIONS and module.groups == 1 and module.padding_mode == "zeros"
        )
    return type(module) is nn.Linear


def _units(module: Any) -> int:
    return module.out_channels if isinstance(module, CONVOLUTIONS) else module.out_features


def _used_otherwise(model: Model, shell: Shell, taps: Mapping[str, Tap], x: Any) -> set[str]:
    """Layers whose weights reach the output by more than their one call, or which a checkpoint
    calls again in the backward pass.

    The calls see copies of the weights, cut off; what still has a derivative by the weights
    themselves is another use.
    """
    leaves = {
        path: {n: shell.placed(n).detach().requires_grad_() for n in tap.names}
        for path, tap in taps.items()
    }
    own = {n: leaf for group in leaves.values() for n, leaf in group.items()}
    before = {n: shell.placed(n) for n in own}
    calls: dict[str, list[Tensor]] = {path: [] for path in taps}

    def enter(path: str) -> None:
        shell.place({n: leaf.detach() for n, leaf in leaves[path].items()})

    def leave(path: str, module: nn.Module, a: Tensor, output: Tensor) -> None:
        shell.place(leaves[path])
        calls[path].append(output if output.requires_grad else output.requires_grad_())

    shell.place(own)
    try:
        with torch.enable_grad(), plain_attention(), _hooked(shell, taps, leave, enter):
            x = map_leaves(lambda t: t.detach().clone().requires_grad_() if _is_real(t) else t, x)
            outputs = model.outputs(shell, x)
            refuse_reentrant([outputs])
            grads: Sequence[Tensor | None] = []
            if outputs.requires_grad and own:
                layer_outputs = [
                    output for found in calls.values() for output in found
                ]  # so that the backward pass goes everywhere
                grads = torch.autograd.grad(
                    outputs.sum(), [*own.values(), *layer_outputs], allow_unused=True
                )
    finally:
        shell.place(before)
    found = {n for n, grad in zip(own, grads, strict=False) if grad is not None}
    return {path for path, tap in taps.items() if len(calls[path]) != 1 or found & set(tap.names)}


def _is_real(t: Any) -> bool:
    return isinstance(t, Tensor) and t.is_floating_point()


def prepared(model: Model, values: Params, buffers: Mapping[str, Tensor]) -> Shell:
    """This thread's shell in evaluation mode, with these weights."""
    shell = model.shell()
    shell.train(False)
    shell.place(model.frozen())
    shell.place(buffers)
    shell.place({name: value.detach() for name, value in values.items()})
    return shell


@contextmanager
def _hooked(
    shell: Shell, paths: Mapping[str, Any], on_call: Any, enter: Any = None
) -> Iterator[None]:
    """``on_call(path, module, input, output)`` at every call of these layers; what it returns, if
    anything, replaces the output.
    """
    handles = []
    for path in paths:
        module = shell.module.get_submodule(path)

        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Tensor, path: str = path
        ) -> Tensor | None:
            return on_call(path, module, args[0] if args else kwargs["input"], output)

        handles.append(module.register_forward_hook(hook, with_kwargs=True))
        if enter is not None:
            handles.append(
                module.register_forward_pre_hook(lambda module, args, path=path: enter(path))
            )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def tapped(
    model: Model, shell: Shell, taps: Mapping[str, Tap], x: Any
) -> tuple[Tensor, dict[str, Caught]]:
    """Outputs ``(N, F)`` with a graph back to every tapped layer, and what was caught there."""
    caught: dict[str, Caught] = {}

    def on_call(path: str, module: nn.Module, a: Tensor, output: Tensor) -> Tensor:
        if not output.requires_grad:
            output.requires_grad_()
        convolution = isinstance(module, CONVOLUTIONS)
        inputs = (
            patches(a.detach(), module)
            if convolution
            else a.detach().reshape(len(a), -1, a.shape[-1])
        )
        caught[path] = Caught(inputs, output, 1 if convolution else -1)
        return output.clone()  # so that an activation in place leaves what was caught as it is

    with torch.enable_grad(), _hooked(shell, taps, on_call), plain_attention():
        outputs = model.outputs(shell, x)
    return outputs, caught


def caught_numel(model: Model, taps: Mapping[str, Tap]) -> int:
    """Numbers that are caught of one example: a convolution's patches are as many times its input
    as its kernel has places.
    """
    return sum(
        tap.places * math.prod(model.random[tap.weight].shape[1:])
        for tap in taps.values()
        if tap.weight is not None
    )


def patches(x: Tensor, module: nn.Module) -> Tensor:
    """What a convolution multiplies its weights with at every place, ``(N, R, C prod(kernel))``."""
    assert isinstance(module, CONVOLUTIONS)
    dims = len(module.kernel_size)
    pads = _padding(module)
    x = F.pad(x, [p for pair in reversed(pads) for p in pair])
    for axis in range(dims):
        span = module.dilation[axis] * (module.kernel_size[axis] - 1) + 1
        x = x.unfold(2 + axis, span, module.stride[axis])[..., :: module.dilation[axis]]
    # (N, C, places..., kernel...) -> (N, places, C kernel)
    order = (0, *range(2, 2 + dims), 1, *range(2 + dims, 2 + 2 * dims))
    x = x.permute(order)
    return x.reshape(len(x), x.shape[1 : 1 + dims].numel(), -1)


def _padding(module: Any) -> list[tuple[int, int]]:
    """Zeros before and after along every spatial axis."""
    if isinstance(module.padding, str):
        if module.padding == "valid":
            return [(0, 0)] * len(module.kernel_size)
        totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(p, p) for p in module.padding]


def gradients(
    outputs: Tensor, caught: Mapping[str, Caught], direction: Tensor, retain_graph: bool
) -> dict[str, Tensor]:
    """d (direction . f) / d z of every layer ``(N, R, O)``, for a direction ``(N, F)`` of each
    example's outputs.
    """
    found: Sequence[Tensor | None] = [None] * len(caught)
    if outputs.requires_grad:  # else no layer reaches them
        found = torch.autograd.grad(
            outputs,
            [c.output for c in caught.values()],
            direction,
            retain_graph=retain_graph,
            allow_unused=True,
        )
    out = {}
    for (path, c), grad in zip(caught.items(), found, strict=True):
        grad = torch.zeros_like(c.output) if grad is None else grad
        if c.channel == 1:
            out[path] = grad.flatten(2).mT
        else:
            out[path] = grad.reshape(len(grad), -1, grad.shape[-1])
    return out


def layer_jacobians(tap: Tap, inputs: Tensor, grads: Tensor) -> dict[str, FactoredDerivatives]:
    """The factors of weight and bias, from inputs ``(N, R, I)`` and gradients ``(N, K, R, O)``."""
    out = {}
    if tap.weight is not None:
        out[tap.weight] = FactoredDerivatives(inputs, grads)
    if tap.bias is not None:
        summed = grads.sum(2, keepdim=True)
        out[tap.bias] = FactoredDerivatives(inputs.new_ones(len(inputs), 1, 1), summed)
    return out


def untapped(model: Model, taps: Mapping[str, Tap]) -> dict[str, Site]:
    """Random parameters that no factors are known for."""
    known: set[str] = {name for tap in taps.values() for name in tap.names}
    return {name: site for name, site in model.random.items() if name not in known}
