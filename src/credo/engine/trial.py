"""A trial before the fit: what the user left open is chosen by its predictions of held-out rows.

A fifth of the rows is held out and the method is fitted to the others, first with the prior N(0, 1)
and the usual settings, then with one thing changed at a time: a narrower prior, a smaller drop
rate, whatever the method names. A change stays, and the next one in its row is tried, where the
nll of held-out rows falls by more than the standard error of the difference; while a constant
predicts better than all so far, the whole row is tried. The fit itself then sees all rows. What
was tried, and how well a constant does on the same rows, stays with the fit.

Made only where nothing was asked for: neither a prior nor a number of epochs, and of data in
memory, of a network with layers to be narrowed, of a size at which a few more fits take seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal

from credo.core.errors import CredoError
from credo.core.seeds import generator
from credo.core.sites import is_deep
from credo.core.tree import take
from credo.data.source import Arrays, Source
from credo.engine.fit_job import FitJob, FitOptions, base_rate
from credo.engine.method import Method
from credo.engine.model import Fitted, Model
from credo.engine.validation import predicted
from credo.priors import Fixed, Prior, as_prior

HELD_OUT = 0.2
LEAST_ROWS, MOST_ROWS, MOST_WEIGHTS = 60, 20_000, 20_000
DRAWS = 32
WIDTHS = (0.4, 0.2, 0.1)  #: narrower priors, tried in this order


def alternatives(
    method: Method, model: Model, source: Source, options: FitOptions
) -> dict[str, Sequence[Any]]:
    """What a trial goes through, by name, of a method whose prior was left open; empty where no
    trial is made.
    """
    if not (method.tries and _is_due(model, source, options)):
        return {}
    found = {"prior": WIDTHS, **method.alternatives(model)}
    return found if any(found.values()) else {}


def _is_due(model: Model, source: Source, options: FitOptions) -> bool:
    weights = sum(site.numel for site in (model.random | model.point).values())
    return (
        options.is_open
        and is_deep(model.sites.values())
        and source.arrays() is not None
        and weights <= MOST_WEIGHTS
        and LEAST_ROWS <= source.num_data <= MOST_ROWS
    )


def run_trial(
    model: Model, method: Method, source: Source, options: FitOptions
) -> tuple[Prior, Method, dict[str, Any] | None]:
    """The prior and the method to fit all rows with, and what they were chosen by: all candidates,
    the chosen one, and the nll of the best constant on the same rows. The usual ones and None
    where no trial is made.
    """
    arrays, open_values = source.arrays(), alternatives(method, model, source, options)
    if arrays is None or not open_values:
        return prior_of(1.0, method), method, None
    x, y = arrays
    order = torch.randperm(len(y), generator=generator(options.seed, "trial")).to(y.device)
    count = max(round(HELD_OUT * len(y)), 1)
    out, rest = order[:count], order[count:]
    train = Source(Arrays(take(x, rest), y[rest]), len(rest))
    asked = FitOptions(batch_size=options.batch_size, seed=options.seed, progress=False)

    def losses(width: float, settings: Mapping[str, Any]) -> Tensor:
        """Negative log-likelihood of every held-out row; infinite where the fit fails."""
        own = model.under(prior_of(width, method), method.adapt)
        candidate = replace(method, **settings).for_trial()
        try:
            fit_job = FitJob.of(asked, candidate, train, own)
            fit_job.epochs = math.ceil(method.trial_share * fit_job.epochs)
            fitted = candidate.for_problem(fit_job.problem).fit(own, fit_job)
            return held_out_losses(own, candidate, fitted, take(x, out), y[out])
        except CredoError:
            return torch.full((count,), math.inf, dtype=torch.float64)

    def row(width: float, settings: Mapping[str, Any], found: Tensor) -> dict[str, Any]:
        return {"prior_std": width, **settings, "held_out_nll": finite(float(found.mean()))}

    unseen = Source(Arrays(take(x, out), y[out]), count)
    base = base_rate(model.likelihood, train, unseen)
    at: tuple[float, dict[str, Any]] = (1.0, {})
    best = losses(*at)
    tried = [row(*at, best)]
    for name, values in open_values.items():
        before = at[1]
        for value in values:
            then = (value, before) if name == "prior" else (at[0], before | {name: value})
            found = losses(*then)
            tried.append(row(*then, found))
            gain = best - found
            if float(gain.mean()) > float(gain.std()) / math.sqrt(count):
                at, best = then, found
            elif float(best.mean()) < base:  # else go on: nothing so far predicts at all
                break
    trial: dict[str, Any] = {"tried": tried, "chosen": row(*at, best)}
    trial |= {"constant_nll": finite(base), "held_out": count}
    return prior_of(at[0], method), replace(method, **at[1]), trial


def finite(value: float) -> float | None:
    """None where it is not, which JSON cannot say."""
    return value if math.isfinite(value) else None


def prior_of(width: float, method: Method) -> Prior:
    """N(0, width^2); where the method leaves layers as points, over these as well once it is
    narrower than usual.
    """
    if method.points_have_prior and width < 1.0:
        return as_prior({"*": Normal(0.0, width)})
    return Fixed(Normal(0.0, width))


@torch.no_grad()
def held_out_losses(model: Model, method: Method, fitted: Fitted, x: Any, y: Tensor) -> Tensor:
    """-log p(y_n given x_n) of every row, as the method predicts it."""
    predictive = predicted(model, method, fitted, model.move(x), DRAWS)
    return -predictive.log_prob(model.likelihood.check_targets(model.move(y))).double()
