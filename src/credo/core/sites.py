"""Which parameters of a network are random, what is known about each, and how several lie in one
vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from credo.core.errors import NetworkError, SettingError, nearest

LINEAR_MODULES = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Embedding,
)


def is_deep(sites: Iterable[Site]) -> bool:
    """Whether there are weights of more than one layer."""
    return sum(len(site.shape) >= 2 for site in sites) > 1


@dataclass(frozen=True)
class Site:
    """One parameter of the network.

    ``partner`` is the weight a bias belongs to; the two are drawn together or not at all.
    ``fan_in`` is the number of inputs summed into one unit (1 for biases, scales and embeddings).
    ``groups`` is the owning convolution's. ``in_axis`` is the axis of a weight along which its
    input units lie (the words of an embedding); None where there is none, or none is known.
    """

    name: str
    module: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    fan_in: int
    linear: bool = False
    transposed: bool = False
    groups: int = 1
    partner: str | None = None
    aliases: tuple[str, ...] = ()
    in_axis: int | None = None

    @property
    def numel(self) -> int:
        """How many numbers the parameter holds."""
        return math.prod(self.shape)


def sites_of(net: nn.Module) -> dict[str, Site]:
    """Every trainable parameter, tied ones once with their other names as aliases."""
    names: dict[int, list[str]] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    modules = dict(net.named_modules(remove_duplicate=False))
    out = {}
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad:
            continue
        path, _, leaf = name.rpartition(".")
        owner = modules[path]
        linear = isinstance(owner, LINEAR_MODULES)
        transposed = isinstance(owner, nn.modules.conv._ConvTransposeNd)
        is_weight = linear and leaf == "weight"
        groups = getattr(owner, "groups", 1) if linear else 1
        partner = f"{path}.weight".lstrip(".") if linear and leaf == "bias" else None
        out[name] = Site(
            name=name,
            module=path,
            shape=parameter.shape,
            dtype=parameter.dtype,
            device=parameter.device,
            fan_in=_fan_in(owner, parameter.shape, groups, transposed),
            linear=is_weight,
            transposed=transposed,
            groups=groups if isinstance(groups, int) else 1,
            partner=partner,
            aliases=tuple(names[id(parameter)][1:]),
            in_axis=_in_axis(owner, leaf, len(parameter.shape)),
        )
    return out


def _in_axis(owner: nn.Module, leaf: str, ndim: int) -> int | None:
    """Where a module of torch keeps its input units; other modules' parameters mean what their
    authors say.
    """
    if ndim < 2:
        return None
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag, nn.modules.conv._ConvTransposeNd)):
        return 0
    known = isinstance(owner, LINEAR_MODULES) and leaf == "weight"
    recurrent = isinstance(owner, (nn.RNNBase, nn.RNNCellBase)) and leaf.startswith("weight")
    attention = isinstance(owner, nn.MultiheadAttention) and leaf.endswith("proj_weight")
    return 1 if known or recurrent or attention else None


def _fan_in(owner: nn.Module, shape: Sequence[int], groups: int, transposed: bool) -> int:
    if len(shape) < 2 or isinstance(owner, nn.Embedding):
        return 1
    if transposed:
        return shape[0] // groups * math.prod(shape[2:])
    return math.prod(shape[1:])


def select(net: nn.Module, random: Any) -> tuple[dict[str, Site], dict[str, Site]]:
    """Split the trainable parameters into (random, point) by ``random``.

    ``"all"`` every trainable parameter; ``"weights"`` those with two or more axes; ``"last"`` the
    last module that owns parameters; fnmatch patterns over names (``"*.weight"``, one or a
    sequence); or module types. Frozen parameters are neither: they stay as they are.
    """
    sites = sites_of(net)
    if not sites:
        raise NetworkError(
            "The network has no trainable parameter; credo needs at least one with "
            "requires_grad=True."
        )
    chosen = choose(net, random, sites)
    return {n: s for n, s in sites.items() if n in chosen}, {
        n: s for n, s in sites.items() if n not in chosen
    }


def choose(
    net: nn.Module, random: Any, sites: dict[str, Site], setting: str = "random"
) -> set[str]:
    """Names among ``sites`` that ``random`` selects, at least one; errors speak of it by the name
    of the ``setting`` it came as.
    """
    items = (
        list(random)
        if isinstance(random, Iterable) and not isinstance(random, (str, type))
        else [random]
    )
    chosen: set[str] = set()
    for item in items:
        if item == "all":
            chosen |= set(sites)
        elif item == "weights":
            chosen |= {n for n, s in sites.items() if len(s.shape) >= 2}
        elif item == "last":
            last = list(sites.values())[-1].module
            chosen |= {n for n, s in sites.items() if s.module == last}
        elif isinstance(item, type) and issubclass(item, nn.Module):
            paths = {path for path, module in net.named_modules() if isinstance(module, item)}
            chosen |= {n for n, s in sites.items() if s.module in paths}
        elif isinstance(item, str):
            hits = {
                n
                for n, s in sites.items()
                if any(fnmatchcase(alias, item) for alias in (n, *s.aliases))
            }
            if not hits:
                raise SettingError(
                    f"{setting}: the pattern {item!r} matches no parameter.{nearest(item, sites)}"
                )
            chosen |= hits
        else:
            raise SettingError(
                f"{setting}={item!r}; expected 'all', 'weights', 'last', a name pattern or a "
                "module type."
            )
    if not chosen:
        raise SettingError(
            f"{setting}={random!r} selects no parameter.{nearest(str(random), sites)}"
        )
    return chosen


def blocks(sites: Iterable[Site]) -> list[list[Site]]:
    """Group a weight and its bias; every other parameter is a block by itself."""
    sites = list(sites)
    by_name = {site.name: site for site in sites}
    grouped: dict[str, list[Site]] = {}
    for site in sites:
        head = site.partner if site.partner in by_name else site.name
        grouped.setdefault(head or site.name, []).append(site)
    return [sorted(group, key=lambda s: s.partner is not None) for group in grouped.values()]


def by_dtype(sites: Mapping[str, Site]) -> list[list[Site]]:
    """Sites of one type each, since a posterior family holds its numbers in one tensor."""
    kinds: dict[torch.dtype, list[Site]] = {}
    for site in sites.values():
        kinds.setdefault(site.dtype, []).append(site)
    return list(kinds.values())


class FlatLayout:
    """Shapes by name, and where each lies: one kernel serves them all, instead of one each."""

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self.shapes = dict(shapes)
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.numel = sum(self.sizes)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views by name; leading axes of ``flat`` stay in front."""
        lead = flat.shape[:-1]
        pieces = flat.split_with_sizes(self.sizes, -1)
        return {
            name: piece.reshape((*lead, *shape))
            for piece, (name, shape) in zip(pieces, self.shapes.items(), strict=True)
        }

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The flat vector of tensors that may have leading axes."""
        return torch.cat(
            [
                tensors[n].flatten(tensors[n].dim() - len(shape))
                if len(shape)
                else tensors[n].unsqueeze(-1)
                for n, shape in self.shapes.items()
            ],
            -1,
        )
