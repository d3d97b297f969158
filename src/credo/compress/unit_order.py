"""Hidden units sorted, so that the file is shorter; the network's function does not depend on their
order.

Units of a hidden layer may be permuted: rows of its weight, its bias and normalisation, and the
columns of the next weight that read them. Sorted by how many nonzeros they have, the empty ones
come last and only the drops from one to the next are written
(:mod:`credo.compress.position_coding`).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from credo.compress.quantised import Entry, Quantised, check_state
from credo.core.errors import NetworkError

_MIXING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CHANNELWISE = (  # modules that treat every channel alike and by itself
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
    _check_chain(chain)
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
            names = [name for name in (weight, f"{path}bias") if name in entries]
        elif isinstance(module, _NORMS):
            names = [n for n in entries if n.startswith(path) and entries[n].numel > 1]
        else:
            names = []
        for name in names:
            if order is not None:
                entries[name] = _permuted(entries[name], order, 0)
    return Quantised(entries, quantised.units)


def _leaves(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Modules in the order they run, with the prefix of their tensors' names."""
    if type(module) is not nn.Sequential:
        yield path, module
        return
    for name, child in module._modules.items():  # named_children leaves out repeated modules
        assert child is not None
        yield from _leaves(child, f"{path}{name}.")


def _check_chain(chain: list[tuple[str, nn.Module]]) -> None:
    """Refuse what is no chain, naming the first module that breaks it."""
    visited: set[int] = set()
    # of the last layer: its outputs, whether they have positions, whether those were flattened
    units, spatial, flattened = None, None, False
    for path, module in chain:
        why = _objection(module, units, spatial, flattened) or (
            "it is used twice" if id(module) in visited and list(module.parameters()) else ""
        )
        if why:
            name = path.rstrip(".") or "the network"
            raise NetworkError(
                f"Units can be sorted in a chain of layers only, not around {name}: {why}. Write "
                "the codes as they are."
            )
        if isinstance(module, _MIXING):
            units, spatial = module.weight.shape[0], not isinstance(module, nn.Linear)
            flattened = False
        elif isinstance(module, nn.Flatten):
            spatial, flattened = False, flattened or spatial is True
        visited.add(id(module))


def _objection(module: nn.Module, units: int | None, spatial: bool | None, flattened: bool) -> str:
    """Why a module after such units breaks a chain; empty where it does not."""
    if type(module) not in (*_MIXING, *_NORMS, *_CHANNELWISE, *_POOLS):
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
    if units is not None and sizes and (sizes[0] % units if flattened else sizes[0] != units):
        return f"it reads {sizes[0]} numbers where {units} units come in"
    return ""


def _fullest_first(entry: Entry) -> Tensor:
    """Rows by falling number of nonzeros; equal ones stay in order."""
    rows = entry.stored.reshape(len(entry.stored), -1)
    return rows.count_nonzero(1).argsort(descending=True, stable=True)


def _permuted(entry: Entry, order: Tensor, axis: int) -> Entry:
    """Units along an axis in another order; an axis with several entries per unit, as after
    flattening, keeps those together.
    """

    def moved(values: Tensor) -> Tensor:
        shape = values.shape
        parts = values.reshape(*shape[:axis], len(order), -1)
        return parts.index_select(axis, order).reshape(shape)

    return entry.rearranged(moved)
