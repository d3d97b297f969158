"""Training after pruning and after quantisation: of the weights that are left, or of the few values
that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from credo.bnn import BNN
from credo.compress.pruned import Pruned, plain
from credo.compress.quantised import Coded, Quantised, rounded_book
from credo.core.errors import SettingError
from credo.core.settings import positive, setting, whole
from credo.core.standardised import units_of, without_units
from credo.engine.elbo_fit import point_fit
from credo.engine.fit_job import FitJob
from credo.engine.method import Method
from credo.engine.model import Fitted, Model
from credo.engine.training_loop import DescentSettings
from credo.posteriors import Delta, Params, Posterior

Make = Callable[[str, Tensor], Tensor]


def fine_tune(
    pruned: Pruned,
    bnn: BNN,
    data: Any,
    epochs: int = 10,
    batch_size: int = 100,
    lr: float = 1e-3,
    seed: int = 0,
    device: Any = "cpu",
    progress: bool = False,
) -> Pruned:
    """Maximum likelihood of the nonzero weights and of all other parameters, from where they are;
    zeros stay zeros.

    ``bnn`` says which likelihood and which output of the network count. Adam, with a learning rate
    that falls to zero.
    """
    masks = {name: mask.to(device) for name, mask in pruned.masks.items()}

    def masked(name: str, value: Tensor) -> Tensor:
        return value * masks[name] if name in masks else value

    numbers = {name: p.detach() for name, p in pruned.net.named_parameters()}
    training = _Training(epochs, batch_size, lr, seed, device, progress)
    tuned = _trained(pruned.net, numbers, masked, bnn, data, training)
    return pruned if tuned is None else replace(pruned, net=plain(tuned))


def shrink(
    pruned: Pruned,
    bnn: BNN,
    data: Any,
    counts: Sequence[int],
    epochs: int = 5,
    batch_size: int = 100,
    lr: float = 1e-3,
    seed: int = 0,
    device: Any = "cpu",
) -> Iterator[Pruned]:
    """Fewer and fewer weights: for each of ``counts``, set the weights of least abs(w) / sd to zero
    until so many are left, then ``fine_tune``.

    The sd is the posterior's, as it was before; weights without one are ranked by abs(w). Networks
    come one by one, so that the caller can stop when validation data say so. A count that is not
    below what is left prunes nothing and trains on.
    """
    if (
        not isinstance(counts, (list, tuple))
        or not counts
        or any(whole("counts", count) < 1 for count in counts)
    ):
        raise SettingError(
            f"shrink: counts={counts!r} is not valid; expected whole numbers from 1, the weights "
            "to be left."
        )
    for count in counts:
        pruned = fine_tune(_fewer(pruned, count), bnn, data, epochs, batch_size, lr, seed, device)
        yield pruned


def _fewer(pruned: Pruned, count: int) -> Pruned:
    """With ``count`` of its weights, those of largest abs(w) / sd."""
    values = dict(pruned.net.named_parameters())
    score = {}
    for name, mask in pruned.masks.items():
        std = pruned.std.get(name)
        size = (
            values[name].detach().abs()
            if std is None
            else values[name].detach().abs() / std.clamp_min(torch.finfo(std.dtype).tiny)
        )
        score[name] = torch.where(mask, size, -1.0)  # zeros come last
    flat = torch.cat([s.flatten() for s in score.values()])
    if int((flat >= 0).sum()) <= count:
        return pruned
    least = flat.topk(count).values[-1]
    masks = {name: s >= least for name, s in score.items()}
    return replace(pruned, masks=masks).with_values({name: values[name] for name in masks})


def tune_books(
    quantised: Quantised,
    net: nn.Module,
    bnn: BNN,
    data: Any,
    epochs: int = 3,
    batch_size: int = 100,
    lr: float = 1e-3,
    bits: int = 10,
    seed: int = 0,
    device: Any = "cpu",
    progress: bool = False,
) -> Quantised:
    """Maximum likelihood of the codebooks' values, with all codes as they are; afterwards each
    value is rounded to ``bits`` bits.

    Values that are equal after rounding become one, and those that become zero are pruned.
    """
    filled = quantised.fill(net)
    coded = {
        name: entry
        for name, entry in quantised.entries.items()
        if isinstance(entry, Coded) and len(entry.book)
    }
    if not coded:
        return quantised
    codes = {name: entry.codes.flatten().long().to(device) for name, entry in coded.items()}
    # zeros have no value to share: their gradients would queue for one address
    places = {name: code.nonzero().squeeze(1) for name, code in codes.items()}
    ranks = {name: code[places[name]] - 1 for name, code in codes.items()}

    def looked_up(name: str, book: Tensor) -> Tensor:
        if name not in coded:
            return book
        flat = book.new_zeros(len(codes[name])).index_copy(0, places[name], book[ranks[name]])
        return flat.reshape(coded[name].codes.shape)

    numbers = {
        name: coded[name].book.to(p) if name in coded else p.detach()
        for name, p in filled.named_parameters()
    }
    fixed = [name for name in numbers if name not in coded]
    training = _Training(epochs, batch_size, lr, seed, device, progress)
    tuned = _trained(filled, numbers, looked_up, bnn, data, training, fixed)
    if tuned is not None:
        (family,) = tuned.posterior.factors
        assert isinstance(family, ComputedPoint)  # the only family that _trained fits
        numbers = {n: v.detach() for n, v in zip(family.names, family.values, strict=True)}
    least = float(torch.finfo(torch.float16).tiny)
    found = {
        name: Coded.of(looked_up(name, _rounded(numbers[name].cpu(), bits, least).to(device)))
        for name in coded
    }
    return replace(quantised, entries={**quantised.entries, **found})


def _rounded(book: Tensor, bits: int, least: float) -> Tensor:
    """Values rounded to ``bits`` bits; those below ``least`` become zero."""
    near = book.abs() < least
    return torch.where(near, 0.0, rounded_book(torch.where(near, 1.0, book), bits))


class ComputedPoint(Delta):
    """A point whose weights are computed from other numbers: ``make(name, numbers)`` has the shape
    of the weight.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], numbers: Params, make: Make) -> None:
        super().__init__(shapes)
        self.make = make
        self.place(numbers)

    def mean(self) -> Params:
        """The weights."""
        return {
            name: self.make(name, numbers)
            for name, numbers in zip(self.names, self.values, strict=True)
        }


