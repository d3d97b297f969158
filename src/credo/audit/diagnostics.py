"""Have a sampler's chains mixed? The network's outputs decide; weights are reported beside them.

Weights of a network have symmetries (units may change places and signs), so chains in different but
equal corners of weight space disagree in every weight and in no prediction. What decides is
therefore R-hat and effective draws of the network's outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from credo.bnn import BNN
from credo.core.errors import CredoError
from credo.core.settings import positive
from credo.metrics.chain_diagnostics import MIN_DRAWS, bfmi, summarise
from credo.posteriors import Params

# of one parameter that are checked, evenly spaced: a second of work per thousand draws
ELEMENTS = 2000
LOW_BFMI = 0.3  # of the energy's fraction of missing information, below which tails are not reached
DIVERGING = 0.01  # share of draws that may have ended in a divergent trajectory


class Mixing(NamedTuple):
    """The worst of ``checked`` scalars out of ``size``: largest R-hat and ``mcse`` (of the mean, in
    standard deviations), smallest ESS.

    Scalars that never move have no diagnostics and are left out; NaN where none moves.
    """

    name: str
    size: int
    checked: int
    rhat: float
    ess_bulk: float
    ess_tail: float
    mcse: float


@dataclass(frozen=True)
class Diagnosis:
    """Chains in numbers: one :class:`Mixing` per parameter, one of the network's outputs where
    inputs were given, and the moves.

    ``divergences`` (of all draws), ``acceptance`` (mean) and ``bfmi`` (per chain) are None where
    the sampler keeps no such record.
    """

    chains: int
    draws: int
    parameters: tuple[Mixing, ...]
    functions: Mixing | None
    divergences: int | None
    acceptance: float | None
    bfmi: tuple[float, ...] | None

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per line of a table, the outputs' last."""
        return [
            item._asdict()
            for item in (*self.parameters, *([self.functions] if self.functions else []))
        ]


class Convergence(NamedTuple):
    """The verdict ``ok``, the numbers it rests on, and ``text`` that says both;
    ``rhat_parameters`` is for information only.

    ``bfmi`` is the smallest over chains, NaN where the sampler records no energy.
    """

    ok: bool
    rhat: float
    ess_bulk: float
    ess_tail: float
    divergences: int
    bfmi: float
    rhat_parameters: float
    text: str


class Chains(NamedTuple):
    """Draws of C chains, D each: ``params`` by name, ``(C, D, *shape)``."""

    chains: int
    draws: int
    params: Params


