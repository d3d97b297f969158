"""A private shell of the user's network: its own objects, the same tensors.

``functional_call`` on the caller's network is not thread-safe and puts the parameters back before
``backward`` runs, which breaks gradient checkpointing. A shell is a deep copy in which every tensor
is shared, so other tensors can be put in place of its parameters and stay there. The caller's
network is never touched.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from credo.core.errors import NetworkError
from credo.core.masks import DROPOUTS, Mask, mask_place
from credo.core.tree import tensors


def unwrap(net: nn.Module) -> nn.Module:
    """The plain network inside compiled and data-parallel wrappers; scripted and uninitialised ones
    are refused by name.
    """
    if not isinstance(net, nn.Module):
        raise NetworkError(f"Expected a torch.nn.Module as network, got {type(net).__name__}.")
    while True:
        if isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            net = net.module
        elif isinstance(getattr(net, "_orig_mod", None), nn.Module):
            net = net._orig_mod  # type: ignore[assignment]
        else:
            break
    for path, module in net.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise NetworkError(
                f"{path or type(module).__name__!r} is a scripted module; pass the Python module "
                "it was made from."
            )
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
            raise NetworkError(
                f"{name!r} is not initialised (a lazy module); run the network once on an example "
                "before passing it."
            )
    return net


class Shell:
    """A callable stand-in for ``net`` whose parameters and buffers can be replaced by name."""

    def __init__(self, net: nn.Module, device: torch.device | None = None) -> None:
        net = unwrap(net)
        memo: dict[int, Any] = {}
        for module in net.modules():
            _remember([module._parameters, module._buffers], memo, None)
        for module in net.modules():
            _remember(list(module.__dict__.values()), memo, device)
        try:
            self.module: nn.Module = copy.deepcopy(net, memo)
        except Exception as error:
            raise NetworkError(
                f"The network cannot be copied ({error}); remove the attribute that refuses "
                "deepcopy."
            ) from error
        for module in (
            self.module.modules()
        ):  # their shortcut of evaluation mode calls no dropout and cannot be vmapped
            if isinstance(module, nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = 0
            elif isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False
        self._noisy = False
        self._recurrent = [
            module for module in self.module.modules() if isinstance(module, nn.RNNBase)
        ]
        self._homes: dict[str, list[tuple[nn.Module, dict[str, Any], str]]] = {}
        first: dict[int, str] = {}
        for path, module in self.module.named_modules(remove_duplicate=False):
            for table in (module._parameters, module._buffers):
                for leaf, tensor in table.items():
                    if tensor is not None:
                        name = first.setdefault(id(tensor), f"{path}.{leaf}".lstrip("."))
                        self._homes.setdefault(name, []).append((module, table, leaf))

    def place(self, tensors: Mapping[str, Tensor]) -> None:
        """Put tensors where the named parameters and buffers were, at every place a tied one is
        used.
        """
        for name, tensor in tensors.items():
            if name not in self._homes:
                self._expose(name)
            for module, table, leaf in self._homes[name]:
                table[leaf] = tensor
                if isinstance(module, Mask):
                    module.calls = 0  # a pass begins
                if isinstance(module, nn.RNNBase) and leaf in module._flat_weights_names:
                    place = module._flat_weights_names.index(leaf)
                    module._flat_weights[place] = tensor  # type: ignore[assignment]

    def swap(self, path: str, module: nn.Module) -> None:
        """Put another module where the one at ``path`` is, wherever else the network holds it."""
        old = self.module.get_submodule(path)
        for parent in list(self.module.modules()):
            for leaf, child in parent._modules.items():
                if child is old:
                    parent._modules[leaf] = module

    def _expose(self, name: str) -> None:
        """Open the place of a dropout module's mask."""
        path, number = mask_place(name) or ("", 0)
        known = dict(self.module.named_modules())
        if type(known.get(path)) in DROPOUTS:
            self.swap(path, Mask())
        stand_in = dict(self.module.named_modules()).get(path)
        if not isinstance(stand_in, Mask) or stand_in.count != number:
            raise NetworkError(f"The network has no place for {name!r}.")
        self._homes[name] = [(stand_in, stand_in._buffers, stand_in.expose())]

    def placed(self, name: str) -> Tensor:
        """What is in the named place now."""
        _, table, leaf = self._homes[name][0]
        return table[leaf]

    def train(self, mode: bool, noisy_modules: Collection[str] = ()) -> None:
        """Training or evaluation mode of the shell alone; the modules at the paths in
        ``noisy_modules`` are in training mode either way.
        """
        if self.module.training != mode or noisy_modules or self._noisy:
            self.module.train(mode)
            self._noisy = bool(noisy_modules)
        for path, module in self.module.named_modules() if noisy_modules else ():
            module.training = mode or path in noisy_modules

    def width(self, x: Any, names: Collection[str]) -> int:
        """The most numbers that any module gives in a pass on ``x``, from the first that holds one
        of ``names`` on.
        """
        owners = {id(module) for name in names for module, _, _ in self._homes[name]}
        widest, met, handles = 0, False, []

        def enter(module: nn.Module, args: Any) -> None:
            nonlocal met
            met = met or id(module) in owners

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            nonlocal widest
            if met:
                widest = max([widest, *(t.numel() for t in tensors(output))])

        for module in self.module.modules():
            handles += [
                module.register_forward_pre_hook(enter),
                module.register_forward_hook(leave),
            ]
        try:
            self(x)
        finally:
            for handle in handles:
                handle.remove()
        return widest

    def __call__(self, x: Any) -> Any:
        """Run the network on ``x``: a tensor, a tuple of positional or a dict of keyword
        arguments.
        """
        if torch.is_grad_enabled() and any(not module.training for module in self._recurrent):
            with plain_recurrence():
                return self._run(x)
        return self._run(x)

    @property
    def recurrent(self) -> bool:
        """Whether the network has recurrent layers of torch."""
        return bool(self._recurrent)

    def _run(self, x: Any) -> Any:
        if isinstance(x, dict):
            return self.module(**x)
        if isinstance(x, (tuple, list)):
            return self.module(*x)
        return self.module(x)


