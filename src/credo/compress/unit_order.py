"""The order of hidden units, which a network's function does not depend on, chosen so that its file
is shorter.

Units of a hidden layer may be permuted: rows of its weight, its bias and normalisation, and the
columns of the next weight that read them. Sorted by how many nonzeros they have, the empty ones
come last and only the drops from one to the next are written (:mod:`credo.compress.weight_coding`).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from credo.compress.quantised import Coded, Entry, Quantised, Raw, check_state
from credo.core.errors import NetworkError

_MIXING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_APART = (  # modules that treat every channel alike and by itself
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Softplus,
    nn.Tanh,
    nn.Sigmoid,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.Flatten,
)
_POOLS = (
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
)


def with_sorted_units(quantised: Quantised, net: nn.Module) -> Quantised:
    """The same function, up to the order in which sums are rounded, with the units of every hidden
    layer sorted, fullest first.

    ``net`` must be a chain: an ``nn.Sequential``, nested or not, of linear and convolutional layers
    and of modules that treat channels one by one. Anything else is refused, since only a chain
    shows which columns read which units.
    """
    check_state(quantised.entries, net)
    chain = list(_leaves(net, ""))
    _check(chain)
    entries = dict(quantised.entries)
    order: Tensor | None = None
    last = max(
        (place for place, (_, module) in enumerate(chain) if isinstance(module, _MIXING)), default=0
    )
    for place, (path, module) in enumerate(chain):
        weight = f"{path}weight"
        if isinstance(module, _MIXING):
            if order is not None:
                entries[weight] = _permuted(entries[weight], order, 1)
            order = _fullest_first(entries[weight]) if place < last else None
            names = (
                [name for name in (weight, f"{path}bias") if name in entries]
                if order is not None
                else []
            )
        else:
            names = (
                [name for name in entries if name.startswith(path) and entries[name].numel > 1]
                if isinstance(module, _NORMS)
                else []
            )
        for name in names:
            if order is not None:
                entries[name] = _permuted(entries[name], order, 0)
    return Quantised(entries)


def _leaves(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Modules in the order they run, with the front part of their tensors' names."""
    if type(module) is not nn.Sequential:
        yield path, module
        return
    for (
        name,
        child,
    ) in module._modules.items():  # named_children leaves out what comes a second time
        assert child is not None
        yield from _leaves(child, f"{path}{name}.")


def _check(chain: list[tuple[str, nn.Module]]) -> None:
    """Refuse what is no chain, naming the first module that breaks it."""
    seen: set[int] = set()
    units, spatial, several = (
        None,
        None,
        False,
    )  # of the last layer: its outputs, whether positions follow them, whether those were flattened
    for path, module in chain:
        why = _trouble(module, units, spatial, several) or (
            "it is used twice" if id(module) in seen and list(module.parameters()) else ""
        )
        if why:
            name = path.rstrip(".") or "the network"
            raise NetworkError(
                f"Units can be sorted in a chain of layers only, not around {name}: {why}. Write "
                "the codes as they are."
            )
        if isinstance(module, _MIXING):
            units, spatial, several = (
                module.weight.shape[0],
                not isinstance(module, nn.Linear),
                False,
            )
        elif isinstance(module, nn.Flatten):
            spatial, several = False, several or spatial is True
        seen.add(id(module))


def _trouble(module: nn.Module, units: int | None, spatial: bool | None, several: bool) -> str:
    """Why a module after such units breaks a chain, or nothing."""
    if type(module) not in (*_MIXING, *_NORMS, *_APART, *_POOLS):
        return f"it is a {type(module).__name__}, which may mix units"
    if getattr(module, "groups", 1) != 1:
        return f"it has {module.groups} groups"
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1):
        return f"it flattens axes {module.start_dim} to {module.end_dim} instead of 1 to -1"
    linear = isinstance(module, nn.Linear)
    if spatial and linear:
        return "it reads positions, since nothing flattens them before"
    if spatial is False and not linear and isinstance(module, (*_POOLS, *_MIXING)):
        return "it reads units as positions"
    sizes = [
        getattr(module, name)
        for name in ("in_features", "in_channels", "num_features")
        if hasattr(module, name)
    ]
    if units is not None and sizes and (sizes[0] % units if several else sizes[0] != units):
        return f"it reads {sizes[0]} numbers where {units} units come in"
    return ""


def _fullest_first(entry: Entry) -> Tensor:
    """Rows by falling number of nonzeros; ties stay as they are."""
    values = entry.codes if isinstance(entry, Coded) else entry.values
    return values.reshape(len(values), -1).count_nonzero(1).argsort(descending=True, stable=True)


def _permuted(entry: Entry, order: Tensor, axis: int) -> Entry:
    """Units along an axis in another order; an axis with several entries per unit, as after
    flattening, keeps those together.
    """

    def moved(values: Tensor) -> Tensor:
        shape = values.shape
        parts = values.reshape(*shape[:axis], len(order), -1)
        return parts.index_select(axis, order).reshape(shape)

    return (
        Coded(moved(entry.codes), entry.book)
        if isinstance(entry, Coded)
        else Raw(moved(entry.values))
    )
