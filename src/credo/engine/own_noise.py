"""What noise a network has of its own: its dropout modules, the weights that read them, and
whatever else is random in training mode.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from credo.core.errors import NetworkError
from credo.core.masks import DROPOUTS, dropouts, mask_name
from credo.core.seeds import isolated
from credo.core.shell import Shell
from credo.core.tree import map_tensors, num_rows, one_more, tensors
from credo.engine.model import Model
from credo.estimators.plan import example_axis


class OwnMasks(NamedTuple):
    """Masks of dropout modules: their shapes, the modules' rates, and which mask each weight reads
    its inputs through.
    """

    shapes: dict[str, tuple[int, ...]]
    rates: dict[str, float]
    feeds: dict[str, str]


class _Call(NamedTuple):
    path: str
    shape: torch.Size


class _Recorder(nn.Module):
    """Stands for a dropout module in a dry run: notes the call and marks what it gives."""

    def __init__(self, path: str, calls: list[_Call], marked: type[Tensor]) -> None:
        super().__init__()
        self.path, self.calls, self.marked = path, calls, marked

    def forward(self, x: Tensor) -> Tensor:
        """x itself, marked."""
        number = sum(call.path == self.path for call in self.calls)
        self.calls.append(_Call(self.path, x.shape))
        out = x.clone().as_subclass(self.marked)
        out.mark = mask_name(self.path, number)  # type: ignore[attr-defined]
        return out


def own_masks(model: Model, x: Any, shared: bool) -> OwnMasks:
    """The masks of the network's dropout modules, found by dry runs on ``x`` with B and B + 1
    examples.

    One entry per unit: over all axes but the examples', one for a whole channel where the module
    says so, and one for all positions of a sequence (three axes) if they are ``shared``; otherwise
    a module on sequences is left to draw for itself.
    """
    known = dropouts(model.net).items()
    paths = {path: module for path, module in known if module.p > 0}  # type: ignore[operator]
    for path, module in paths.items():
        if module.p >= 1:  # type: ignore[operator]
            raise NetworkError(
                f"The dropout module {path!r} drops everything (p = 1); expected a rate below 1."
            )
    if not paths:
        return OwnMasks({}, {}, {})
    first, feeds = _calls(model, list(paths), x)
    second, _ = _calls(model, list(paths), one_more(x))
    if [call.path for call in first] != [call.path for call in second]:
        raise NetworkError(
            "The network calls its dropout modules in an order that depends on the data; credo "
            "cannot place their masks."
        )
    size = num_rows(x)
    shapes, rates, count = {}, {}, dict.fromkeys(paths, 0)
    for one, two in zip(first, second, strict=True):
        name, module = mask_name(one.path, count[one.path]), paths[one.path]
        count[one.path] += 1
        axis = example_axis([one.shape], [two.shape], size)
        if axis is None:
            raise NetworkError(
                f"The dropout module {one.path!r} is applied to {tuple(one.shape)}, which has no "
                f"axis of {size} examples; "
                "method='stochastic' takes the network's noise as it is."
            )
        shape = [1 if place == axis else length for place, length in enumerate(one.shape)]
        tail = DROPOUTS[type(module)]
        if tail:
            shape[-tail:] = [1] * tail
        elif len(shape) == 3:
            series = any(
                mask == name and len(model.sites[w].shape) == 3 for w, mask in feeds.items()
            )  # a convolution reads (B, C, L)
            shape = [1, shape[1], 1] if series and axis == 0 else [1, 1, shape[2]]
        if shared or tail or len(shape) != 3:
            shapes[name], rates[name] = tuple(shape), float(module.p)  # type: ignore[arg-type]
    whole = {
        path for path in paths if all(mask_name(path, k) in shapes for k in range(count[path]))
    }
    shapes = {n: s for n, s in shapes.items() if n.rpartition(".")[0] in whole}
    return OwnMasks(
        shapes,
        {n: rates[n] for n in shapes},
        {w: m for w, m in feeds.items() if m in shapes and w in model.sites},
    )


def _calls(model: Model, paths: list[str], x: Any) -> tuple[list[_Call], dict[str, str]]:
    """The calls of dropout modules in one pass, and the mask whose units each weight reads."""
    shell = _masked_shell(model)
    shell.train(False)
    weights = {id(shell.placed(n)): n for n, s in model.sites.items() if s.in_axis is not None}
    calls: list[_Call] = []
    feeds: dict[str, str] = {}

    class Marked(Tensor):
        """Units of one mask, through operations on them alone; a weight that meets them reads them,
        anything else mixes them up.
        """

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            leaves = tensors((args, kwargs or {}))
            with torch._C.DisableTorchFunctionSubclass():
                out = func(*args, **(kwargs or {}))
            marks = {str(t.mark) if isinstance(t, cls) else "" for t in leaves}  # type: ignore
            read = next((weights[id(t)] for t in leaves if id(t) in weights), None)
            if read is not None:
                feeds.setdefault(read, max(marks))
            mark = max(marks) if len(marks) == 1 and read is None else None
            return map_tensors(lambda t: _marked(t, cls, mark), out)

    for path in paths:
        shell.swap(path, _Recorder(path, calls, Marked))
    with torch.no_grad(), isolated(0, model.device):
        shell(x)
    return calls, feeds


def _marked(t: Tensor, kind: type[Tensor], mark: str | None) -> Tensor:
    if mark is None:
        return t.as_subclass(Tensor)
    out = t.as_subclass(kind)
    out.mark = mark  # type: ignore[attr-defined]
    return out


def _masked_shell(model: Model) -> Shell:
    """A shell of its own, with the network's values on the model's device."""
    shell = Shell(model.net, model.device)
    shell.place(model.frozen())
    shell.place(model.values())
    shell.place(model.buffers())
    return shell


def modules_without_norms(net: nn.Module) -> tuple[str, ...]:
    """Paths of all modules but those that normalise by batches: in training mode they run as they
    train.
    """
    return tuple(
        path for path, module in net.named_modules() if not isinstance(module, _BATCH_NORMS)
    )


_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def is_random(
    model: Model, x: Any, masks: OwnMasks, noisy_modules: tuple[str, ...] | None = None
) -> bool:
    """Whether two passes in training mode differ, with the known masks held still and batch
    statistics out of the way.

    A network whose noise is part of what it says of the data, not of its weights, has a method
    ``hold`` that stills it for good.
    """
    shell = _masked_shell(model)
    if callable(getattr(shell.module, "hold", None)):
        shell.module.hold()  # type: ignore[operator]
    like = next(iter(model.values().values()))
    shell.place({name: like.new_ones(shape) for name, shape in masks.shapes.items()})
    shell.train(False, modules_without_norms(model.net) if noisy_modules is None else noisy_modules)
    outputs = []
    with torch.no_grad():
        for seed in range(8):  # a module that acts rarely still shows
            with isolated(seed, model.device):
                outputs.append(model.outputs(shell, x))
    return not all(torch.equal(outputs[0], other) for other in outputs[1:])
