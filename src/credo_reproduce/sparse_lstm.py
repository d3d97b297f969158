"""Sparse variational dropout for a language model: how few weights and gates an LSTM needs for tiny
Shakespeare.

One network is trained as it is; sparse variational dropout (a rate per weight) and group
normal-Jeffreys (a scale per character, per gate and unit, and per input of the last layer) start
from it, and so does a deterministic network that trains on for as long. The text is cut into
windows that follow each other, every window starts from a state of zero, and N is the number of
windows: the likelihood of one is the product over all of its characters. Thresholds are chosen on
the first half of the text that training has not seen, and everything is reported on the second. Of
recurrent weights there is one draw a step, which all windows of the batch and all positions share;
noise of the last layer, and under sparse variational dropout that of the embedding, is drawn where
it acts, position by position.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from credo import compress
from credo.bnn import BNN
from credo.compress import Pruned
from credo.compress.curve import THRESHOLDS
from credo.core.errors import SettingError
from credo.core.seeds import isolated, mix
from credo.core.settings import setting
from credo.data import load
from credo.likelihoods import Pixels
from credo.nets import char_lstm
from credo_reproduce.base import Experiment, Say, experiments
from credo_reproduce.outcome import Check, Outcome, Row, Table, Value
from credo_reproduce.probes import Pair

MOST_LEFT = 0.2  # of the weights, after sparse variational dropout
# per character, that this may cost against the deterministic network that does better on held-out
# text
MOST_BITS = 0.1
GATES: tuple[str, ...] = ("i", "f", "g", "o")  # in the order in which torch stacks them
SHORT = {"embed": "embedding", "ih": "input-hidden", "hh": "hidden-hidden", "head": "output"}
METHODS = ("sparse_vd", "group_normal_jeffreys")


class Windows(NamedTuple):
    """Pairs of windows and their next characters ``(N, T)``, and the number of different
    characters.
    """

    train: Pair
    held_out: Pair
    test: Pair
    vocab: int


@experiments.register("sparse_lstm")
@dataclass(frozen=True)
class SparseLSTM(Experiment):
    """Train, make sparse, count."""

    name: ClassVar[str] = "sparse_lstm"
    title: ClassVar[str] = "Sparse variational dropout for an LSTM on tiny Shakespeare"
    reference: ClassVar[str] = (
        "Chirkova, Lobacheva and Vetrov 2018, Bayesian compression for natural language processing."
    )
    cost: ClassVar[str] = "4 minutes on a shared GPU"
    needs: ClassVar[tuple[str, ...]] = ("tinyshakespeare",)
    threads: ClassVar[int | None] = None
    quick_settings: ClassVar[dict[str, Any]] = {
        "epochs": 2,
        "pretrain": 2,
        "hidden": 8,
        "width": 4,
        "length": 10,
        "batch": 20,
        "warmup": 1,
        "num_chars": 2500,
    }

    hidden: int = setting(256, "Units of the LSTM.", ge=1)
    width: int = setting(64, "Numbers that stand for a character.", ge=1)
    layers: int = setting(1, "LSTM layers.", ge=1)
    length: int = setting(100, "Characters in a window.", ge=1)
    batch: int = setting(64, "Windows in a step.", ge=1)
    pretrain: int = setting(25, "Epochs of the network that the others start from.", ge=1)
    epochs: int = setting(70, "Epochs of each sparse method.", ge=1)
    warmup: int = setting(
        20, "Epochs until the KL counts fully; it is left out for the first quarter of them.", ge=0
    )
    lr: float = setting(2e-3, "Learning rate.", gt=0.0)
    beta: float = setting(2.0, "Weight of the KL; with less of it more weights are left.", gt=0.0)
    slack: float = setting(
        0.03,
        "Bits per held-out character that a sparser network may cost when a threshold is chosen.",
        ge=0.0,
    )
    num_chars: int = setting(2_000_000, "Characters of the text, from its beginning.", ge=1)
    graph: bool = setting(
        True,
        "On a GPU, capture a training step as one CUDA graph; cuDNN's recurrent layers allow it.",
    )

    def run(self, device: torch.device, seed: int, say: Say) -> Outcome:
        """The network, then each sparse method from it."""
        data = self._windows(device)
        fit = {
            "batch_size": self.batch,
            "lr": self.lr,
            "seed": seed,
            "device": device,
            "progress": False,
            "compile": "graph" if self.graph and device.type == "cuda" else False,
        }
        with isolated(mix(seed, "net")):
            net = char_lstm(data.vocab, self.hidden, self.width, self.layers)
        say(
            f"{len(data.train[0])} windows of {self.length} characters, {data.vocab} different; "
            f"{_weights(net)} weights"
        )
        states, nets = [], [net]
        for label, epochs in (
            ("deterministic", self.pretrain),
            ("deterministic, trained on", self.epochs),
        ):
            started = time.perf_counter()
            point = BNN(nets[-1], Pixels(data.vocab), prior=Normal(0.0, 1.0)).fit(
                data.train, "map", epochs=epochs, **fit
            )
            nets.append(compress.plain(point))
            states.append(
                _state(
                    label, compress.pruned_of(nets[-1]), data, device, time.perf_counter() - started
                )
            )
            say(_said(states[-1]))
        net = nets[1]
        for method in METHODS:
            started = time.perf_counter()
            bnn = BNN(net, Pixels(data.vocab)).fit(
                data.train, method, epochs=self.epochs, beta=self.beta, kl_warmup=self.warmup, **fit
            )
            seconds = time.perf_counter() - started
            own, chosen = (
                compress.prune(bnn, threshold=THRESHOLDS[0]),
                self._chosen(bnn, data, device),
            )
            for pruned, how in ((own, "as trained"), (chosen, "chosen")):
                states.append(
                    _state(
                        f"{method}, log alpha < {pruned.threshold:g}, {how}",
                        pruned,
                        data,
                        device,
                        seconds,
                    )
                )
                say(_said(states[-1]))
        return Outcome(_tables(states), [], _checks(states))

    def _windows(self, device: torch.device) -> Windows:
        """The first 90 % to learn from, half of the rest to choose by, the other half to report."""
        kinds, ids = np.unique(
            load("tinyshakespeare")["text"][: self.num_chars], return_inverse=True
        )
        text, cuts = (
            torch.as_tensor(ids.astype(np.int64)),
            (0, int(0.9 * len(ids)), int(0.95 * len(ids)), len(ids)),
        )
        parts = [text[begin:end] for begin, end in pairwise(cuts)]
        if min(map(len, parts)) <= self.length:
            raise SettingError(
                f"sparse_lstm: num_chars={self.num_chars}, length={self.length}: {len(ids)} "
                "characters leave no window to "
                f"test on; expected more than {20 * (self.length + 1)} characters."
            )
        train, held_out, test = (
            (x.to(device), y.to(device)) for x, y in (windows(part, self.length) for part in parts)
        )
        return Windows(train, held_out, test, len(kinds))

    def _chosen(self, bnn: BNN, data: Windows, device: torch.device) -> Pruned:
        """The sparsest of several thresholds within ``slack`` of the best on held-out text."""
        tried = [compress.prune(bnn, threshold=limit) for limit in THRESHOLDS]
        bits = [bits_per_character(each.net, data.held_out, data.vocab, device) for each in tried]
        fine = [
            each for each, cost in zip(tried, bits, strict=True) if cost <= min(bits) + self.slack
        ]
        return min(fine, key=lambda each: each.nonzero)


class State(NamedTuple):
    """A network with its zeros, and what it costs."""

    label: str
    bits: float
    held_out: float
    sparsity: dict[str, float]
    left: int
    weights: int
    ratio: float
    gates: dict[str, int]
    words: int
    seconds: float


def windows(text: Tensor, length: int) -> Pair:
    """Windows ``(N, length)`` that follow each other, and the characters one place later; a shorter
    rest is left out.
    """
    count = (len(text) - 1) // length
    return text[: count * length].reshape(count, length), text[1 : count * length + 1].reshape(
        count, length
    )


@torch.no_grad()
def bits_per_character(
    net: nn.Module, data: Pair, vocab: int, device: torch.device, chunk: int = 256
) -> float:
    """-log2 p, averaged over all characters of all windows, of a plain network in evaluation
    mode.
    """
    net, likelihood = net.to(device).eval(), Pixels(vocab)
    pairs = zip(data[0].split(chunk), data[1].split(chunk), strict=True)
    total = sum(float(likelihood.log_prob(net(x), y).double().sum()) for x, y in pairs)
    net.cpu()
    return -total / (data[1].numel() * math.log(2.0))


def gates_left(net: nn.Module) -> dict[str, int]:
    """Gates by kind, over all layers, that read anything: with all incoming weights at zero a gate
    is a constant.
    """
    state, counts = net.state_dict(), dict.fromkeys(GATES, 0)
    for name, weight in state.items():
        if "weight_ih" in name:
            reads = (weight != 0).any(1) | (state[name.replace("weight_ih", "weight_hh")] != 0).any(
                1
            )
            for gate, part in zip(GATES, reads.chunk(4), strict=True):
                counts[gate] += int(part.sum())
    return counts


def _weights(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters() if p.dim() > 1)


def _short(name: str) -> str:
    """What a weight is called in a table; layers beyond the first with their number."""
    label = next(label for part, label in SHORT.items() if part in name)
    layer = name.rpartition("_l")[2]
    return f"{label} {int(layer) + 1}" if layer.isdigit() and int(layer) else label


def _state(
    label: str, pruned: Pruned, data: Windows, device: torch.device, seconds: float
) -> State:
    net = pruned.net
    zeros = {
        _short(n): 1.0 - float((p != 0).double().mean())
        for n, p in net.named_parameters()
        if p.dim() > 1
    }
    held_out, bits = (
        bits_per_character(net, part, data.vocab, device) for part in (data.held_out, data.test)
    )
    left = sum(int(p.count_nonzero()) for p in net.parameters() if p.dim() > 1)
    words = int((net.get_parameter("embed.weight") != 0).any(1).sum())
    return State(
        label,
        bits,
        held_out,
        zeros,
        left,
        _weights(net),
        pruned.ratio,
        gates_left(net),
        words,
        seconds,
    )


def _said(state: State) -> str:
    return (
        f"{state.label}: {state.bits:.3f} bits per character, {state.left} of {state.weights} "
        f"weights, {state.seconds:.0f} s"
    )


def _tables(states: list[State]) -> list[Table]:
    names = list(states[0].sparsity)
    rows, shapes = [], []
    for s in states:
        measured: dict[str, Value] = {
            "bits per character": s.bits,
            "held-out": s.held_out,
            "weights left": s.left,
            "seconds": s.seconds,
        }
        fewer = {
            "weights, times fewer": s.weights / max(s.left, 1),
            "all numbers, times fewer": s.ratio,
        }
        rows.append(Row(s.label, measured | fewer))
        zeros = {f"{name} %": 100.0 * share for name, share in s.sparsity.items()}
        shapes.append(
            Row(
                s.label,
                zeros
                | {f"gates {gate}": count for gate, count in s.gates.items()}
                | {"characters": s.words},
            )
        )
    counts = (
        "bits per character",
        "held-out",
        "weights left",
        "weights, times fewer",
        "all numbers, times fewer",
        "seconds",
    )
    places = (*(f"{name} %" for name in names), *(f"gates {gate}" for gate in GATES), "characters")
    return [
        Table(
            "Bits and weights",
            counts,
            rows,
            "Every window starts from a state of zero; thresholds were chosen on held-out text.",
            4,
        ),
        Table(
            "Where the zeros are",
            places,
            shapes,
            "Share of zeros by weight, gates of each kind that read anything, and characters "
            "whose embedding is not all zero.",
        ),
    ]


def _checks(states: list[State]) -> list[Check]:
    dense = min(
        (s for s in states if s.label.startswith("deterministic")), key=lambda s: s.held_out
    )
    best = next(s for s in states if s.label.startswith("sparse_vd") and s.label.endswith("chosen"))
    share, cost = best.left / best.weights, best.bits - dense.bits
    return [
        Check(
            "sparse_vd: weights left",
            f"{100 * share:.1f} %",
            f"at most {100 * MOST_LEFT:.0f} %",
            share <= MOST_LEFT,
        ),
        Check(
            f"sparse_vd: cost against the network ({dense.label})",
            f"{cost:+.3f} bits per character",
            f"at most {MOST_BITS:+.1f}",
            cost <= MOST_BITS,
        ),
    ]
