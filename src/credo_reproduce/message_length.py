"""A network's message in bits: the labels given the weights, and the weights themselves."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import nn

from credo.bnn import BNN
from credo.posteriors import SparseVD
from credo.priors.mixing import log_uniform_kl
from credo_reproduce.outcome import Row
from credo_reproduce.probes import Pair


class Length(NamedTuple):
    """A network's accuracies and sparsity in per cent, and its message in bits.

    ``data``: the labels under draws of the weights; ``steps``: the same in the last training epoch,
    with other noise for every image; ``model``: the KL of the weights that are left, since one that
    is centred at zero costs nothing; ``counted``: the KL as training counts it.
    """

    train: float
    test: float
    sparsity: float
    data: float
    steps: float
    model: float
    counted: float

    @property
    def total(self) -> float:
        """-ELBO: labels and weights."""
        return self.data + self.model

    @property
    def least(self) -> float:
        """With the shorter of both messages for the labels, which favours the network."""
        return min(self.data, self.steps) + self.model

    def row(
        self,
        label: str,
        empty: float,
        paper: dict[str, Any] | None = None,
        seconds: float | None = None,
    ) -> Row:
        """For the table."""
        scores = {
            "train accuracy %": self.train,
            "test accuracy %": self.test,
            "sparsity %": self.sparsity,
        }
        bits = {
            "data bits": self.data,
            "data bits in training": self.steps,
            "model bits": self.model,
            "as training counts": self.counted,
        }
        return Row(
            label,
            scores | bits | {"total / empty": self.total / empty, "seconds": seconds},
            paper or {},
        )


@torch.no_grad()
def model_bits(bnn: BNN) -> tuple[float, float, float]:
    """KL from the log-uniform prior in bits: of the weights that are left, and of all as training
    counts it; and the sparsity in per cent.
    """
    log_alpha, is_kept = [], []
    for family in bnn.posterior.factors:
        if isinstance(family, SparseVD):
            log_alpha.append(family.flat_log_alpha().double())
            is_kept.append(log_alpha[-1] < family.threshold)
    kl, left = log_uniform_kl(torch.cat(log_alpha)) / math.log(2), torch.cat(is_kept)
    return float(kl[left].sum()), float(kl.sum()), 100.0 * (1.0 - float(left.double().mean()))


@torch.no_grad()
def label_bits(net: nn.Module, data: Pair) -> float:
    """Bits of the labels, given the network."""
    scores = torch.cat([net(x) for x in data[0].split(500)]).double()
    return float(nn.functional.cross_entropy(scores, data[1], reduction="sum")) / math.log(2)
