"""The same small network in less time on a CPU: layers run as plain functions, each in the form
that was fastest when measured.

In a network of a few units most of the time is not arithmetic: PyTorch's convolution has a fixed
cost, its max pooling waits on unpredictable branches, and calling a module costs more than what a
tiny layer does.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from credo.compress.cost import latency, repeated_batch
from credo.compress.same_outputs import difference
from credo.core.errors import CredoError, NetworkError
from credo.core.standardised import entered, in_own_units, units_of, without_units

TOLERANCE = 1e-5  # of the largest output: float32 sums in another order differ by less
# numbers of examples at which forms are timed; a form serves up to its number, the last one beyond
# it too
SIZES = (1, 4, 16, 64)
# numbers a convolution may copy side by side; above that its own routine is as fast and takes less
# memory
UNFOLDED = 1 << 20
ROUNDS = 3

Form = Callable[[Tensor], Tensor]


@final
class Quick(nn.Module):
    """A sequence of layers with the parameters, names and outputs of ``layers``, run by functions
    of one tensor, or modules.

    ``plans``: such steps for each of ``SIZES``. Steps read the layers' parameters at every call, so
    that loading a state, moving, copying and gradients work as ever; hooks put on a layer
    afterwards are not run.
    """

    def __init__(self, layers: nn.Sequential, plans: list[list[Form]]) -> None:
        super().__init__()
        for name, layer in layers.named_children():
            self.add_module(name, layer)
        self._plans = plans

    def forward(self, x: Tensor) -> Tensor:
        """``(N, ...)`` to what the last layer gives."""
        for step in self._plans[bisect_left(SIZES[:-1], x.shape[0])]:
            x = step(x)
        return x


@torch.no_grad()
def quicken(net: nn.Module, example: Tensor) -> nn.Module:
    """A copy of a sequence of layers that runs faster on the CPU, in evaluation mode; it has the
    same outputs and a state of the same names.

    ``net``: an ``nn.Sequential`` on the CPU, such as :func:`slim` gives. ``example``: one batch
    ``(N, ...)``, repeated to batches of 1 to 64 by which the forms of convolutions and poolings are
    timed on one thread. Layers that are not known are called as they are. What it brings is a fixed
    amount per layer: much for a slimmed network, little for a large one. A ``NetworkError`` if
    outputs differ by more than 1e-5 of the largest.
    """
    own = units_of(net)
    if own is not None:
        bare = without_units(net)
        return in_own_units(quicken(bare, entered(own, example, bare)), own)
    if type(net) is not nn.Sequential:
        raise NetworkError(
            f"quicken takes a sequence of layers, an nn.Sequential; got {type(net).__name__}, "
            "which runs as it is."
        )
    if not isinstance(example, Tensor) or not example.dim() or not len(example):
        given = (
            f"has the shape {tuple(example.shape)}"
            if isinstance(example, Tensor)
            else f"is a {type(example).__name__}"
        )
        raise CredoError(
            f"quicken: the example {given}; expected a tensor, one batch of inputs (N, ...)."
        )
    if any(t.device.type != "cpu" for t in [example, *net.parameters(), *net.buffers()]):
        raise CredoError(
            "quicken measures on the CPU, and the network or the example is on another device; "
            "move both there, e.g. net.cpu()."
        )
    layers = copy.deepcopy(net).eval()
    try:
        layers(example)
    except (RuntimeError, ValueError, IndexError) as error:
        raise NetworkError(
            f"The network cannot run on the example: {str(error).splitlines()[0]}."
        ) from error
    plans, x = [[] for _ in SIZES], example
    for layer in _flat(layers):
        forms = _forms(layer)
        if forms:
            for plan, step in zip(plans, _fastest(forms, x), strict=True):
                plan.append(step)
        x = layer(x)
    quick = Quick(layers, plans).eval()
    found = difference(x, quick(example))
    if not found.within(TOLERANCE):
        raise NetworkError(
            f"The quickened network's outputs differ by {found.worst:.2e} where the largest is "
            f"{found.largest:.2e}; expected at most {TOLERANCE:.0e} of it. "
            "Does the network give the same outputs twice? If so, use it as it is."
        )
    return quick


def _flat(layers: nn.Sequential) -> Iterator[nn.Module]:
    """Layers in order, those of nested sequences included."""
    for layer in layers:
        if type(layer) is nn.Sequential and not _hooked(layer):
            yield from _flat(layer)
        else:
            yield layer


def _hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


def _forms(layer: nn.Module) -> list[Form]:
    """Functions that compute a layer, the plain one first; none where the layer does nothing.

    A module that is not known, or that has hooks, is its own only form.
    """
    rule = None if _hooked(layer) else _RULES.get(type(layer))
    return [layer] if rule is None else rule(layer)


def _fastest(forms: list[Form], x: Tensor) -> list[Form]:
    """For each of ``SIZES`` the form that was fastest when so many examples were timed."""
    if len(forms) == 1:
        return forms * len(SIZES)
    best = []
    for size in SIZES:
        times = latency(
            {str(place): form for place, form in enumerate(forms)}, repeated_batch(x, size), ROUNDS
        )
        best.append(min(range(len(forms)), key=lambda place: float(times[str(place)].min())))
    return [forms[place] for place in best]


# --- forms of layers: functions of the layer's parameters, its settings and x ---------------------


def _linear(parameters: dict[str, Any], x: Tensor) -> Tensor:
    return F.linear(x, parameters["weight"], parameters["bias"])


def _conv(parameters: dict[str, Any], settings: tuple[tuple[int, int], ...], x: Tensor) -> Tensor:
    stride, padding, dilation, _ = settings
    return F.conv2d(x, parameters["weight"], parameters["bias"], stride, padding, dilation)


def _windows(
    parameters: dict[str, Any], settings: tuple[tuple[int, int], ...], x: Tensor
) -> Tensor:
    """A convolution as a matrix product with the window of every place, copied side by side: little
    work for a small image, and no fixed cost.
    """
    weight, bias = parameters["weight"], parameters["bias"]
    (down, right), (top, left), (tall, wide), (kh, kw) = settings
    if top or left:
        x = F.pad(x, (left, left, top, top))
    n, c, height, width = x.shape
    oh, ow = (height - tall * (kh - 1) - 1) // down + 1, (width - wide * (kw - 1) - 1) // right + 1
    if n * c * kh * kw * oh * ow > UNFOLDED:
        return F.conv2d(x, weight, bias, (down, right), 0, (tall, wide))
    a, b, d, e = x.stride()
    windows = x.as_strided((n, c, kh, kw, oh, ow), (a, b, d * tall, e * wide, d * down, e * right))
    matrix, column = weight.flatten(1), None if bias is None else bias.unsqueeze(1)
    if n == 1:
        windows = windows.reshape(c * kh * kw, oh * ow)
        y = torch.mm(matrix, windows) if column is None else torch.addmm(column, matrix, windows)
    else:
        windows, matrix = windows.reshape(n, c * kh * kw, oh * ow), matrix.expand(n, -1, -1)
        y = torch.bmm(matrix, windows) if column is None else torch.baddbmm(column, matrix, windows)
    return y.view(n, -1, oh, ow)


def _pool(kernel: tuple[int, int], stride: tuple[int, int], x: Tensor) -> Tensor:
    return torch.max_pool2d(x, kernel, stride)


def _by_rows(kernel: tuple[int, int], stride: tuple[int, int], x: Tensor) -> Tensor:
    """Max pooling as the larger of whole rows, then of whole columns: no branches."""
    (kh, kw), (down, right) = kernel, stride
    if kernel == stride and x.dim() == 4:
        n, c, height, width = x.shape
        if height % kh == 0 == width % kw and height and width:
            x = reduce(torch.maximum, x.view(n, c, height // kh, kh, width).unbind(3))
            return reduce(torch.maximum, x.view(n, c, height // kh, width // kw, kw).unbind(4))
    high, wide = (x.shape[-2] - kh) // down * down + 1, (x.shape[-1] - kw) // right * right + 1
    if high < 1 or wide < 1:
        return _pool(kernel, stride, x)  # which says what is wrong
    x = reduce(torch.maximum, [x[..., i : i + high : down, :] for i in range(kh)])
    return reduce(torch.maximum, [x[..., i : i + wide : right] for i in range(kw)])


def _flatten(start: int, end: int, x: Tensor) -> Tensor:
    return x.flatten(start, end)


def _pair(value: Any) -> tuple[int, int]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def _conv_forms(layer: Any) -> list[Form]:
    if layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return [layer]
    settings = tuple(
        _pair(value) for value in (layer.stride, layer.padding, layer.dilation, layer.kernel_size)
    )
    return [partial(form, layer._parameters, settings) for form in (_conv, _windows)]


def _pool_forms(layer: Any) -> list[Form]:
    if (
        layer.return_indices
        or layer.ceil_mode
        or _pair(layer.padding) != (0, 0)
        or _pair(layer.dilation) != (1, 1)
    ):
        return [layer]
    return [
        partial(form, _pair(layer.kernel_size), _pair(layer.stride)) for form in (_pool, _by_rows)
    ]


_RULES: dict[type[nn.Module], Callable[[Any], list[Form]]] = {
    nn.Linear: lambda layer: [partial(_linear, layer._parameters)],
    nn.Conv2d: _conv_forms,
    nn.MaxPool2d: _pool_forms,
    nn.ReLU: lambda layer: [torch.relu],
    nn.Flatten: lambda layer: [partial(_flatten, layer.start_dim, layer.end_dim)],
    nn.Identity: lambda layer: [],
}
