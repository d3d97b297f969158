"""Inputs and targets in standardised units, and networks that know only those.

A model whose data are standardised is one of z = (x - mean) / sd and v = (y - mean) / sd. Whatever
leaves it is in the units of x and y again: f(x) = y_mean + y_sd g(z), and log p(y) = log p(v) -
sum_d log y_sd_d.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from credo.core.errors import DataError, NetworkError

OFFSET = 1e4  # times its sd, from which on single precision would blur a target


@final
@dataclass(frozen=True)
class Standardised:
    """Means and standard deviations ``(D,)`` in double precision: of inputs and of targets, or None
    for those that are left as they are. Constant columns count as having an sd of 1.
    """

    x_mean: Tensor | None = None
    x_std: Tensor | None = None
    y_mean: Tensor | None = None
    y_std: Tensor | None = None

    def inputs(self, x: Any, dtype: torch.dtype | None) -> Any:
        """x in standardised units, computed in double precision; ``dtype``: of the result."""
        if self.x_mean is None or self.x_std is None:
            return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
        if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[1] != len(self.x_mean):
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise DataError(
                f"x is {shape}; the model standardises its inputs and takes one tensor (N, "
                f"{len(self.x_mean)})."
            )
        mean, std = self.x_mean.to(x.device), self.x_std.to(x.device)
        return ((x.double() - mean) / std).to(dtype)

    def raw_inputs(self, z: Any) -> Any:
        """x of inputs in standardised units."""
        if self.x_mean is None or self.x_std is None:
            return z
        return z.double() * self.x_std.to(z.device) + self.x_mean.to(z.device)

    def targets(self, y: Tensor, dtype: torch.dtype | None) -> Tensor:
        """y in standardised units, in its own shape."""
        if self.y_mean is None or self.y_std is None:
            return y.to(dtype) if y.is_floating_point() else y
        mean, std = self.y_mean.to(y.device), self.y_std.to(y.device)
        return ((y.double().reshape(len(y), -1) - mean) / std).to(dtype).reshape(y.shape)

    def outputs(self, outputs: Tensor) -> Tensor:
        """Outputs ``(..., F)`` in the units of y: of those, the first D lie at y; in double
        precision where an offset would otherwise blur them.
        """
        if self.y_mean is None or self.y_std is None:
            return outputs
        far = bool((self.y_mean.abs() > OFFSET * self.y_std).any())
        return self.moved(outputs.double() if far else outputs)

    def moved(self, like: Tensor) -> Tensor:
        """The same in the outputs' own type, without branches that values decide."""
        if self.y_mean is None or self.y_std is None:
            return like
        if like.dim() == 1:  # of a single target, as the network gave them
            return self.y_mean.to(like) + self.y_std.to(like) * like
        count = len(self.y_mean)
        own = self.y_mean.to(like) + self.y_std.to(like) * like[..., :count]
        return torch.cat([own, like[..., count:]], -1) if like.shape[-1] > count else own

    def told(self, outputs: Tensor, likelihood: Any) -> tuple[Tensor, Any]:
        """Outputs and the likelihood over them in the units of y."""
        if self.y_std is None:
            return outputs, likelihood
        return self.outputs(outputs), likelihood.in_units(self.y_std.to(outputs.device))

    @property
    def log_volume(self) -> float:
        """sum_d log y_sd_d: what the log density of one y is smaller by than that of its v."""
        return 0.0 if self.y_std is None else float(self.y_std.log().sum())

    @property
    def parts(self) -> list[str]:
        """What is standardised."""
        return [
            name
            for name, std in (("inputs", self.x_std), ("targets", self.y_std))
            if std is not None
        ]

    def tensors(self) -> dict[str, Tensor]:
        """As they are stored."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The inverse of ``tensors``."""
        return cls(**{name: tensor.clone() for name, tensor in tensors.items()})


@final
class Enter:
    """A hook in front of a network: x to standardised units."""

    def __init__(self, units: Standardised) -> None:
        self.units = units

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The first argument changes."""
        x, *others = args
        return entered(self.units, x, module), *others


@final
class Leave:
    """A hook behind a network: outputs to the units of y."""

    def __init__(self, units: Standardised) -> None:
        self.units = units

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """In the network's own precision."""
        return left(self.units, output)


def entered(units: Standardised | None, x: Any, net: nn.Module) -> Any:
    """z of x in the type of the network's parameters; x itself without units."""
    if units is None or units.x_mean is None or units.x_std is None:
        return x
    kinds = (p.dtype for p in net.parameters() if p.is_floating_point())
    mean, std = units.x_mean.to(x.device), units.x_std.to(x.device)
    return ((x.double() - mean) / std).to(next(kinds, x.dtype))


def left(units: Standardised, output: Any) -> Any:
    """Outputs in the units of y and in their own type."""
    if units.y_std is None:
        return output
    if not isinstance(output, Tensor):
        raise NetworkError(
            f"The network gives a {type(output).__name__}, of which no part is known to be in the "
            "units of the targets; export the part that counts."
        )
    return units.moved(output.double()).to(output.dtype)


def with_units(net: nn.Module, units: Standardised | None) -> nn.Module:
    """The same module, which is credo's own copy, taking x and giving outputs in their own units;
    its parameters keep their names.
    """
    if units is None:
        return net
    if isinstance(net, torch.fx.GraphModule):
        raise NetworkError(
            "The model standardises its data, and copies of a torch.fx.GraphModule lose what does "
            "that; build the BNN with the plain module, or with standardise=False."
        )
    net.register_forward_pre_hook(Enter(units))
    net.register_forward_hook(Leave(units))
    return net


def units_of(net: nn.Module) -> Standardised | None:
    """What ``with_units`` gave a network, if anything."""
    if isinstance(net, OwnUnits):
        return net.units
    return next((h.units for h in net._forward_pre_hooks.values() if isinstance(h, Enter)), None)


def without_units(net: nn.Module) -> nn.Module:
    """A copy that knows standardised units alone, or the network itself where it has no others."""
    if isinstance(net, OwnUnits):
        return net.net
    if units_of(net) is None:
        return net
    bare = copy.deepcopy(net)
    for hooks in (bare._forward_pre_hooks, bare._forward_hooks):
        for key in [k for k, hook in hooks.items() if isinstance(hook, (Enter, Leave))]:
            del hooks[key]
    return bare


@final
class OwnUnits(nn.Module):
    """A network ``net`` of standardised units, taking x and giving outputs in their own."""

    def __init__(self, net: nn.Module, units: Standardised) -> None:
        super().__init__()
        self.net = net
        for name, tensor in units.tensors().items():
            self.register_buffer(name, tensor)

    @property
    def units(self) -> Standardised:
        """Means and deviations as they are now."""
        return Standardised.of(dict(self.named_buffers(recurse=False)))

    def forward(self, x: Tensor) -> Tensor:
        """y_mean + y_sd net((x - x_mean) / x_sd)."""
        units = Standardised(**dict(self.named_buffers(recurse=False)))
        return left(units, self.net(entered(units, x, self.net)))


def in_own_units(net: nn.Module, units: Standardised | None) -> nn.Module:
    """A network around this one, in evaluation mode, or this one where there is nothing to do."""
    return net if units is None else OwnUnits(net, units).eval()
