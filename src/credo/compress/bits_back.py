"""Bits-back coding of a posterior: labels and weights in a real file whose net length is the
negative ELBO (Hinton and van Camp 1993).

The sender holds random bits that are worth keeping, on a stack. Read off the stack as if they were
weights coded under q, they choose a draw w; the stack gets shorter by -log2 q(w). Then the labels
are written given w and the inputs, -log2 p(D given w), and on top w under the prior, -log2 p(w).
The receiver takes weights and then labels off, fits the same q to them, and writes w back under q:
the random bits reappear. So the net length is

    file - random bits = -log2 p(D given w) + log2 q(w) / p(w),

on average nll + KL, the objective in bits.

Weights lie on a common grid of width 2^-precision_bits, which cancels between q and p while it is
fine against the narrowest q. Sender and receiver must compute the very same class probabilities:
the same network, inputs, kind of machine and version of torch.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Normal

from credo.bnn import BNN
from credo.compress.bit_stream import ONE, coder_of, to_bytes, to_words
from credo.compress.pruned import plain
from credo.core.atomic import write_atomic
from credo.core.errors import CredoError, RunError, SettingError
from credo.core.seeds import mix
from credo.core.shell import pick
from credo.data.checks import check_inputs
from credo.data.intake import intake
from credo.posteriors import Params

MAGIC, VERSION = b"crbb", 1
_HEAD = struct.Struct("<4sBI")  # magic, version, crc32 of what follows
_PLAN = struct.Struct("<BB")  # precision bits, log2 of the largest grid index
_MAX_DEVIATIONS = 8  # standard deviations of q at the edge of its grid: beyond it lies 1e-15 of q
# log2 of the largest grid index: each grid point takes at least one of the coder's 2^24 steps of
# probability
_MAX_INDEX_BITS = 18

Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]


@final
@dataclass(frozen=True)
class BitsBack:
    """A file of :func:`bits_back` and its lengths in bits.

    ``net_bits``: the stream less ``initial_bits``. ``data_bits``: -log2 p(D given w);
    ``weight_bits``: log2 q(w) / p(w), both by their densities at the weights w in the file.
    """

    path: Path
    file_bytes: int
    header_bytes: int
    initial: NDArray[np.uint32]
    net_bits: int
    data_bits: float
    weight_bits: float
    precision_bits: int
    labels: Tensor
    weights: Params

    @property
    def initial_bits(self) -> int:
        """Random bits that the stack started with; the receiver gets them back."""
        return 32 * len(self.initial)

    @property
    def ideal_bits(self) -> float:
        """``data_bits + weight_bits``; its mean over seeds is nll + KL in bits."""
        return self.data_bits + self.weight_bits


@final
@dataclass(frozen=True)
class Unpacked:
    """What a receiver gets: labels ``(N,)``, the weights by name, and the random bits as 32-bit
    words.
    """

    labels: Tensor
    weights: Params
    initial: NDArray[np.uint32]


@final
@dataclass(frozen=True)
class _Densities:
    """Means and deviations of q and p over all weights, flat, in the network's order of random
    parameters.
    """

    shapes: dict[str, torch.Size]
    mean: Doubles
    std: Doubles
    prior_mean: Doubles
    prior_std: Doubles

    def split(self, flat: Doubles) -> Params:
        parts = (
            torch.from_numpy(flat).float().split([shape.numel() for shape in self.shapes.values()])
        )
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


def bits_back(
    bnn: BNN,
    data: Any,
    path: str | os.PathLike[str],
    seed: int = 0,
    precision_bits: int | None = None,
) -> BitsBack:
    """Send the labels of ``data`` and one draw of the weights, to a receiver who has the network,
    the prior and the inputs.

    The posterior must be mean-field over all parameters, the prior normal, the likelihood
    categorical; anything else is refused. ``precision_bits``: the grid's width is 2^-bits, by
    default at most a quarter of the narrowest standard deviation of q as far as the coder's 24-bit
    probabilities allow. ``seed`` makes the random bits. Needs the package constriction
    (``credo-bayes[compress]``).
    """
    stream = coder_of("Bits-back coding")
    densities, path = _densities(bnn), Path(path)
    x, y = _all_data(bnn, data)
    bits = _precision(densities, precision_bits)
    scale = 2.0**bits
    edge = _edge(densities, scale)
    entropy = np.log2(densities.std * scale * math.sqrt(2 * math.pi * math.e)).clip(min=0).sum()
    spare = 64 + 10 * math.sqrt(
        len(densities.mean)
    )  # -log2 q(w) has a variance of about one bit^2 per weight: ten deviations
    initial = np.random.default_rng(mix("bits back", seed)).integers(
        0, 1 << 32, math.ceil((entropy + spare) / 32), dtype=np.uint32
    )
    coder = stream.stack.AnsCoder(initial, seal=True)

    index = np.zeros(len(densities.mean), np.int32)
    for chosen, model, base, mean, std in _models_by_width(densities, scale, stream):
        index[chosen] = base + coder.decode(model, mean, std)
    values = index / scale
    weights = densities.split(values)
    probs = _probabilities(bnn, weights, x)
    labels = bnn.model.likelihood.check_pair(probs, y).cpu()
    coder.encode_reverse(
        labels.numpy().astype(np.int32),
        stream.model.Categorical(perfect=False),
        _rounded_probabilities(probs),
    )
    coder.encode_reverse(index, *_prior_model(densities, scale, edge, stream))

    body = _PLAN.pack(bits, edge) + to_bytes(coder.get_compressed())
    content = _HEAD.pack(MAGIC, VERSION, zlib.crc32(body)) + body
    write_atomic(path, lambda beside: beside.write_bytes(content))
    header = _HEAD.size + _PLAN.size
    data_bits = -float(probs.gather(1, labels[:, None]).log2().sum())
    weight_bits = _log2_normal(values, densities.mean, densities.std) - _log2_normal(
        values, densities.prior_mean, densities.prior_std
    )
    net = 8 * (len(content) - header) - 32 * len(initial)
    return BitsBack(
        path, len(content), header, initial, net, data_bits, weight_bits, bits, labels, weights
    )


def unpack(path: str | os.PathLike[str], bnn: BNN, x: Any) -> Unpacked:
    """Read a file of :func:`bits_back`: weights and labels from prior and inputs ``x``, then, with
    the posterior, the random bits.

    Refused where the file is damaged or of a newer version. With another prior, other inputs or
    another posterior than the sender's the result means nothing.
    """
    stream = coder_of("Bits-back coding")
    densities, path = _densities(bnn), Path(path)
    bits, edge, words = _read_file(path)
    scale = 2.0**bits
    inputs = check_inputs(x, dtype=None if bnn.standardised else bnn.dtype)
    coder = stream.stack.AnsCoder(words)
    model, mean, std = _prior_model(densities, scale, edge, stream)
    index = coder.decode(model, mean, std)
    weights = densities.split(index / scale)
    labels = coder.decode(
        stream.model.Categorical(perfect=False),
        _rounded_probabilities(_probabilities(bnn, weights, inputs)),
    )
    for chosen, model, base, mean, std in reversed(_models_by_width(densities, scale, stream)):
        coder.encode_reverse((index[chosen] - base).astype(np.int32), model, mean, std)
    try:
        initial = coder.get_compressed(unseal=True)
    except (ValueError, RuntimeError, AssertionError) as error:
        raise CredoError(
            f"The random bits of {path} do not come back: posterior, prior or inputs differ from "
            "the sender's. Use the BNN it was written with."
        ) from error
    return Unpacked(torch.from_numpy(labels.astype(np.int64)), weights, initial)


def _densities(bnn: BNN) -> _Densities:
    """q and p as flat arrays, or an error that says what bits-back coding needs instead."""
    if not bnn.model.likelihood.one_of_classes:
        raise CredoError(
            "Bits-back coding sends labels of the categorical likelihood; this one is "
            f"{bnn.model.likelihood.name!r}."
        )
    q: dict[str, Normal] = {}
    p: dict[str, Normal] = {}
    for family in bnn.posterior.factors:
        if not family.names:
            continue
        normals = family.independent_normals()
        if normals is None:
            raise CredoError(
                "Bits-back coding needs a mean-field posterior over all parameters; that of "
                f"{family.names[0]!r} is {family.name!r}. "
                "Fit with 'vi' and random='all'."
            )
        prior = bnn.model.prior_over(family)
        prior_normals = None if prior is None else prior.independent_normals()
        if prior_normals is None:
            raise CredoError(
                f"Bits-back coding needs a normal prior; this BNN has {bnn.model.prior.describe()}."
            )
        q |= normals
        p |= prior_normals
    shapes = {name: torch.Size(site.shape) for name, site in bnn.model.random.items()}

    def flat(values: Callable[[str], Tensor]) -> Doubles:
        return torch.cat([values(n).detach().double().cpu().reshape(-1) for n in shapes]).numpy()

    return _Densities(
        shapes,
        flat(lambda n: q[n].loc),
        flat(lambda n: q[n].scale),
        flat(lambda n: p[n].loc),
        flat(lambda n: p[n].scale),
    )


def _precision(densities: _Densities, asked: int | None) -> int:
    """The grid's bits after the point."""
    far = float((np.abs(densities.mean) + 2 * _MAX_DEVIATIONS * densities.std).max())
    most = _MAX_INDEX_BITS - 1 - max(math.ceil(math.log2(far)), 0)
    if asked is None:
        return max(min(math.ceil(math.log2(4 / float(densities.std.min()))), most), 0)
    if isinstance(asked, bool) or not isinstance(asked, int) or not 0 <= asked <= most:
        raise SettingError(
            f"bits_back: precision_bits={asked!r} is not valid; expected a whole number from 0 to "
            f"{most} for weights up to {far:.3g}."
        )
    return asked


