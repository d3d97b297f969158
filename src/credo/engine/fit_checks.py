"""Checks of descents and of what they end at: weights, rates, members, hidden units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from credo.core.errors import CredoError, Finding
from credo.core.seeds import Streams, isolated
from credo.core.shell import Shell
from credo.core.sites import is_deep
from credo.engine.diagnose import Case, checked
from credo.engine.fit_job import base_rate
from credo.engine.model import Model
from credo.engine.outputs import Draws, sampled_outputs
from credo.engine.settling import fall, tolerance
from credo.posteriors import Params, kl

FALLING = 0.05  # nats per example that a fall must promise to be worth a word
OF_WIDTHS = 0.005  # nats per weight, whose widths go on for long after predictions have settled
FULL_RATE = 2 / 3  # of a fit, after which its learning rate falls or has fallen
SAME = 0.05  # of a logarithm, by which a standard deviation has not moved
COLLAPSED = 0.01  # nats per weight below which a prior says no more than the posterior
BEYOND_PRIOR = 3.0  # prior sds that the sd of a weight may have
MANY = 50  # weights per example, from which a shortcut is looked at
DEAR = 0.3  # nats per example that noise may cost
BY_HEART, LEARNED = 0.01, 2.0  # nats per example: of labels, and gained over a constant
ALIKE = 1e-3  # sd of members over the size of their weights
NO_RATE, ALL_RATE = 1e-3, 0.95  # drop rates that leave no noise, or no network
KL_DRAWS = 8  # where a KL is sampled; their own streams, so the global generator stays as found
LEAST_UNITS = 8  # of a layer of which one speaks
MOST_DEAD = 0.75  # of its units that may be dead: in a random ReLU network of one input half are
GROWN = 0.25  # of its units by which the dead must have become more
UNIT_DRAWS = 4  # of the posterior, half of which must agree
NOT_HIDDEN = (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d, nn.MultiheadAttention)


@checked("learned by heart", of="descents")
def learned_by_heart(case: Case) -> Finding | None:
    """Points without a trial that reproduce every training target say nothing of new data."""
    posterior, rows = case.fitted.posterior, case.problem.num_data
    point = [f for f in posterior.factors if f.atoms is not None]
    weights = sum(s.numel for s in (case.model.random | case.model.point).values())
    losses = [row["nll"] / rows for row in case.history if "nll" in row]
    free = bool(point) and case.fitted.trial is None
    if not (free and losses and weights > rows):
        return None
    likelihood, source = case.model.likelihood, case.fit_job.source
    constant = base_rate(likelihood, source)
    noisy = any(True for _ in likelihood.parameters())
    if not (constant - losses[-1] > LEARNED if noisy else losses[-1] < BY_HEART):
        return None
    evidence = (
        f"{weights} weights give {rows} targets a training nll of {losses[-1]:.2g} each, where a "
        f"constant has {constant:.3g}"
    )
    remedy = "give validation data, or fit 'vi', 'laplace' or 'deep_ensemble' with their defaults"
    return Finding("learned by heart", "warning", evidence, remedy)


@checked("noise costs more than it may", of="descents")
@torch.no_grad()
def noise_is_dear(case: Case) -> Finding | None:
    """Draws of the weights, or the shortcut that the method predicts with, predict the training
    data much worse than the mean of the weights does: many more weights than data can tell keep
    noise that the network as a whole does not bear.
    """
    losses = [row["nll"] / case.problem.num_data for row in case.history if "nll" in row]
    posterior, short = case.fitted.posterior, case.method.shortcut
    weights = case.problem.num_weights
    random = any(f.atoms is None for f in posterior.factors)
    if posterior.process is not None or short == "mean" or not (random and losses):
        return None
    # a trial has chosen what a shortcut rests on
    tried = case.fitted.trial is not None or weights <= MANY * case.problem.num_data
    if not math.isfinite(losses[-1]) or (short is not None and tried):
        return None
    model, (x, y) = case.model, case.rows
    try:
        mean = Draws.mean(posterior, model)
        outputs, _ = sampled_outputs(model, mean, x, case.fitted.buffers, 0)
    except CredoError:
        return None  # a posterior without a mean
    targets = model.likelihood.check_targets(y)
    at_mean = -float(model.likelihood.log_prob(outputs[0], targets).mean())
    if short is None and losses[-1] - at_mean < DEAR:
        return None
    mixture = case.nll
    # single draws may cost, but not all of them together
    if mixture - at_mean < (DEAR / 2 if short is None else DEAR):
        return None
    single = f" ({losses[-1]:.3g} by single draws)" if short is None else ""
    evidence = (
        f"the training nll is {mixture:.3g} per example{single}, and {at_mean:.3g} with the mean "
        "of the weights"
    )
    remedy = "use more data, a smaller network, 'deep_ensemble', or a narrower prior"
    return Finding("noise costs more than it may", "warning", evidence, remedy)


@checked("still falling", of="descents")
def still_falling(case: Case) -> Finding | None:
    """The objective of a descent was still falling when its learning rate began to: what it lost
    since is noise as well.
    """
    ended = case.fit_job.ended.get("ended")
    weight = getattr(case.method, "kl_weight", 1.0)
    rows = [row for row in case.history if "nll" in row and "kl" in row]
    losses = [row["nll"] + weight * row["kl"] for row in rows]
    losses = losses[: round(FULL_RATE * len(losses))]
    if ended == "settled" or len(losses) < 8:
        return None
    drop, error = fall(losses)
    count, weights = case.problem.num_data, case.problem.num_weights
    least = max(FALLING * count, OF_WIDTHS * weights, tolerance(count, weights))
    if drop <= max(3.0 * error, least):
        return None
    evidence = f"the objective was falling by {drop:.3g} nats between two sixths of the fit"
    return Finding("still falling", "warning", evidence, "train longer, or with a larger lr")


@checked("spread at its start", of="descents")
def spread_at_start(case: Case) -> Finding | None:
    """Standard deviations are those that the fit began with, so they say nothing of the data."""
    start = getattr(case.method, "init_std", None)
    if not isinstance(start, float):
        return None
    found = [f.std() for f in case.fitted.posterior.factors if f.name == "mean_field"]
    stds = [s.reshape(-1) for each in found if each is not None for s in each.values()]
    if not stds:
        return None
    median = float(torch.cat(stds).log().median())
    if abs(median - math.log(start)) > SAME:
        return None
    evidence = f"half of all standard deviations are within 5 % of init_std={start:g}"
    return Finding("spread at its start", "serious", evidence, "train longer, or with a larger lr")


@checked("collapsed prior", of="descents")
@torch.no_grad()
def collapsed_prior(case: Case) -> Finding | None:
    """The KL to a learned prior is next to nothing: then it no longer holds the weights back.

    With a hyperparameter per weight the prior can follow q wherever it goes, and the fit is maximum
    likelihood in disguise; share hyperparameters over more weights, or give them a hyperprior.
    """
    if not case.model.prior.is_learned:
        return None
    for family in case.fitted.posterior.factors:
        prior = case.model.prior_over(family)
        if family.atoms is not None or prior is None or not family.kl_is_bound:
            continue
        share = float(kl(family, prior, Streams(0, range(KL_DRAWS)))) / family.varying
        if share < COLLAPSED:
            evidence = (
                "the learned prior has collapsed onto the posterior, with a KL of "
                f"{share:.2g} nats per weight over {family.varying} weights"
            )
            remedy = (
                "learn it for larger groups (per='layer'), learn fewer of its arguments, or give "
                "it a hyperprior"
            )
            return Finding("collapsed prior", "warning", evidence, remedy)
    return None


@checked("members alike", of="descents")
def members_alike(case: Case) -> Finding | None:
    """Networks of a set that are one and the same have no disagreement to show."""
    families = [f for f in case.fitted.posterior.factors if f.name == "samples"]
    if not families or not is_deep(case.model.sites.values()):
        return None  # one layer has one optimum
    draws = torch.cat([family.state_dict()["flat"] for family in families], 1).double()
    size = float(draws.square().mean().sqrt())
    if len(draws) < 2 or float(draws.std(0).square().mean().sqrt()) > ALIKE * size:
        return None
    evidence = f"the weights of {len(draws)} members differ by less than {ALIKE:g} of their size"
    remedy = "start members at random (init='random'), or train a larger network"
    return Finding("members alike", "warning", evidence, remedy)


@checked("rates collapsed", of="descents")
def rates_collapsed(case: Case) -> Finding | None:
    """All learned drop rates ended next to nothing, so that no uncertainty is left, or next to one,
    so that no network is left.
    """
    rates = [r for f in case.fitted.posterior.factors for r in f.learned_rates().values()]
    if not rates or (max(rates) > NO_RATE and min(rates) < ALL_RATE):
        return None
    evidence = f"the learned drop rates are between {min(rates):.2g} and {max(rates):.2g}"
    lost = "no uncertainty" if max(rates) <= NO_RATE else "no network"
    remedy = "set a rate with 'mc_dropout', or fit 'vi' or 'deep_ensemble'"
    return Finding("rates collapsed", "warning", f"{evidence}, which leave {lost}", remedy)


@checked("wider than the prior", of="descents")
def wider_than_prior(case: Case) -> Finding | None:
    """Half of all weights have an sd of more than three times their prior's, which no data ask
    for. Of independent normals.
    """
    ratios = []
    for family in case.fitted.posterior.factors:
        normals = family.independent_normals()
        prior = case.model.prior_over(family) if normals else None
        each = None if prior is None else prior.elementwise
        if each is None or normals is None:
            continue
        for name, normal in normals.items():
            try:
                width = each[name].stddev
            except NotImplementedError:  # a flat prior, or one without moments
                continue
            ratios.append((normal.stddev / width.to(normal.stddev)).expand(normal.stddev.shape))
    ratio = float(torch.cat([r.reshape(-1) for r in ratios]).median()) if ratios else 0.0
    if not ratio > BEYOND_PRIOR:
        return None
    evidence = f"half of all weights have more than {ratio:.3g} times the sd of their prior"
    remedy = "train longer with a smaller lr, or start with a smaller init_std"
    return Finding("wider than the prior", "serious", evidence, remedy)


# --- hidden units --------------------------------------------------------------------------------


@checked("dead units", of="descents")
@torch.no_grad()
def dead_units(case: Case) -> Finding | None:
    """Most units of a hidden layer give one and the same number for all rows, and did not when the
    network came: a ReLU that is pushed far below zero, a tanh far into its end.

    A unit that a prior has switched off is not dead, since what enters it is smaller than at the
    start; nor is one whose weights are drawn from a wide posterior, since it is alive in other
    draws. Seen are activations that are modules, not functions called in ``forward``.
    """
    model, posterior = case.model, case.fitted.posterior
    if posterior.process is not None or not any(map(_is_activation, model.net.modules())):
        return None
    try:
        drawn = posterior.sample(UNIT_DRAWS, seed=0)
    except CredoError:
        return None  # noise that is none of the weights
    x, own = case.rows[0], model.values()

    def units(draw: int) -> Units:
        return _units(model, {n: drawn[n][draw] for n in own}, case.fitted.buffers, x)

    try:
        first = units(0)
    except RuntimeError:
        return None  # masks of the network's own are set by their posterior alone
    if not any(float(constant.double().mean()) > MOST_DEAD for constant, _ in first.values()):
        return None
    start = _units(model, own, model.buffers(), x)
    seen = [first, *map(units, range(1, UNIT_DRAWS))]
    for place, (constant, _) in first.items():
        if any(place not in each for each in (start, *seen)):
            continue
        before, usual = int(start[place][0].sum()), start[place][1].median()
        counts = sorted(int((c & (size >= usual)).sum()) for c, size in (s[place] for s in seen))
        dead, size = counts[(len(counts) - 1) // 2], len(constant)
        if dead > max(MOST_DEAD * size, before + GROWN * size):
            evidence = (
                f"{dead} of {size} units behind {place[0] or 'the network'!r} give the same "
                f"number for all of {len(case.rows[1])} training rows, {before} when it came"
            )
            remedy = "lower lr, or use an activation with a slope everywhere, such as GELU"
            return Finding("dead units", "warning", evidence, remedy)
    return None


#: (path, call) -> which units gave one number for all rows, and the size of what entered each
Units = dict[tuple[str, int], tuple[Tensor, Tensor]]


def _units(model: Model, values: Params, buffers: Mapping[str, Tensor], x: Any) -> Units:
    """The units of every activation with these weights."""
    shell = model.shell()
    shell.train(False)
    for tensors in (model.frozen(), buffers, values):
        shell.place(tensors)
    with _watched(shell) as met, isolated(0, model.device):
        model.outputs(shell, x)
    return met


@contextmanager
def _watched(shell: Shell) -> Iterator[Units]:
    """What goes through activations meanwhile."""
    met, entered = Units(), dict[str, Tensor | None]()
    calls = dict[str, int]()
    handles = []
    for path, module in shell.module.named_modules():
        if not _is_activation(module):
            continue

        def enter(module: nn.Module, args: Any, path: str = path) -> None:
            rows = _by_unit(args[0] if args else None)  # before an activation that works in place
            entered[path] = None if rows is None else rows.square().mean(1).sqrt()

        def leave(module: nn.Module, args: Any, output: Any, path: str = path) -> None:
            rows, size = _by_unit(output), entered.get(path)
            call = calls[path] = calls.get(path, -1) + 1
            if rows is not None and size is not None and len(size) == len(rows):
                low, high = rows.aminmax(dim=1)
                met[path, call] = low == high, size

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave))
    try:
        yield met
    finally:
        for handle in handles:
            handle.remove()


def _is_activation(module: nn.Module) -> bool:
    """Whether it is one of torch's elementwise activations."""
    own = type(module).__module__ == "torch.nn.modules.activation"
    return own and not isinstance(module, NOT_HIDDEN)


def _by_unit(values: Any) -> Tensor | None:
    """``(C, ...)`` of a layer's ``(N, C)``, ``(N, C, H, W)`` or ``(N, ..., C)``; None of anything
    else.
    """
    real = isinstance(values, Tensor) and values.is_floating_point() and values.dim() >= 2
    if not real:
        return None
    rows = values.movedim(1 if values.dim() == 4 else -1, 0).flatten(1)
    return rows if len(rows) >= LEAST_UNITS and rows.shape[1] >= 2 else None
