"""Training of what is left: the weights that pruning kept, or the few values that quantisation
shares among them.
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
from credo.engine.elbo_fit import point_fit
from credo.engine.fit_job import FitJob, Fitted
from credo.engine.method import Method
from credo.engine.model import Model
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
    """Maximum likelihood of the kept weights and of all other parameters, from where they are;
    zeros stay zeros.

    ``bnn`` says which likelihood and which output of the network count. Adam, with a learning rate
    that falls to zero.
    """
    masks = {name: mask.to(device) for name, mask in pruned.masks.items()}
    free = {name: p.detach() for name, p in pruned.net.named_parameters()}
    tuned = _fitted(
        pruned.net,
        free,
        lambda name, value: value * masks[name] if name in masks else value,
        bnn,
        data,
        epochs,
        batch_size=batch_size,
        lr=lr,
        seed=seed,
        device=device,
        progress=progress,
    )
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
    """Fewer and fewer weights: for each of ``counts``, the kept weights of least abs(w) / sd go
    until so many are left, then ``fine_tune``.

    The sd is the posterior's, as it was before; weights without one are ranked by abs(w). Networks
    come one by one, so that the caller can stop when held-out data say so. A count that is not
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
    """With ``count`` of its weights, those that stand out most from the posterior's noise."""
    values = dict(pruned.net.named_parameters())
    score = {}
    for name, mask in pruned.masks.items():
        std = pruned.std.get(name)
        size = (
            values[name].detach().abs()
            if std is None
            else values[name].detach().abs() / std.clamp_min(torch.finfo(std.dtype).tiny)
        )
        score[name] = torch.where(mask, size, -1.0)  # what is gone comes last
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
    """Maximum likelihood of the shared values themselves, with all codes as they are; afterwards
    each is rounded to ``bits`` bits.

    Values that meet after rounding, or reach zero, become one.
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
    places = {
        name: code.nonzero().squeeze(1) for name, code in codes.items()
    }  # zeros are no one's: their gradients would queue for one address
    ranks = {name: code[places[name]] - 1 for name, code in codes.items()}

    def make(name: str, book: Tensor) -> Tensor:
        if name not in coded:
            return book
        flat = book.new_zeros(len(codes[name])).index_copy(0, places[name], book[ranks[name]])
        return flat.reshape(coded[name].codes.shape)

    free = {
        name: coded[name].book.to(p) if name in coded else p.detach()
        for name, p in filled.named_parameters()
    }
    tuned = _fitted(
        filled,
        free,
        make,
        bnn,
        data,
        epochs,
        batch_size=batch_size,
        lr=lr,
        seed=seed,
        device=device,
        progress=progress,
        frozen=[name for name in free if name not in coded],
    )
    if tuned is not None:
        (family,) = tuned.posterior.members
        assert isinstance(family, Made)
        free = {
            name: numbers.detach()
            for name, numbers in zip(family.names, family.values, strict=True)
        }
    least = float(torch.finfo(torch.float16).tiny)
    found = {
        name: Coded.of(make(name, _rounded(free[name].cpu(), bits, least).to(device)))
        for name in coded
    }
    return Quantised({**quantised.entries, **found})


def _rounded(book: Tensor, bits: int, least: float) -> Tensor:
    near = book.abs() < least
    return torch.where(near, 0.0, rounded_book(torch.where(near, 1.0, book), bits))


class Made(Delta):
    """A point whose weights are made from free numbers: ``make(name, numbers)`` has the shape of
    the weight.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], free: Params, make: Make) -> None:
        super().__init__(shapes)
        self.make = make
        self.place(free)

    def mean(self) -> Params:
        """The weights."""
        return {
            name: self.make(name, numbers)
            for name, numbers in zip(self.names, self.values, strict=True)
        }


@dataclass(frozen=True)
class Retraining(Method, DescentSettings):
    """Maximum likelihood of what is free of a network."""

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


def _fitted(
    net: nn.Module,
    free: Params,
    make: Make,
    bnn: BNN,
    data: Any,
    epochs: int,
    *,
    frozen: Sequence[str] = (),
    **fit: Any,
) -> BNN | None:
    """The network whose weights are made of what is free, trained; None after no epochs."""
    if whole("epochs", epochs) < 0:
        raise SettingError(f"epochs={epochs} is not valid; expected a whole number from 0.")
    positive("batch_size", fit["batch_size"], 1)
    positive("lr", fit["lr"], 1.0)
    if epochs == 0:
        return None
    family = Made({name: p.shape for name, p in net.named_parameters()}, free, make)
    for name, numbers in zip(family.names, family.values, strict=True):
        numbers.requires_grad_(name not in frozen)
    tuned = BNN(net, bnn.likelihood, output=bnn.output)
    return tuned.fit(data, Retraining(family=family), epochs=epochs, **fit)