def _models_by_width(
    densities: _Densities, scale: float, stream: Any
) -> list[tuple[NDArray[np.intp], Any, Ints, Doubles, Doubles]]:
    """Weights in groups whose q is about equally wide: their indices, a coder's model of that
    width, and each one's nearest grid index, mean beside it and deviation.

    One wide grid for all would let rare draws of narrow weights lie too far from their means.
    """
    width = np.ceil(np.log2(np.maximum(densities.std * scale, 1.0))).astype(int)
    base = np.rint(densities.mean * scale).astype(np.int32)
    out = []
    for octave in np.unique(width):
        chosen, half = np.flatnonzero(width == octave), _MAX_DEVIATIONS << int(octave)
        model = stream.model.QuantizedGaussian(-half, half)
        out.append(
            (
                chosen,
                model,
                base[chosen],
                (densities.mean * scale - base)[chosen],
                (densities.std * scale)[chosen],
            )
        )
    return out


def _edge(densities: _Densities, scale: float) -> int:
    """log2 of the largest grid index that a draw of q can have."""
    std = 2.0 ** np.ceil(np.log2(np.maximum(densities.std * scale, 1.0)))
    return math.ceil(
        math.log2(float((np.abs(densities.mean * scale) + 1 + _MAX_DEVIATIONS * std).max()))
    )