@contextmanager
def plain_attention() -> Iterator[None]:
    """Attention without its shortcut of evaluation mode, which has neither a batching rule nor a
    derivative.
    """
    quick = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(quick)


@contextmanager
def plain_recurrence() -> Iterator[None]:
    """Recurrent layers without cuDNN, which has no derivative of evaluation mode and asks for the
    memory of weights that may have none.
    """
    quick = torch.backends.cudnn.enabled
    #: For convolutions beside them too, which are only slower without it.
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = quick


@contextmanager
def plain_kernels(shell: Shell) -> Iterator[None]:
    """Attention, recurrent layers and convolutions by kernels that have batching rules and
    derivatives of both kinds.
    """
    quick = torch.backends.mkldnn.enabled
    #: The context manager of the same name warns about a setting it does not change.
    torch.backends.mkldnn.enabled = False
    try:
        with (
            plain_attention(),
            sdpa_kernel(SDPBackend.MATH),
            plain_recurrence() if shell.recurrent else nullcontext(),
        ):
            yield
    finally:
        torch.backends.mkldnn.enabled = quick


def _remember(value: Any, memo: dict[int, Any], device: torch.device | None) -> None:
    """Have deepcopy share every tensor it would meet; plain tensor attributes move to
    ``device``.
    """
    if isinstance(value, Tensor):
        memo.setdefault(id(value), value if device is None else value.to(device))
    elif isinstance(value, dict):
        for item in value.values():
            _remember(item, memo, device)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _remember(item, memo, device)


def pick(output: Any, key: str | int | None) -> Tensor:
    """The tensor of a network's output that the likelihood sees."""
    if key is not None:
        try:
            output = (
                output[key]
                if not isinstance(key, str) or isinstance(output, Mapping)
                else getattr(output, key)
            )
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            raise NetworkError(
                f"The network's output has no entry {key!r} ({type(output).__name__})."
            ) from error
    if isinstance(output, Tensor):
        return output.unsqueeze(-1) if output.dim() == 1 else output
    kinds = list(output) if isinstance(output, Mapping) else type(output).__name__
    raise NetworkError(
        f"The network returns {kinds}, not one tensor; say which part with output=, e.g. "
        "output='logits'."
    )