def chains_of(bnn: BNN) -> Chains:
    """The posterior's chains; a ``CredoError`` where there are none, or too few draws."""
    found = [family for family in bnn.posterior.factors if family.chains is not None]
    method = bnn.method.name if bnn.method else "this method"
    if not found or bnn.posterior.atoms is None:
        raise CredoError(
            f"The posterior of {method!r} is no set of chains and has nothing to diagnose; fit "
            "with 'hmc' or 'nuts'."
        )
    per_chain = min((family.atoms or 0) // (family.chains or 1) for family in found)
    if per_chain < MIN_DRAWS:
        raise CredoError(
            f"The posterior of {method!r} holds {per_chain} draws per chain; diagnostics need at "
            f"least {MIN_DRAWS}: raise num_draws."
        )
    params = {name: draws for family in found for name, draws in family.chain_draws().items()}
    chains = found[0].chains or 1
    return Chains(chains, (found[0].atoms or 0) // chains, params)


def function_draws(bnn: BNN, x: Any) -> Tensor:
    """Network outputs at ``x`` of every draw, chain by chain: ``(C, D, N, F)``, without observation
    noise.
    """
    found = chains_of(bnn)
    return bnn.functions(x, n=found.chains * found.draws).unflatten(0, (found.chains, -1))


def diagnose(bnn: BNN, x: Any = None, elements: int = ELEMENTS) -> Diagnosis:
    """R-hat, effective draws and Monte Carlo errors of every parameter and, with ``x``, of the
    network's outputs there.

    Of a parameter with more than ``elements`` entries that many are checked, evenly spaced; each
    row says how many. Judge by the outputs: a large R-hat of weights may be nothing but symmetry.
    Blind to modes that no chain has visited.
    """
    positive("elements", elements, ELEMENTS)
    found = chains_of(bnn)
    rows = [
        _mixing(name, draws.reshape(*draws.shape[:2], -1), elements)
        for name, draws in found.params.items()
    ]
    outputs = (
        None if x is None else _mixing("functions", function_draws(bnn, x).flatten(2), elements)
    )
    record = _record(bnn)
    rate = [row["acceptance"] for row in record if "acceptance" in row]
    return Diagnosis(
        chains=found.chains,
        draws=found.draws,
        parameters=tuple(rows),
        functions=outputs,
        divergences=_divergences(record),
        acceptance=sum(rate) / len(rate) if rate else None,
        bfmi=_bfmi(record),
    )


def converged(reference: BNN, x: Any, rhat: float = 1.05, ess: float = 100.0) -> Convergence:
    """Whether chains may serve as ground truth at ``x``: outputs' R-hat below ``rhat`` and bulk and
    tail ESS above ``ess``.

    Also needed: no infinite or NaN output, at most 1 % divergent draws, and an E-BFMI of at least
    0.3 in every chain where energies are on record. Chains that all miss the same mode pass.
    """
    outputs = function_draws(reference, x)
    diagnosis = diagnose(reference, elements=100)
    mixing = _mixing("functions", outputs.flatten(2), ELEMENTS)
    lowest = min(diagnosis.bfmi) if diagnosis.bfmi else math.nan
    divergent = diagnosis.divergences or 0
    total = diagnosis.chains * diagnosis.draws
    faults = {
        "an output is not finite": not bool(outputs.isfinite().all()),
        f"R-hat is not below {rhat:g}": not mixing.rhat < rhat,
        f"ESS is not above {ess:g}": not min(mixing.ess_bulk, mixing.ess_tail) > ess,
        f"over {DIVERGING:.0%} of draws diverged": divergent > DIVERGING * total,
        f"E-BFMI is below {LOW_BFMI:g}": lowest < LOW_BFMI,
    }
    wrong = [text for text, is_so in faults.items() if is_so]
    worst = max(
        (row.rhat for row in diagnosis.parameters if not math.isnan(row.rhat)), default=math.nan
    )
    energy = "" if math.isnan(lowest) else f"; E-BFMI {lowest:.2f}"
    found = (
        f"{diagnosis.chains} chains of {diagnosis.draws} draws: outputs have R-hat "
        f"{mixing.rhat:.3f}, ESS {mixing.ess_bulk:.0f} (bulk) and "
        f"{mixing.ess_tail:.0f} (tail); {divergent} divergent{energy}; weights have R-hat up to "
        f"{worst:.2f}."
    )
    text = f"Not converged ({'; '.join(wrong)}). {found}" if wrong else f"Converged. {found}"
    return Convergence(
        not wrong, mixing.rhat, mixing.ess_bulk, mixing.ess_tail, divergent, lowest, worst, text
    )


def _mixing(name: str, draws: Tensor, elements: int) -> Mixing:
    """The worst over scalars of ``(C, D, P)``."""
    size = draws.shape[-1]
    if size > elements:
        draws = draws[
            ...,
            torch.linspace(0, size - 1, elements, device=draws.device, dtype=torch.float64)
            .round()
            .long(),
        ]
    found = summarise(draws)
    most, least = (lambda v: _extreme(v, 1.0)), (lambda v: _extreme(v, -1.0))
    error = found.mcse_mean / found.sd
    return Mixing(
        name,
        size,
        draws.shape[-1],
        most(found.rhat),
        least(found.ess_bulk),
        least(found.ess_tail),
        most(error),
    )


def _extreme(values: Tensor, sign: float) -> float:
    known = values[~values.isnan()]
    return sign * float((sign * known).max()) if known.numel() else math.nan


def _record(bnn: BNN) -> list[dict[str, Any]]:
    """Rows of the history that belong to draws."""
    return [row for row in bnn.history if row.get("warmup") is False]


def _divergences(record: list[dict[str, Any]]) -> int | None:
    rows = [row["divergent"] for row in record if "divergent" in row]
    return int(sum(sum(row) for row in rows)) if rows else None


def _bfmi(record: list[dict[str, Any]]) -> tuple[float, ...] | None:
    rows = [row["energy"] for row in record if "energy" in row]
    if len(rows) < MIN_DRAWS:
        return None
    return tuple(bfmi(torch.tensor(rows, dtype=torch.float64).mT).tolist())