def _prior_model(
    densities: _Densities, scale: float, edge: int, stream: Any
) -> tuple[Any, Doubles, Doubles]:
    return (
        stream.model.QuantizedGaussian(-(1 << edge), 1 << edge),
        densities.prior_mean * scale,
        densities.prior_std * scale,
    )


def _all_data(bnn: BNN, data: Any) -> tuple[Any, Tensor]:
    """Inputs and labels of all data, in order."""
    parts = list(intake(data, dtype=None if bnn.standardised else bnn.dtype)(None, None))
    if len(parts) == 1:
        return parts[0]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


@torch.no_grad()
def _probabilities(bnn: BNN, weights: Params, x: Any) -> Tensor:
    """Class probabilities ``(N, C)``, float64, of the network with these weights."""
    outputs = pick(plain(bnn, weights)(x), bnn.output)
    return bnn.model.likelihood.probs(outputs.double())


def _rounded_probabilities(probs: Tensor) -> Doubles:
    """Probabilities as whole 65536ths, none below one, without the last digits, in which machines
    differ.
    """
    return (probs * ONE).round().clamp_min(1).numpy()


def _log2_normal(values: Doubles, mean: Doubles, std: Doubles) -> float:
    return float(
        (-0.5 * ((values - mean) / std) ** 2 - np.log(std * math.sqrt(2 * math.pi))).sum()
        / math.log(2)
    )


def _read_file(path: Path) -> tuple[int, int, NDArray[np.uint32]]:
    """Precision, edge and stream of a file, or an error where it is damaged."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"Cannot read {path}: {error.strerror or error}. Check the path.") from error
    if not data.startswith(MAGIC) or len(data) < _HEAD.size + _PLAN.size:
        raise RunError(
            f"{path} is no bits-back file, or it was damaged: it has {len(data)} bytes and starts "
            f"with {data[:4]!r}. Write it again."
        )
    _, version, crc = _HEAD.unpack_from(data)
    if version > VERSION:
        raise RunError(
            f"{path} was written by a newer credo (format {version}; this one reads up to "
            f"{VERSION}). Update credo."
        )
    body = data[_HEAD.size :]
    if version < VERSION or zlib.crc32(body) != crc:
        raise RunError(
            f"{path} was cut or altered: its checksum does not fit. Copy it again or write it "
            "again."
        )
    bits, edge = _PLAN.unpack_from(body)
    return bits, edge, to_words(body[_PLAN.size :])
