"""A normalizing flow over some parameters: w = mean + std * T(z) with z standard normal and T a
stack of couplings.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credo.core.errors import SettingError
from credo.core.seeds import Noise, Streams
from credo.core.sites import FlatLayout
from credo.posteriors.family import Draw, Family, Params, families

_KINDS = {"affine": "MAF", "spline": "NSF"}


def flows_of(owner: str) -> Any:
    """zuko's module of flows. Its import switches off the validation of every torch distribution,
    which is put back.
    """
    if importlib.util.find_spec("zuko") is None:
        raise SettingError(f"{owner} needs the package 'zuko': pip install 'credo-bayes[flows]'.")
    names = ("_validate_args", "arg_constraints")
    before = {name: vars(Distribution)[name] for name in names}
    try:
        import zuko.flows
    finally:
        for name, value in before.items():
            setattr(Distribution, name, value)
    return zuko.flows


@families.register("flow")
class Flow(Family):
    """Couplings from zuko, so that both directions cost two passes through small networks.

    Its mean has no closed form: ``mean()`` averages 1,000 draws from a fixed stream.
    """

    name: ClassVar[str] = "flow"

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        kind: str = "affine",
        transforms: int = 3,
        hidden: int = 64,
        dtype: str = "float32",
    ) -> None:
        super().__init__(shapes)
        flows = flows_of("A flow posterior")
        self.layout, self.arguments = (
            FlatLayout(self.shapes),
            {"kind": kind, "transforms": transforms, "hidden": hidden},
        )
        if self.layout.numel < 2:
            raise SettingError("A flow needs at least two weights to couple; choose more layers.")
        make = getattr(flows, _KINDS[kind])
        number = getattr(torch, dtype)
        self.transform = make(
            self.layout.numel, transforms=transforms, passes=2, hidden_features=(hidden,)
        ).transform.to(number)
        self.shift = nn.Parameter(torch.zeros(self.layout.numel, dtype=number))
        self.log_scale = nn.Parameter(torch.zeros(self.layout.numel, dtype=number))

    @classmethod
    def start(
        cls,
        values: Mapping[str, Tensor],
        init_std: float = 1e-2,
        kind: str = "affine",
        transforms: int = 3,
        hidden: int = 64,
    ) -> Flow:
        """Centred at ``values`` with spread near ``init_std``; the transforms start from the global
        generator.
        """
        flat = (
            FlatLayout({name: value.shape for name, value in values.items()}).join(values).detach()
        )
        dtype = str(flat.dtype).removeprefix("torch.")
        family = cls({n: v.shape for n, v in values.items()}, kind, transforms, hidden, dtype).to(
            flat.device
        )
        with torch.no_grad():
            family.shift.copy_(flat)
            family.log_scale.fill_(torch.tensor(init_std).log())
        return family

    def begin(self, noise: Noise, fold: Any = None) -> FlowDraw:
        """Draw z and push it through."""
        return FlowDraw(self, noise)

    def mean(self) -> Params:
        """Average of draws."""
        with torch.no_grad():
            return {
                name: value.mean(0) for name, value in self.draw(Streams(0, range(1000))).items()
            }

    def push(self, z: Tensor) -> Tensor:
        """w of z."""
        return self.shift + self.log_scale.exp() * self.transform()(z)

    def log_prob(self, latents: Params) -> Tensor:
        """Log density by the change of variables."""
        white = (self.layout.join(latents) - self.shift) / self.log_scale.exp()
        z, ladj = self.transform().inv.call_and_ladj(white)
        normal = torch.distributions.Normal(torch.zeros_like(self.shift), 1.0, validate_args=False)
        return normal.log_prob(z).sum(-1) + ladj - self.log_scale.sum()

    def config(self) -> dict[str, Any]:
        """Shapes, kind and sizes of the transforms, dtype."""
        return (
            super().config()
            | self.arguments
            | {"dtype": str(self.shift.dtype).removeprefix("torch.")}
        )


class FlowDraw(Draw):
    """One pass of a :class:`Flow`."""

    def __init__(self, family: Flow, noise: Noise) -> None:
        z = noise.normal(family.names[0], (family.layout.numel,), family.shift)
        self.params = family.layout.split(family.push(z))

    def weights(self, names: Iterable[str]) -> Params:
        """The draw."""
        return {name: self.params[name] for name in names}
