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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Normal

from credo.bnn import BNN
from credo.compress.pruned import plain
from credo.compress.stream import ONE, coder_of, to_bytes, to_words
from credo.core.atomic import write_atomic
from credo.core.errors import CredoError, RunError, SettingError
from credo.core.seeds import mix
from credo.core.shell import pick
from credo.data.checks import check_inputs
from credo.data.intake import intake
from credo.engine.elbo import family_prior
from credo.likelihoods.categorical import Categorical
from credo.posteriors import Factorised, MeanField, Params

MAGIC, VERSION = b"crbb", 1
_HEAD = struct.Struct("<4sBI")  # magic, version, crc32 of what follows
_PLAN = struct.Struct("<BB")  # precision bits, log2 of the largest grid index
_REACH = 8  # standard deviations of q at the edge of its grid: beyond lie 1e-15 of it
# log2 of the largest grid index: each of its points takes at least one of the coder's 2^24 steps of
# probability
_FINEST = 18

Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]


@final
@dataclass(frozen=True)
class BitsBack:
    """What was sent: ``net_bits`` is the stream less ``initial_bits``; ``data_bits`` and
    ``weight_bits`` come from densities at the weights.
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
        """How many random bits the stack was made of, which the receiver gets back."""
        return 32 * len(self.initial)

    @property
    def ideal_bits(self) -> float:
        """-log2 p(D given w) + log2 q(w) / p(w) of the draw in the file; its mean over seeds is nll
        + KL in bits.
        """
        return self.data_bits + self.weight_bits


@final
@dataclass(frozen=True)
class Unpacked:
    """What a receiver gets: labels ``(N,)``, the weights by name, and the random bits that came
    back, as 32-bit words.
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
    x, y = _whole(bnn, data)
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
    for chosen, model, base, mean, std in _groups(densities, scale, stream):
        index[chosen] = base + coder.decode(model, mean, std)
    values = index / scale
    weights = densities.split(values)
    probs = _probabilities(bnn, weights, x)
    labels = bnn.model.likelihood.check_pair(probs, y).cpu()
    coder.encode_reverse(
        labels.numpy().astype(np.int32), stream.model.Categorical(perfect=False), _chances(probs)
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
    bits, edge, words = _open(path)
    scale = 2.0**bits
    inputs = check_inputs(x, dtype=bnn._dtype)
    coder = stream.stack.AnsCoder(words)
    model, mean, std = _prior_model(densities, scale, edge, stream)
    index = coder.decode(model, mean, std)
    weights = densities.split(index / scale)
    labels = coder.decode(
        stream.model.Categorical(perfect=False), _chances(_probabilities(bnn, weights, inputs))
    )
    for chosen, model, base, mean, std in reversed(_groups(densities, scale, stream)):
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
    if not isinstance(bnn.model.likelihood, Categorical):
        raise CredoError(
            "Bits-back coding sends labels of the categorical likelihood; this one is "
            f"{bnn.model.likelihood.name!r}."
        )
    found: dict[str, tuple[Tensor, ...]] = {}
    for family in bnn.posterior.members:
        if not family.names:
            continue
        if not isinstance(family, MeanField):
            raise CredoError(
                "Bits-back coding needs a mean-field posterior over all parameters; that of "
                f"{family.names[0]!r} is {family.name!r}. "
                "Fit with 'vi' and random='all'."
            )
        prior = family_prior(family, bnn.model)
        if not isinstance(prior, Factorised) or any(
            type(d) is not Normal for d in prior.distributions.values()
        ):
            raise CredoError(
                f"Bits-back coding needs a normal prior; this BNN has {bnn.model.prior.describe()}."
            )
        means, variances = family.marginals()
        for name, shape in family.shapes.items():
            normal = prior.distributions[name]
            assert isinstance(normal, Normal)
            found[name] = (
                means[name],
                variances[name].sqrt(),
                normal.loc.expand(shape),
                normal.scale.expand(shape),
            )
    shapes = {name: site.shape for name, site in bnn.model.random.items()}
    columns = [
        torch.cat([found[n][i].detach().double().cpu().reshape(-1) for n in shapes]).numpy()
        for i in range(4)
    ]
    return _Densities({n: torch.Size(s) for n, s in shapes.items()}, *columns)


def _precision(densities: _Densities, asked: int | None) -> int:
    """Bits after the point of the grid."""
    far = float((np.abs(densities.mean) + 2 * _REACH * densities.std).max())
    most = _FINEST - 1 - max(math.ceil(math.log2(far)), 0)
    if asked is None:
        return max(min(math.ceil(math.log2(4 / float(densities.std.min()))), most), 0)
    if isinstance(asked, bool) or not isinstance(asked, int) or not 0 <= asked <= most:
        raise SettingError(
            f"bits_back: precision_bits={asked!r} is not valid; expected a whole number from 0 to "
            f"{most} for weights up to {far:.3g}."
        )
    return asked


def _groups(
    densities: _Densities, scale: float, stream: Any
) -> list[tuple[NDArray[np.intp], Any, Ints, Doubles, Doubles]]:
    """Weights whose q is about equally wide, with a model of that width around each one's own mean:
    a wider grid would let rare draws go far.
    """
    width = np.ceil(np.log2(np.maximum(densities.std * scale, 1.0))).astype(int)
    base = np.rint(densities.mean * scale).astype(np.int32)
    out = []
    for octave in np.unique(width):
        chosen, reach = np.flatnonzero(width == octave), _REACH << int(octave)
        model = stream.model.QuantizedGaussian(-reach, reach)
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
    """log2 of a grid index that no draw of q passes."""
    std = 2.0 ** np.ceil(np.log2(np.maximum(densities.std * scale, 1.0)))
    return math.ceil(math.log2(float((np.abs(densities.mean * scale) + 1 + _REACH * std).max())))


def _prior_model(
    densities: _Densities, scale: float, edge: int, stream: Any
) -> tuple[Any, Doubles, Doubles]:
    return (
        stream.model.QuantizedGaussian(-(1 << edge), 1 << edge),
        densities.prior_mean * scale,
        densities.prior_std * scale,
    )


def _whole(bnn: BNN, data: Any) -> tuple[Any, Tensor]:
    """Inputs and labels of all data, in order."""
    parts = list(intake(data, dtype=bnn._dtype)(None, None))
    if len(parts) == 1:
        return parts[0]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


@torch.no_grad()
def _probabilities(bnn: BNN, weights: Params, x: Any) -> Tensor:
    """Class probabilities ``(N, C)``, float64, of the network with these weights."""
    outputs = pick(plain(bnn, weights)(x), bnn.output)
    return bnn.model.likelihood.probs(outputs.double())


def _chances(probs: Tensor) -> Doubles:
    """Probabilities as whole 65536ths, none below one: their last digits, which machines disagree
    on, do not count.
    """
    return (probs * ONE).round().clamp_min(1).numpy()


def _log2_normal(values: Doubles, mean: Doubles, std: Doubles) -> float:
    return float(
        (-0.5 * ((values - mean) / std) ** 2 - np.log(std * math.sqrt(2 * math.pi))).sum()
        / math.log(2)
    )


def _open(path: Path) -> tuple[int, int, NDArray[np.uint32]]:
    """Precision, edge and stream of a file that is whole."""
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
