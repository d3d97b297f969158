"""Networks by name, so that a JSON description ``{"name": ..., "args": ...}`` builds the same
network again.

Arguments have one name each. ``in_features``: numbers per example of flat inputs; ``channels``:
those of input images (of ``small_cnn``, ``in_channels``); ``outputs``: numbers per example that
come out (of ``mlp``, ``out_features``); ``hidden``: sizes of dense hidden layers, or of a recurrent
state; ``widths``: channels of successive convolutions; ``width``: the one number that all sizes of
a network follow from; ``depth``, ``layers``: how many layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from credo.core.errors import SettingError
from credo.core.registry import Registry
from credo.core.settings import other_arguments
from credo.core.synonyms import suggest
from credo.nets.char_lstm import char_lstm
from credo.nets.cnn import small_cnn
from credo.nets.coders import conv_decoder, conv_encoder, mlp_decoder, mlp_encoder
from credo.nets.lenet import lenet5_caffe
from credo.nets.lstm import lstm_classifier
from credo.nets.mlp import lenet_300_100, mlp
from credo.nets.resnet import resnet
from credo.nets.resnet50 import resnet50
from credo.nets.transformer import transformer_classifier
from credo.nets.vgg import vgg

catalogue: Registry[Callable[..., nn.Module]] = Registry(
    "network",
    {
        "char_lstm": char_lstm,
        "small_cnn": small_cnn,
        "mlp": mlp,
        "lenet_300_100": lenet_300_100,
        "mlp_encoder": mlp_encoder,
        "mlp_decoder": mlp_decoder,
        "conv_encoder": conv_encoder,
        "conv_decoder": conv_decoder,
        "lenet5_caffe": lenet5_caffe,
        "lstm_classifier": lstm_classifier,
        "resnet": resnet,
        "resnet50": resnet50,
        "transformer_classifier": transformer_classifier,
        "vgg": vgg,
    },
)


def names() -> list[str]:
    """Names that :func:`build` takes."""
    return catalogue.names()


def build(name: str, **args: Any) -> nn.Module:
    """The network called ``name``, built with ``args``.

    Fails with a ``SettingError`` when the name or an argument is unknown, or a required argument is
    missing.
    """
    make = catalogue[name]
    others, parameters = other_arguments(make), inspect.signature(make).parameters
    for given in args:
        if given not in parameters and given not in others:
            hint = suggest(given, parameters)
            raise SettingError(f"Network {name!r} takes no argument {given!r}.{hint}")
    missing = [
        p.name
        for p in parameters.values()
        if p.default is inspect.Parameter.empty and p.name not in args
    ]
    if missing:
        raise SettingError(
            f"Network {name!r} needs {', '.join(missing)}; pass {missing[0]}=... when building it."
        )
    return make(**args)


def present_args(name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a stored description under the names that they have now."""
    others = other_arguments(catalogue[name]) if name in catalogue else {}
    return {others.get(key, key): value for key, value in args.items()}
