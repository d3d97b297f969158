"""The file of a quantised network: 13 bytes that say what it is, then one entropy-coded stream.

====== ======== ==========================================================
bytes  content
====== ======== ==========================================================
0-3    magic    ``crdo``
4      version  1, or 2 where units follow the digest
5-8    crc32    of everything after it, little-endian
9-12   digest   of the network's names, shapes and kinds of numbers
13-    units    version 2 alone: their length in 4 bytes, then means and
                deviations as safetensors
13-    stream   the note, then codebook, positions and values of every
                tensor (:mod:`credo.compress.weight_coding`)
====== ======== ==========================================================

The stream is a stack of asymmetric numeral systems (Duda 2009) as the package constriction writes
it; it has no lengths, no padding and no names. A file that was cut, altered, written for another
network or by a newer version is refused in one sentence.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import safetensors.torch
from torch import Tensor, nn

from credo.compress.bit_stream import AdaptiveInteger, BitReader, BitStream, BitWriter
from credo.compress.codebooks import wholes
from credo.compress.quantised import Quantised
from credo.compress.weight_coding import TensorBits, code_network, write_entries
from credo.core.atomic import write_atomic
from credo.core.errors import CredoError, NetworkError, RunError
from credo.core.standardised import Standardised

MAGIC, PLAIN, VERSION = b"crdo", 1, 2
_HEAD = struct.Struct("<4sBI")  # magic, version, crc32
_LENGTH = struct.Struct("<I")
_DIGEST = 4
HEADER_BYTES = _HEAD.size + _DIGEST
_LONGEST_NOTE = (1 << 20) - 1  # bytes


@final
@dataclass(frozen=True)
class FileReport:
    """How long a file is. ``code_bits``: the length of the stream by the models' probabilities;
    ``tensors``: what each tensor contributes to it, by name.
    """

    path: Path
    bytes: int
    header_bytes: int
    code_bits: float
    numel: int
    nonzero: int
    tensors: Mapping[str, TensorBits]

    @property
    def float32_bytes(self) -> int:
        """Bytes of the same numbers as float32."""
        return 4 * self.numel

    @property
    def ratio(self) -> float:
        """How many times smaller than float32 the file is."""
        return self.float32_bytes / self.bytes


def write(quantised: Quantised, path: str | os.PathLike[str], note: str = "") -> FileReport:
    """Write codes to a file, whole or not at all; ``note`` is any text, which costs its bytes.

    Needs the package constriction (``credo-bayes[compress]``).
    """
    path = Path(path)
    writer = BitWriter()
    _note(writer, note)
    sizes = write_entries(quantised, writer)
    version, units = PLAIN, b""
    if quantised.units is not None:
        version, stored = VERSION, safetensors.torch.save(quantised.units.tensors())
        units = _LENGTH.pack(len(stored)) + stored
    body = _digest(quantised.state()) + units + writer.encoded()
    data = _HEAD.pack(MAGIC, version, zlib.crc32(body)) + body
    write_atomic(path, lambda beside: beside.write_bytes(data))
    return FileReport(
        path, len(data), HEADER_BYTES, writer.length(), quantised.numel, quantised.nonzero, sizes
    )


def read(path: str | os.PathLike[str], net: nn.Module) -> Quantised:
    """The codes in a file, for the network they were made from; ``read(path, net).fill(net)`` is
    the network itself.

    Refused: what is no such file, is damaged, was written by a newer version, or belongs to a
    network of other names or shapes.
    """
    digest, reader, units = _open(Path(path))
    state = net.state_dict()
    if digest != _digest(state):
        raise NetworkError(
            f"{path} was written for another network: the names or shapes of its {len(state)} "
            "tensors differ. Give the network it was made from."
        )
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # such a stream may hold any number
            _note(reader)
            found = code_network(reader, state)
    except (
        CredoError,
        ValueError,
        IndexError,
        ArithmeticError,
    ) as error:  # a stream no writer made, under a checksum that fits
        raise _damaged(Path(path), "its stream makes no sense") from error
    if not reader.done:
        raise _damaged(Path(path), "its stream goes on after the last tensor")
    return replace(found, units=units)


def read_note(path: str | os.PathLike[str]) -> str:
    """The note a file was written with; no network is needed."""
    return _note(_open(Path(path))[1])


def _open(path: Path) -> tuple[bytes, BitReader, Standardised | None]:
    """The digest, the stream and the units of a file that is whole."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"Cannot read {path}: {error.strerror or error}. Check the path.") from error
    if not data.startswith(MAGIC):
        raise RunError(
            f"{path} starts with {data[:4]!r}, not with {MAGIC!r}: it is no compressed network, "
            "or it was damaged. Write it again."
        )
    if len(data) < HEADER_BYTES:
        raise _damaged(path, f"it has {len(data)} bytes of at least {HEADER_BYTES}")
    _, version, crc = _HEAD.unpack_from(data)
    if version > VERSION:
        raise RunError(
            f"{path} was written by a newer credo (format {version}; this one reads up to "
            f"{VERSION}). Update credo."
        )
    if version < PLAIN:
        raise RunError(
            f"{path} says format {version}, which no credo wrote; this one reads up to "
            f"{VERSION}. It was damaged: write it again."
        )
    body = data[_HEAD.size :]
    if zlib.crc32(body) != crc:
        raise _damaged(path, "its checksum does not fit")
    digest, rest, units = body[:_DIGEST], body[_DIGEST:], None
    if version > PLAIN:
        end = _LENGTH.size + _LENGTH.unpack_from(rest)[0]
        units, rest = Standardised.of(safetensors.torch.load(rest[_LENGTH.size : end])), rest[end:]
    return digest, BitReader(rest), units


def _damaged(path: Path, why: str) -> RunError:
    return RunError(f"{path} was cut or altered: {why}. Copy it again or write it again.")


def _note(stream: BitStream, text: str = "") -> str:
    """Write or read the note, as UTF-8; one bit where there is none."""
    given = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    count = AdaptiveInteger().code(stream, None, len(given), _LONGEST_NOTE)
    return (
        bytes(wholes(stream, count, given if len(given) == count else None).tolist()).decode()
        if count
        else ""
    )


def _digest(state: Mapping[str, Tensor]) -> bytes:
    """Four bytes that differ, but for one case in four billion, between networks of different
    names, shapes or kinds of numbers.
    """
    text = "\n".join(
        f"{name} {tuple(tensor.shape)} {tensor.is_floating_point()}"
        for name, tensor in state.items()
    )
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST).digest()
