"""Pruning: which weights a posterior can do without, and the network without them.

Only weights with two axes or more are candidates; biases and scales stay, though slimming folds
those of removed units into the next layer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from credo.bnn import BNN
from credo.core.errors import CredoError, SettingError
from credo.core.standardised import with_units
from credo.posteriors import Params, Posterior

RULES = ("own", "snr", "magnitude")


@dataclass(frozen=True)
class Pruned:
    """A pruned network: the result of :func:`prune`, and what all other steps of compression take.

    ``net``: a plain copy in evaluation mode, on the CPU, pruned weights exactly zero. ``masks``:
    True where a weight stays, for the parameters that could be pruned. ``std``: posterior standard
    deviations of parameters that have any. ``rule`` and ``threshold``: how it was pruned.
    """

    net: nn.Module
    masks: dict[str, Tensor]
    std: Params
    rule: str
    threshold: float | None

    @property
    def numel(self) -> int:
        """All parameters, pruned or not."""
        return sum(p.numel() for p in self.net.parameters())

    @property
    def nonzero(self) -> int:
        """Parameters that are not zero."""
        return sum(int(p.count_nonzero()) for p in self.net.parameters())

    @property
    def ratio(self) -> float:
        """How many times fewer parameters are left, by counts, biases included."""
        return self.numel / max(self.nonzero, 1)

    @property
    def counts(self) -> tuple[int, int]:
        """Weights that stay, and weights that could be pruned."""
        masks = self.masks.values()
        return sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)

    def sparsity(self) -> dict[str, float]:
        """Share of zeros by parameter, of those that could be pruned."""
        return {name: 1.0 - float(mask.double().mean()) for name, mask in self.masks.items()}

    def with_values(self, values: Mapping[str, Tensor]) -> Pruned:
        """The same masks around other values, which are set to zero where pruned."""
        net = copy.deepcopy(self.net)
        state = net.state_dict()
        masked = {n: v * self.masks[n] if n in self.masks else v for n, v in values.items()}
        net.load_state_dict(state | {n: v.detach().to(state[n]) for n, v in masked.items()})
        return replace(self, net=net)


@torch.no_grad()
def plain(bnn: BNN, values: Params | None = None) -> nn.Module:
    """The network at the posterior's means, or at ``values``, with the buffers of the fit: a plain
    module on the CPU. Of a model that standardises it takes x and gives outputs in their own units.
    """
    fitted = bnn
    net = copy.deepcopy(bnn.net).cpu().eval()
    state, given = net.state_dict(), {**fitted.posterior.mean(), **fitted.buffers, **(values or {})}
    net.load_state_dict(state | {n: t.detach().cpu() for n, t in given.items() if n in state})
    return with_units(net, bnn.standardised)


def _check_single(bnn: BNN) -> None:
    """Refuse posteriors whose mean is no network."""
    several = next(
        (
            family
            for family in bnn.posterior.factors
            if family.atoms is not None and family.atoms > 1
        ),
        None,
    )
    if several is not None:
        raise CredoError(
            f"The posterior is {several.atoms} points ({several.name}), whose mean is no network; "
            "distil it into one first (credo.tasks.distill)."
        )
    empty = next((family for family in bnn.posterior.factors if family.meaningless_mean), None)
    if empty is not None:
        raise CredoError(
            f"The mean of this posterior is no network to compress: {empty.meaningless_mean}"
        )


@torch.no_grad()
def moments(posterior: Posterior) -> tuple[Params, Params]:
    """Means (before pruning by a family's own rule) and standard deviations of single weights, for
    families that know both.
    """
    means: Params = {}
    std: Params = {}
    for family in posterior.factors:
        found = family.std()
        if found:
            own = family.unpruned_mean()
            means |= {name: own[name].detach().cpu() for name in found}
        std |= {name: value.detach().cpu() for name, value in found.items()}
    return means, std


def keep_masks(posterior: Posterior, threshold: float | None = None) -> dict[str, Tensor]:
    """True where a weight stays by its own family's rule; empty where no family has a rule."""
    return {
        name: mask.cpu()
        for family in posterior.factors
        for name, mask in family.keep_mask(threshold).items()
    }


def scores(bnn: BNN, rule: str) -> Params:
    """A score per weight, larger where it is needed more: abs(mean) / sd for ``snr``, abs(mean) for
    ``magnitude``.
    """
    if rule == "magnitude":
        return {n: p.detach().abs() for n, p in plain(bnn).named_parameters() if p.dim() > 1}
    means, std = moments(bnn.posterior)
    found = {
        n: means[n].abs() / s.clamp_min(torch.finfo(s.dtype).tiny)
        for n, s in std.items()
        if s.dim() > 1
    }
    if not found:
        families = ", ".join(sorted({family.name for family in bnn.posterior.factors}))
        raise SettingError(
            "prune: by='snr' needs weights with a mean and a standard deviation, and this "
            f"posterior ({families}) knows none; use by='magnitude'."
        )
    return found


def prune(
    bnn: BNN, by: str = "auto", threshold: float | None = None, share: float | None = None
) -> Pruned:
    """Set weights to zero: those that the posterior's own rule drops, or those with the lowest
    scores.

    ``by``: "own" (log alpha of sparse variational dropout, scales of groups), "snr" (abs(mean) / sd
    of any Gaussian), "magnitude" (abs(mean), the baseline); "auto" is "own" where the family has a
    rule, else "snr". ``threshold``: of the family's own rule, by default the family's; else the
    score below which weights go. ``share``: in place of a threshold, the share of weights that goes
    by score. ``curve`` shows what each costs.
    """
    if not isinstance(bnn, BNN):
        raise SettingError(
            f"prune: expected a fitted BNN, got {type(bnn).__name__}; a plain network has the "
            "zeros it has (pruned_of)."
        )
    for name, value in (("threshold", threshold), ("share", share)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise SettingError(f"prune: {name}={value!r} is not valid; expected a number.")
    if by not in ("auto", *RULES):
        raise SettingError(
            f"prune: by={by!r} is not known; expected 'auto', {', '.join(map(repr, RULES))}."
        )
    _check_single(bnn)
    own = keep_masks(bnn.posterior, threshold)
    rule = ("own" if own and share is None else "snr") if by == "auto" else by
    net, (means, std) = plain(bnn), moments(bnn.posterior)
    if rule == "own":
        if not own or share is not None:
            problem = (
                "takes a threshold, no share"
                if own
                else "needs a posterior that prunes by itself, such as that of 'sparse_vd'"
            )
            raise SettingError(f"prune: by='own' {problem}; use by='snr' or by='magnitude'.")
        return _pruned(net, means, own, std, rule, threshold)
    if (share is None) == (threshold is None) or not 0.0 <= (share or 0.0) < 1.0:
        raise SettingError(
            f"prune: by={rule!r} with threshold={threshold!r} and share={share!r}; give one of "
            "them, a share from 0 to below 1."
        )
    found = scores(bnn, rule)
    limit = threshold if share is None else _quantile(found, share)
    assert limit is not None
    return _pruned(
        net,
        means,
        {n: s > limit if share is not None else s >= limit for n, s in found.items()},
        std,
        rule,
        limit,
    )


def _quantile(found: Params, share: float) -> float:
    """The score that this share of weights does not exceed."""
    flat = torch.cat([s.reshape(-1) for s in found.values()])
    count = int(share * len(flat))
    return float(flat.kthvalue(count).values) if count else -math.inf


@torch.no_grad()
def _pruned(
    net: nn.Module,
    values: Params,
    masks: dict[str, Tensor],
    std: Params,
    rule: str,
    threshold: float | None,
) -> Pruned:
    named = dict(net.named_parameters())
    for name, mask in masks.items():
        named[name].copy_(values.get(name, named[name]) * mask)
    return Pruned(net, masks, std, rule, threshold)


def pruned_of(source: BNN | Pruned | nn.Module) -> Pruned:
    """Any source as a pruned network: as it is, a BNN pruned by its posterior's own rule if it has
    one, or a plain network with the zeros it has.
    """
    if isinstance(source, Pruned):
        return source
    if isinstance(source, BNN):
        _check_single(source)
        return (
            prune(source)
            if keep_masks(source.posterior)
            else _pruned(plain(source), {}, {}, moments(source.posterior)[1], "none", None)
        )
    if not isinstance(source, nn.Module):
        raise SettingError(
            f"Expected a fitted BNN, what prune gave, or a network; got {type(source).__name__}."
        )
    net = copy.deepcopy(source).cpu().eval()
    return Pruned(
        net,
        {n: p.detach() != 0 for n, p in net.named_parameters() if p.dim() > 1},
        {},
        "none",
        None,
    )


def sparsity(source: Any) -> dict[str, float]:
    """Share of weights that are zero by parameter, biases aside."""
    return pruned_of(source).sparsity()
