"""Ground truth for a model of the user's own: the same model, its posterior drawn by a method that
is exact in the limit.

Only the approximation of the weights' posterior is audited: everything else that a fit estimated
(learned noise, point parameters, a learned prior, buffers) stays at its fitted value, so that both
posteriors belong to one model.
"""

from __future__ import annotations

import copy
import glob
import os
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from credo.audit.diagnostics import converged
from credo.bnn import BNN
from credo.core.errors import CredoError, SettingError
from credo.core.seeds import generator, mix
from credo.core.settings import positive
from credo.core.tree import Tree, map_leaves, take
from credo.data.intake import intake
from credo.engine.method import methods
from credo.engine.model import Model
from credo.engine.run import Run
from credo.estimators import LIKELIHOOD
from credo.priors import ByPattern, Prior

PROBES = 64  # training inputs at which convergence is checked
RECORD = "reference"  # the entry of the history's last row that says what the reference is


def reference(
    bnn: BNN,
    data: Any,
    *,
    method: str = "hmc",
    rows: int | None = None,
    num_chains: int = 4,
    num_warmup: int = 500,
    num_draws: int = 500,
    seed: int = 0,
    run: str | os.PathLike[str] | Run | None = None,
    progress: bool = True,
    device: torch.device | str | None = None,
    **settings: Any,
) -> BNN:
    """Draws from the posterior of ``bnn``'s model given ``data``, as a BNN of its own; ``bnn`` is
    left as it is.

    ``method``: one whose fidelity is not "approximate"; more ``settings`` of it, or of ``fit``, may
    follow. The network runs in evaluation mode, so masks and other noise of its own play no part.
    ``rows`` takes a subsample; a comparison is then fair only with a ``bnn`` fitted to
    ``subsample(data, rows, seed)``. What was done, and whether chains have converged at the first
    64 inputs, is in ``history[-1]["reference"]``; chains that have not are warned about. If ``bnn``
    is not fitted, the sampler learns point parameters and noise in its warm-up. Fails on improper
    priors and on noise that was drawn with the weights.
    """
    kind = methods[method]
    if kind.fidelity == "approximate":
        fit = [name for name, other in methods.items() if other.fidelity != "approximate"]
        raise SettingError(
            f"method={method!r} is approximate and no ground truth; expected one of "
            f"{', '.join(fit)}."
        )
    counts = {"num_chains": num_chains, "num_warmup": num_warmup, "num_draws": num_draws}
    chosen: dict[str, Any] = {
        name: value for name, value in counts.items() if name in kind.__dataclass_fields__
    } | settings
    truth = weights_only(bnn)
    given = data if rows is None else subsample(data, rows, seed)
    where = bnn.model.device if device is None else device
    # other random numbers than a fit of ``bnn`` by the same sampler with this seed had
    own = mix(seed, "reference")
    truth.fit(given, method, seed=own, device=where, run=run, progress=progress, **chosen)
    source = intake(
        given, num_data=settings.get("num_data"), dtype=next(iter(truth.random.values())).dtype
    )
    record: dict[str, Any] = {"rows": rows, "num_data": source.num_data, "seed": seed}
    if any(family.chains is not None for family in truth.posterior.factors):
        verdict = converged(truth, source.example(PROBES))
        record |= verdict._asdict()
        if not verdict.ok:
            warnings.warn(
                f"The reference is no ground truth yet. {verdict.text} Raise num_warmup and "
                "num_draws.",
                stacklevel=2,
            )
    truth.history[-1][RECORD] = record
    return truth


def subsample(data: Any, rows: int, seed: int = 0) -> tuple[Tree, Tensor]:
    """The first ``rows`` examples of a seeded permutation as ``(x, y)``; data sets and loaders are
    read once, in their order.
    """
    count = positive("rows", rows, 1)
    source = intake(data, num_data=1)  # N plays no part here, so a loader need not know it
    x, y = source.arrays() or _joined(list(source(None, None)))
    if count > len(y):
        raise SettingError(
            f"rows={rows} is more than the {len(y)} examples there are; give fewer, or None for "
            "all."
        )
    order = torch.randperm(len(y), generator=generator(seed, "subsample"))[:count].to(y.device)
    return take(x, order), y[order]


def _joined(batches: list[tuple[Tree, Tensor]]) -> tuple[Tree, Tensor]:
    x = map_leaves(
        lambda *parts: torch.cat(parts), batches[0][0], *(batch for batch, _ in batches[1:])
    )
    return x, torch.cat([y for _, y in batches])


def weights_only(bnn: BNN) -> BNN:
    """A new BNN of the same model, not fitted, in which only the weights are unknown: all else that
    a fit of ``bnn`` estimated is fixed at its fitted value.
    """
    model = bnn.model
    if not bnn.proper:
        raise CredoError(
            f"The prior ({model.prior.describe()}) does not integrate to one, so there may be no "
            "posterior to compare with; take a "
            "reference of credo.BNN(net, likelihood, prior=...) with a proper prior."
        )
    if not bnn.is_fitted:
        return BNN(
            bnn.net,
            bnn.likelihood,
            bnn.prior,
            [glob.escape(name) for name in model.random],
            bnn.output,
            bnn._standardise,
        )
    drawn = [name for name in bnn.posterior.names if name.startswith(LIKELIHOOD)]
    if drawn:
        raise CredoError(
            f"This posterior also draws {', '.join(drawn)}, and samplers do not draw "
            "what belongs to the likelihood; fit with known noise, "
            "e.g. method='exact', noise='known'."
        )
    likelihood = copy.deepcopy(model.likelihood).requires_grad_(False)
    units = bnn.standardised or False
    return BNN(_frozen_net(bnn), likelihood, _frozen_prior(model), "all", bnn.output, units)


@torch.no_grad()
def _frozen_net(bnn: BNN) -> nn.Module:
    """A copy of the network with the fit's values of point parameters and buffers; point parameters
    no longer train.
    """
    varied = [name for name in bnn.model.point if name not in bnn.posterior.fixed]
    if varied:
        raise CredoError(
            f"{', '.join(varied)}: point parameters that differ between the posterior's "
            "components; make everything random "
            "(random='all'), or audit a single component."
        )
    net = copy.deepcopy(bnn.net)
    values, own = bnn.posterior.mean() if bnn.model.point else {}, dict(net.named_parameters())
    for name in bnn.model.point:
        own[name].copy_(values[name])
        own[name].requires_grad_(False)
    buffers = dict(net.named_buffers())
    for name, value in bnn.buffers.items():
        buffers[name].copy_(value)
    return net


def _frozen_prior(model: Model) -> Prior:
    """The prior itself, or, where some of it was learned, each parameter's fitted distribution."""
    if not model.prior.parts():
        return model.prior
    prior = copy.deepcopy(model.prior)
    nn.ModuleList(prior.parts()).requires_grad_(False)
    return ByPattern(
        {
            glob.escape(name): prior.at(site)
            for name, site in model.sites.items()
            if name in model.random
        }
    )
