"""Training of what is left: the weights that pruning kept, or the few values that quantisation shares among them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from credo.bnn import BNN
from credo.compress.pruned import Pruned
from credo.compress.quantised import Coded, Quantised, rounded_book
from credo.core.errors import SettingError
from credo.core.seeds import generator, isolated, mix
from credo.core.settings import positive, whole
from credo.core.shell import pick
from credo.data.intake import intake
from credo.likelihoods.base import Likelihood

Values = Mapping[str, Tensor]


def fine_tune(
    pruned: Pruned,
    bnn: BNN,
    data: Any,
    epochs: int = 10,
    batch_size: int = 100,
    lr: float = 1e-3,
    seed: int = 0,
    device: Any = "cpu",
) -> Pruned:
    """Maximum likelihood of the kept weights and of all other parameters, from where they are; zeros stay zeros.

    ``bnn`` says which likelihood and which output of the network count. Adam, with a learning rate that falls to zero.
    """
    _check(epochs, batch_size, lr)
    net = copy.deepcopy(pruned.net).to(device)
    start = {name: p.detach().clone() for name, p in net.named_parameters()}
    masks = {name: mask.to(start[name]) for name, mask in pruned.masks.items()}

    def values(free: Values) -> Values:
        return {name: value * masks[name] if name in masks else value for name, value in free.items()}

    found = _descend(net, start, values, bnn, data, epochs, batch_size, lr, seed)
    return pruned.with_values({n: t.cpu() for n, t in (dict(net.named_buffers()) | dict(found)).items()})


def shrink(
    pruned: Pruned, bnn: BNN, data: Any, counts: Sequence[int], epochs: int = 5, batch_size: int = 100, lr: float = 1e-3, seed: int = 0,
    device: Any = "cpu",
) -> Iterator[Pruned]:  # fmt: skip
    """Fewer and fewer weights: for each of ``counts``, the kept weights of least abs(w) / sd go until so many are left, then ``fine_tune``.

    The sd is the posterior's, as it was before; weights without one are ranked by abs(w). Networks come one by one, so that the caller can stop when
    held-out data say so. A count that is not below what is left prunes nothing and trains on.
    """
    if not isinstance(counts, (list, tuple)) or not counts or any(whole("counts", count) < 1 for count in counts):
        raise SettingError(f"shrink: counts={counts!r} is not valid; expected whole numbers from 1, the weights to be left.")
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
    quantised: Quantised, net: nn.Module, bnn: BNN, data: Any, epochs: int = 3, batch_size: int = 100, lr: float = 1e-3,
    bits: int = 10, seed: int = 0, device: Any = "cpu",
) -> Quantised:  # fmt: skip
    """Maximum likelihood of the shared values themselves, with all codes as they are; afterwards each is rounded to ``bits`` bits.

    Values that meet after rounding, or reach zero, become one.
    """
    _check(epochs, batch_size, lr)
    coded = {name: entry for name, entry in quantised.entries.items() if isinstance(entry, Coded) and len(entry.book)}
    codes = {name: entry.codes.flatten().long().to(device) for name, entry in coded.items()}
    places = {
        name: code.nonzero().squeeze(1) for name, code in codes.items()
    }  # zeros are no one's: their gradients would queue for one address
    ranks = {name: code[places[name]] - 1 for name, code in codes.items()}

    def values(free: Values) -> Values:
        flat = {n: book.new_zeros(len(codes[n])).index_copy(0, places[n], book[ranks[n]]) for n, book in free.items()}
        return {name: tensor.reshape(coded[name].codes.shape) for name, tensor in flat.items()}

    start = {name: entry.book.to(device) for name, entry in coded.items()}
    books = _descend(quantised.fill(net).to(device), start, values, bnn, data, epochs, batch_size, lr, seed)
    least = float(torch.finfo(torch.float16).tiny)
    entries = dict(quantised.entries)
    for name, tensor in values({n: _rounded(b.cpu(), bits, least).to(device) for n, b in books.items()}).items():
        entries[name] = Coded.of(tensor)
    return Quantised(entries)


def _check(epochs: int, batch_size: int, lr: float) -> None:
    if whole("epochs", epochs) < 0:
        raise SettingError(f"epochs={epochs} is not valid; expected a whole number from 0.")
    positive("batch_size", batch_size, 1)
    positive("lr", lr, 1.0)


def _rounded(book: Tensor, bits: int, least: float) -> Tensor:
    near = book.abs() < least
    return torch.where(near, 0.0, rounded_book(torch.where(near, 1.0, book), bits))


def _descend(
    net: nn.Module, start: Values, values: Callable[[Values], Values], bnn: BNN, data: Any, epochs: int, batch_size: int, lr: float, seed: int
) -> Values:  # fmt: skip
    """What is free, after Adam on the mean nll of the network whose parameters are ``values`` of it; the network's buffers move as in training."""
    device = next(iter(start.values())).device
    likelihood: Likelihood = copy.deepcopy(bnn.model.likelihood).to(device)
    source = intake(data, dtype=bnn._dtype)
    free = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    optimizer = torch.optim.Adam([*free.values(), *_learned(likelihood)], lr=lr, fused=True)
    total, done = epochs * source.num_batches(batch_size), 0
    net.train()
    for epoch in range(epochs):
        with isolated(mix(seed, "noise", epoch), device):
            for x, y in source(generator(seed, "order", epoch), batch_size):
                for group in optimizer.param_groups:
                    group["lr"] = lr * (1.0 - done / total)
                optimizer.zero_grad(set_to_none=True)
                x, y = pytree.tree_map(lambda t: t.to(device), (x, y))
                outputs = pick(functional_call(net, dict(values(free)), (x,)), bnn.output)
                (-likelihood.log_prob(outputs, likelihood.check_targets(y)).mean()).backward()
                optimizer.step()
                done += 1
    net.eval()
    return {name: tensor.detach() for name, tensor in free.items()}


def _learned(likelihood: Likelihood) -> Iterable[nn.Parameter]:
    return (p for p in likelihood.parameters() if p.requires_grad)
