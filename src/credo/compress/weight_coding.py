"""The code of a whole network, tensor by tensor: codebook, positions of nonzero weights, and
values; and how many bits each takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from credo.compress.bit_stream import AdaptiveBit, BitStream, BitWriter
from credo.compress.codebooks import Codebooks, raw
from credo.compress.position_coding import Matrix, code_positions
from credo.compress.quantised import Coded, Entry, Quantised, Raw
from credo.compress.value_coding import code_values


@final
@dataclass(frozen=True)
class TensorBits:
    """Bits that one tensor takes in a file, by what they describe; ``raw``: a tensor stored as it
    is.
    """

    numel: int
    nonzero: int
    positions: float = 0.0
    values: float = 0.0
    book: float = 0.0
    raw: float = 0.0

    @property
    def bits(self) -> float:
        """Of the tensor in all."""
        return self.positions + self.values + self.book + self.raw


def code_network(
    stream: BitStream,
    like: Mapping[str, Tensor],
    given: Quantised | None = None,
    mark: Callable[[str, str], Any] = lambda *_: None,
) -> Quantised:
    """Write or read all entries of a network whose state dict is ``like``; ``mark(name, part)`` is
    called after each part of an entry.
    """
    kind, codebooks, unit_counts = AdaptiveBit(), Codebooks(), ()
    out: dict[str, Entry] = {}
    for name, tensor in like.items():
        entry = None if given is None else given[name]
        if kind.code(stream, int(isinstance(entry, Raw))):
            out[name] = Raw(raw(stream, tensor, entry.values if isinstance(entry, Raw) else None))
            mark(name, "raw")
            continue
        coded = entry if isinstance(entry, Coded) else None
        book = codebooks.code(stream, None if coded is None else coded.book.double().numpy())
        mark(name, "book")
        matrix = Matrix.of(tensor.shape, unit_counts)
        shape = (matrix.rows, matrix.columns)
        codes = None if coded is None else coded.codes.numpy().reshape(shape).astype(np.int64)
        if len(book):
            mask = code_positions(stream, matrix, None if codes is None else codes > 0)
        else:
            mask = np.zeros(shape, bool)
        mark(name, "positions")
        codes = code_values(stream, matrix, mask, book, codes)
        mark(name, "values")
        out[name] = Coded(
            torch.from_numpy(codes.astype(np.int32)).reshape(tensor.shape),
            torch.from_numpy(book.astype(np.float32)),
        )
        if tensor.dim() > 1:
            unit_counts = tuple(mask.sum(1).tolist())
    return Quantised(out)


def write_entries(quantised: Quantised, writer: BitWriter) -> dict[str, TensorBits]:
    """Write all entries after what ``writer`` has already; returns the bits of each tensor."""
    parts: dict[str, dict[str, float]] = {name: {} for name in quantised}
    at = len(writer)

    def mark(name: str, part: str) -> None:
        nonlocal at
        parts[name][part] = writer.length(at)
        at = len(writer)

    code_network(writer, quantised.state(), quantised, mark)
    return {
        n: TensorBits(quantised[n].numel, quantised[n].nonzero, **part) for n, part in parts.items()
    }


def code_length(quantised: Quantised) -> float:
    """Bits of the codes, books and raw tensors by the models' own probabilities: the sum of -log2
    p.
    """
    writer = BitWriter()
    write_entries(quantised, writer)
    return writer.length()
