"""Multilayer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError, nearest
from credo.core.settings import check_sizes, renamed


class Erf(nn.Module):
    """erf(x) elementwise: bounded and odd like tanh, with closed-form expectations under a
    Gaussian.
    """

    def forward(self, x: Tensor) -> Tensor:
        """As many numbers between -1 and 1."""
        return torch.special.erf(x)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "leaky_relu": nn.LeakyReLU,
    "erf": Erf,
}


def mlp(
    in_features: int,
    hidden: Sequence[int] = (50, 50),
    out_features: int = 1,
    activation: str = "relu",
) -> nn.Sequential:
    """A perceptron with biases: ``(N, in_features) -> (N, out_features)``, no nonlinearity after
    the last layer.

    An empty ``hidden`` gives a linear map. Unknown activations and sizes below 1 are refused.
    """
    if activation not in ACTIVATIONS:
        raise SettingError(
            f"mlp: unknown activation {activation!r}.{nearest(activation, ACTIVATIONS)}"
        )
    check_sizes("mlp", in_features=in_features, out_features=out_features)
    layers: list[nn.Module] = []
    width = in_features
    for place, size in enumerate(hidden):
        check_sizes("mlp", **{f"hidden[{place}]": size})
        layers += [nn.Linear(width, size), ACTIVATIONS[activation]()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, out_features))


@renamed(num_classes="outputs")
def lenet_300_100(outputs: int = 10) -> nn.Sequential:
    """The 784-300-100-10 perceptron of the pruning literature; takes ``(N, 784)`` or images ``(N,
    1, 28, 28)``.
    """
    check_sizes("lenet_300_100", outputs=outputs)
    return nn.Sequential(nn.Flatten(), *mlp(784, (300, 100), outputs))
