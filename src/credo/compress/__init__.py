"""From a posterior to something small: prune, slim, quantise, entropy-code, export.

Every function takes a fitted BNN or what :func:`prune` made of one.
"""

from __future__ import annotations

import contextlib
import os

from torch import nn

from credo.bnn import BNN
from credo.compress.cost import count, latency
from credo.compress.curve import Curve, curve, score
from credo.compress.network_file import FileReport, read, read_note, write
from credo.compress.onnx import to_onnx
from credo.compress.pruned import Pruned, plain, prune, pruned_of, sparsity
from credo.compress.quantised import Quantised
from credo.compress.quick import Quick, quicken
from credo.compress.retrain import fine_tune, shrink, tune_books
from credo.compress.rounding import Precision, precision, quantise
from credo.compress.slim import slim, tidy
from credo.compress.slim_report import SlimReport, report
from credo.compress.unit_order import with_sorted_units
from credo.core.errors import NetworkError

__all__ = [
    "Curve",
    "FileReport",
    "Precision",
    "Pruned",
    "Quantised",
    "Quick",
    "SlimReport",
    "count",
    "curve",
    "decode",
    "encode",
    "fine_tune",
    "latency",
    "plain",
    "precision",
    "prune",
    "pruned_of",
    "quantise",
    "quicken",
    "read_note",
    "report",
    "score",
    "shrink",
    "slim",
    "sparsity",
    "tidy",
    "to_onnx",
    "tune_books",
]


def encode(
    source: BNN | Pruned | Quantised,
    path: str | os.PathLike[str],
    net: nn.Module | None = None,
    note: str = "",
    step: float = 1.0,
    levels: int | None = None,
) -> FileReport:
    """Prune, quantise and write to an entropy-coded file; ``decode(path, net)`` gives the network
    back, bit for bit.

    ``step`` and ``levels``: as of :func:`quantise`. A network that is quantised already needs
    ``net=``, a module of its architecture, in their place. Hidden units of a chain of layers are
    sorted first, which makes the file shorter and changes nothing else.
    """
    if isinstance(source, Quantised):
        if net is None:
            raise NetworkError(
                "encode: codes alone do not say how layers follow each other; give net=, the "
                "network they belong to."
            )
        codes = source
    else:
        pruned = pruned_of(source)
        codes, net = quantise(pruned, step, levels), pruned.net
    with contextlib.suppress(
        NetworkError
    ):  # only a chain of layers shows which units may change places
        codes = with_sorted_units(codes, net)
    return write(codes, path, note)


def decode(path: str | os.PathLike[str], net: nn.Module) -> nn.Module:
    """The network in a file, as a copy of ``net`` in evaluation mode; ``net`` gives the
    architecture alone and is left as it is.
    """
    return read(path, net).fill(net)