@dataclass(frozen=True)
class Retraining(Method, DescentSettings):
    """Maximum likelihood of the numbers that a network's weights are computed from."""

    name: ClassVar[str] = "retraining"
    summary: ClassVar[str] = "Maximum likelihood of the numbers that weights are made from."
    lr_schedule: str = setting(
        "linear", "Learning-rate schedule.", choices=("constant", "cosine", "linear")
    )
    family: Any = None

    def adapt(self, model: Model) -> Model:
        """Without a prior."""
        return model.flat()

    def fit(self, model: Model, fit_job: FitJob) -> Fitted:
        """Descend on the negative log-likelihood."""
        posterior = Posterior([self.family.to(model.device)])
        return point_fit(model, fit_job, posterior, descent=self)


@dataclass(frozen=True)
class _Training:
    """Settings of a fit that fine-tuning and the tuning of codebooks share."""

    epochs: int
    batch_size: int
    lr: float
    seed: int
    device: Any
    progress: bool

    def __post_init__(self) -> None:
        if whole("epochs", self.epochs) < 0:
            raise SettingError(
                f"epochs={self.epochs} is not valid; expected a whole number from 0."
            )
        positive("batch_size", self.batch_size, 1)
        positive("lr", self.lr, 1.0)


def _trained(
    net: nn.Module,
    numbers: Params,
    make: Make,
    bnn: BNN,
    data: Any,
    training: _Training,
    fixed: Sequence[str] = (),
) -> BNN | None:
    """The network whose weights ``make`` computes from ``numbers``, all of them trained but those
    named in ``fixed``; None after no epochs.
    """
    if training.epochs == 0:
        return None
    family = ComputedPoint({name: p.shape for name, p in net.named_parameters()}, numbers, make)
    for name, value in zip(family.names, family.values, strict=True):
        value.requires_grad_(name not in fixed)
    units, bare = units_of(net), without_units(net)
    tuned = BNN(bare, bnn.likelihood, output=bnn.output, standardise=units or False)
    return tuned.fit(data, Retraining(family=family), **vars(training))
