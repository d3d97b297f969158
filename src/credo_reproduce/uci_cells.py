"""One cell of the UCI table: a data set, one of its published splits, and a method; measured once,
kept in a small file.

The test part is touched once, after everything is chosen: candidates of the method's recipe are
compared on a validation part of the training split, the best is fitted to the whole training split,
and its log-likelihood and error are stated in the targets' own units.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from credo.bnn import BNN
from credo.core.atomic import write_atomic
from credo.core.errors import CredoError, RunError
from credo.core.seeds import generator, isolated, mix
from credo.data import load
from credo.engine.training_loop import DescentSettings
from credo.likelihoods import Likelihood
from credo.methods import make_method, methods
from credo.nets import mlp
from credo_reproduce.base import graph_on
from credo_reproduce.uci_candidates import BATCH, Candidate, Recipe, Start, epochs
from credo_reproduce.uci_recipes import NOT_APPLICABLE, recipe

FORMAT = 1  # of the files; a new number makes old ones count for nothing
WORTHWHILE = 0.1  # effort from which compiling a step pays
VALIDATION, MOST = (
    0.2,
    1000,
)  # share of the training split that candidates are compared on, and its largest size
_FAILURES = (CredoError, torch.linalg.LinAlgError)  # pyright: ignore[reportPrivateImportUsage]


class Source(NamedTuple):
    """A data set: its name in ``credo.data``, the width of the published hidden layer, and how many
    standard splits there are.
    """

    file: str
    hidden: int
    splits: int


#: Cheapest first.
SETS = {
    "yacht": Source("uci_yacht", 50, 20),
    "boston": Source("uci_boston", 50, 20),
    "energy": Source("uci_energy", 50, 20),
    "concrete": Source("uci_concrete", 50, 20),
    "wine": Source("uci_wine_red", 50, 20),
    "kin8nm": Source("uci_kin8nm", 50, 20),
    "power": Source("uci_power", 50, 20),
    "naval": Source("uci_naval", 50, 20),
    "protein": Source("uci_protein", 100, 5),
}


@final
@dataclass(frozen=True)
class Cell:
    """What is measured."""

    set: str
    split: int
    method: str


@final
@dataclass(frozen=True)
class Terms:
    """What the numbers of a cell depend on besides its recipe: the seed, and the share of every
    recipe's length that is spent.
    """

    seed: int = 0
    effort: float = 1.0

    def digest(self, method: str) -> str:
        """A short name of everything that matters to cells of ``method``."""
        text = json.dumps(
            [FORMAT, VALIDATION, MOST, asdict(self), recipe(method).config()], sort_keys=True
        )
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def file(self, store: Path, cell: Cell) -> Path:
        """Where a cell is kept."""
        return store / f"{cell.set}-{cell.split:02d}-{cell.method}-{self.digest(cell.method)}.json"


@final
@dataclass(frozen=True)
class Part:
    """Rows of one data set in its own units, ``(N, D)`` and ``(N, 1)``."""

    x: Tensor
    y: Tensor

    def __getitem__(self, rows: Tensor) -> Part:
        return Part(self.x[rows], self.y[rows])


class Score(NamedTuple):
    """Mean log-likelihood in nats and root mean square error, both in the units of the targets."""

    ll: float
    rmse: float


def split(name: str, number: int) -> tuple[Part, Part]:
    """Training and test rows of a published split."""
    data = load(SETS[name].file)
    x, y = (torch.as_tensor(np.asarray(data[key], dtype=np.float64)) for key in ("X", "y"))
    whole = Part(x, y.reshape(len(y), 1))
    train, test = (
        torch.as_tensor(data[f"{part}_idx"][number].astype(np.int64)) for part in ("train", "test")
    )
    return whole[train], whole[test]


def held_out(name: str, number: int, train: Part) -> tuple[Part, Part]:
    """The training rows without a validation part, and that part; its rows depend on the split
    alone.
    """
    order = torch.randperm(len(train.y), generator=generator("uci", name, number, "validation"))
    count = min(MOST, int(VALIDATION * len(order)))
    return train[order[count:]], train[order[:count]]


def fit_and_score(
    cell: Cell, candidate: Candidate, train: Part, judged: Part, terms: Terms, device: torch.device
) -> Score:
    """Fit on one part and judge on another.

    Both are standardised by the first; columns that are constant there are only centred.
    """
    (x, x_new), _ = _standard(train.x, judged.x)
    (y, y_new), scale = _standard(train.y, judged.y)
    seed = mix("uci", terms.seed, cell.set, cell.split) % 2**31
    outputs = candidate.likelihood.num_outputs(y)
    with isolated(mix(seed, "net")):
        net = mlp(x.shape[1], (SETS[cell.set].hidden,), outputs, activation=candidate.activation)
    given = _for(cell.method, candidate.arguments(len(y), terms.effort), terms, device)
    likelihood = candidate.likelihood
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # that chains are short, or a prior narrow, shows in the score
        if candidate.start is not None:
            given["init"], likelihood = _begin(
                candidate.start, candidate, cell.method, net, (x, y), terms, seed, device
            )
        bnn = BNN(net, likelihood, prior=candidate.prior)
        bnn.fit((x, y), cell.method, seed=seed, device=device, progress=False, **given)
    predictive = bnn.predict(x_new, candidate.samples, seed=seed, batch_size=4096)
    density = predictive.log_prob(y_new.to(predictive.outputs.device)).double().mean()
    error = (predictive.mean.cpu().double() - y_new.double()).square().mean().sqrt()
    return Score(float(density) - math.log(float(scale)), float(error) * float(scale))


def _standard(train: Tensor, other: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    mean, scale = train.mean(0), train.std(0, correction=0)
    scale = torch.where(scale > 1e-9 * train.abs().amax(0), scale, torch.ones_like(scale))
    return (((train - mean) / scale).float(), ((other - mean) / scale).float()), scale


def _for(method: str, given: dict[str, Any], terms: Terms, device: torch.device) -> dict[str, Any]:
    """How to run the steps: small ones are all launch overhead, so on a GPU descent is captured as
    a graph; nothing is compiled in a hurry.
    """
    kind = methods[method]
    if "compile" not in kind.__dataclass_fields__:
        return given
    if issubclass(kind, DescentSettings):
        return given | {"compile": graph_on(device)}
    return given | {"compile": given.get("compile", False) and terms.effort >= WORTHWHILE}


def _begin(
    start: Start,
    candidate: Candidate,
    method: str,
    net: Any,
    data: tuple[Tensor, Tensor],
    terms: Terms,
    seed: int,
    device: Any,
) -> tuple[dict[str, Tensor], Likelihood]:
    """Where chains start: weights, and a likelihood whose noise is that of the first fit,
    widened.
    """
    count = epochs(start.steps, len(data[1]), BATCH, terms.effort)
    given = _for(
        start.method, {"epochs": count, "batch_size": BATCH, **start.settings}, terms, device
    )
    first = BNN(net, candidate.likelihood, prior=candidate.prior)
    first.fit(data, start.method, seed=seed, device=device, progress=False, **given)
    likelihood = type(candidate.likelihood).from_config(candidate.likelihood.config())
    likelihood.load_state_dict(first.likelihood.cpu().state_dict())
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter += math.log(start.widen)  # learned noise is kept as a logarithm
    chains = make_method(method, {k: v for k, v in candidate.settings.items() if k != "lr"})
    weights = (
        first.posterior.sample(getattr(chains, "num_chains", 1), seed=seed)
        if start.drawn
        else first.posterior.mean()
    )
    return {name: value.detach().cpu() for name, value in weights.items()}, likelihood


def ranked(
    cell: Cell, chosen: Recipe, train: Part, terms: Terms, device: torch.device
) -> tuple[list[Candidate], dict[str, float | str]]:
    """Candidates by validation log-likelihood, the highest first, and what each of them reached, or
    why it failed.
    """
    if len(chosen.candidates) == 1:
        return [*chosen.candidates], {}
    fitted, judged = held_out(cell.set, cell.split, train)
    shorter = Terms(terms.seed, terms.effort * chosen.trial)
    found: dict[str, float | str] = {}
    for candidate in chosen.candidates:
        try:
            ll = fit_and_score(cell, candidate, fitted, judged, shorter, device).ll
            found[candidate.label] = ll if math.isfinite(ll) else "the log-likelihood is not finite"
        except _FAILURES as error:
            found[candidate.label] = reason(error)
    scores = [(ll, place) for place, ll in enumerate(found.values()) if isinstance(ll, float)]
    return [chosen.candidates[place] for _, place in sorted(scores, reverse=True)], found


def reason(error: BaseException) -> str:
    """One line: the message of an error that says what to do, else its kind too."""
    text = (str(error).splitlines() or [""])[0]
    return text if isinstance(error, CredoError) else f"{type(error).__name__}: {text}"


def measure(cell: Cell, terms: Terms, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Choose, refit on the whole training split, judge on the test part once: the content of the
    cell's file.
    """
    if cell.method in NOT_APPLICABLE:
        raise CredoError(f"{cell.method} does not apply here: {NOT_APPLICABLE[cell.method]}.")
    where, started = torch.device(device), time.perf_counter()
    train, test = split(cell.set, cell.split)
    candidates, trials = ranked(cell, recipe(cell.method), train, terms, where)
    failures: dict[str, str] = {}
    for candidate in (
        candidates
    ):  # one that held in its trial may still fail on all the data: then the next best counts
        try:
            score = fit_and_score(cell, candidate, train, test, terms, where)
        except _FAILURES as error:
            failures[candidate.label] = reason(error)
        else:
            break
    else:
        why = "; ".join(f"{label}: {text}" for label, text in {**trials, **failures}.items())
        raise CredoError(f"No candidate of {cell.method} could be fitted: {why}")
    if not math.isfinite(score.ll):
        raise CredoError(
            f"The test log-likelihood of {candidate.label!r} is {score.ll}; expected a finite "
            "number."
        )
    return asdict(cell) | {
        "digest": terms.digest(cell.method),
        "ll": score.ll,
        "rmse": score.rmse,
        "candidate": candidate.label,
        "trials": trials,
        "failures": failures,
        "seconds": time.perf_counter() - started,
        "device": where.type,
        "torch": torch.__version__,
    }


def keep(store: Path, cell: Cell, terms: Terms, device: str) -> dict[str, Any]:
    """Measure a cell and write its file, whole or not at all."""
    result = measure(cell, terms, device)
    write_atomic(
        terms.file(store, cell), lambda path: path.write_text(json.dumps(result, indent=1))
    )
    return result


def finished(store: Path, terms: Terms) -> tuple[dict[Cell, dict[str, Any]], int]:
    """The cells in a directory that were measured under these terms, and how many files were
    measured under others.
    """
    found: dict[Cell, dict[str, Any]] = {}
    others = 0
    for path in sorted(store.glob("*.json")):
        try:
            result = json.loads(path.read_text())
            cell = Cell(result["set"], result["split"], result["method"])
            known = result["method"] in methods and result["digest"] == terms.digest(cell.method)
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path} is not the file of a cell ({error!r}); move it away."
            ) from error
        if known:
            found[cell] = result
        else:
            others += 1
    return found, others
