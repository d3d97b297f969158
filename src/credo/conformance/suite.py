"""The checks that every method must pass: each returns nothing, or raises ``Failure`` with one
sentence.
"""

from __future__ import annotations

import math
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from credo.bnn import BNN, load
from credo.conformance.exact_targets import targets
from credo.conformance.problems import Example, conjugate, examples
from credo.core.errors import SettingError
from credo.core.registry import Registry
from credo.engine.method import Method
from credo.metrics.chain_diagnostics import mcse_mean

Check = Callable[["Candidate"], None]
checks: Registry[Check] = Registry("conformance check")


class Failure(AssertionError):
    """A method does not conform; the message says how."""


@dataclass(frozen=True)
class Candidate:
    """A method under test, with the settings that it declares for tests."""

    method: type[Method]

    @property
    def classifies(self) -> bool:
        """Whether the method takes a categorical likelihood."""
        return "classification" not in self.method.exceptions

    def quick(self) -> dict[str, Any]:
        """Arguments of a fit that exercises everything and converges to nothing."""
        settings = dict(self.method.conformance_settings)
        few = {
            "epochs": 3,
            "batch_size": 16,
            "num_warmup": 2,
            "num_draws": 4,
            "num_moves": 5,
            "num_chains": 2,
            "num_particles": 3,
            "thin": 1,
            "num_proposals": 100,
        }
        return settings | {key: value for key, value in few.items() if key in settings}

    def example(self) -> tuple[BNN, tuple[Any, Tensor]]:
        """A fresh model and data the method can take."""
        if self.classifies:
            case = examples()["mlp"]()
            return BNN(self.method.example_network(case.net, 3), "categorical"), (case.x, case.y)
        problem = conjugate()
        return problem.bnn(self.method.example_network), (problem.x, problem.y)

    def fitted(self, seed: int = 0, **extra: Any) -> tuple[BNN, tuple[Any, Tensor]]:
        """The example, fitted quickly."""
        bnn, data = self.example()
        return bnn.fit(
            data, self.method(), seed=seed, progress=False, **self.quick(), **extra
        ), data


def expect(condition: bool | Tensor, message: str) -> None:
    """Raise ``Failure`` unless the condition holds."""
    if not bool(condition):
        raise Failure(message)


def _snapshot(case: Example | BNN) -> dict[str, Any]:
    net = case.net
    state = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
    flags = {name: (p.requires_grad, p.grad is None) for name, p in net.named_parameters()}
    return {"state": state, "flags": flags, "modes": [m.training for m in net.modules()]}


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@checks.register("seeded")
def seeded(candidate: Candidate) -> None:
    """The same seed gives the same posterior and predictions; another seed of ``predict`` gives
    other draws.
    """
    (a, (x, _)), (b, _) = candidate.fitted(), candidate.fitted()
    expect(
        _same(a.posterior.state_dict(), b.posterior.state_dict()), "two fits with one seed differ"
    )
    expect(
        torch.equal(a.predict(x, 5).outputs, b.predict(x, 5).outputs),
        "two predictions with one seed differ",
    )
    if (
        a.posterior.atoms is None and a.method is not None and a.method.shortcut is None
    ):  # shortcuts draw nothing
        expect(
            not torch.equal(a.predict(x, 5).outputs, a.predict(x, 5, seed=1).outputs),
            "the seed of predict changes nothing",
        )


@checks.register("global_state")
def global_state(candidate: Candidate) -> None:
    """The global RNG, the caller's network, its mode, its buffers and its gradients are left as
    found.
    """
    bnn, data = candidate.example()
    for module in bnn.net.modules():
        module.training = False
    before, rng = _snapshot(bnn), torch.get_rng_state()
    bnn.fit(data, candidate.method(), progress=False, **candidate.quick())
    bnn.predict(data[0], 3)
    after = _snapshot(bnn)
    expect(torch.equal(rng, torch.get_rng_state()), "the global random state was changed")
    expect(
        _same(before["state"], after["state"]), "the caller's parameters or buffers were changed"
    )
    expect(
        before["flags"] == after["flags"] and before["modes"] == after["modes"],
        "gradients, grad flags or modes were changed",
    )


@checks.register("dtype")
def dtype(candidate: Candidate) -> None:
    """A float64 network gives float64 predictions."""
    bnn, (x, y) = candidate.example()
    bnn.net.double()
    x = x.double()
    double = BNN(bnn.net, bnn.likelihood, bnn.prior).fit(
        (x, y), candidate.method(), progress=False, **candidate.quick()
    )
    expect(double.predict(x, 3).outputs.dtype == torch.float64, "float64 was not kept")


@checks.register("save_load")
def save_load(candidate: Candidate) -> None:
    """A saved and loaded model predicts identically."""
    bnn, (x, _) = candidate.fitted()
    with tempfile.TemporaryDirectory() as folder:
        bnn.save(Path(folder) / "model")
        again = load(Path(folder) / "model", bnn.net)
    expect(
        torch.equal(bnn.predict(x, 7).outputs, again.predict(x, 7).outputs),
        "a loaded model predicts differently",
    )


@checks.register("resume")
def resume(candidate: Candidate) -> None:
    """A run killed without warning and resumed ends exactly where an uninterrupted one does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(
        1
    )  # a forked process has none of its parent's worker threads and would wait for them for ever
    try:
        _resume(candidate)
    finally:
        torch.set_num_threads(threads)


def _resume(candidate: Candidate) -> None:
    whole, _ = candidate.fitted()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        child = os.fork()
        if child == 0:
            _run_and_die(candidate, run)
        os.waitpid(child, 0)
        expect(
            (run / "checkpoint.safetensors").exists(), "no checkpoint was left by the killed run"
        )
        resumed, _ = candidate.fitted(run=run)
    expect(
        _same(whole.posterior.state_dict(), resumed.posterior.state_dict()),
        "the resumed run ends elsewhere",
    )
    rows = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in bnn.history]
        for bnn in (whole, resumed)
    ]
    expect(rows[0] == rows[1], "the resumed run's history differs")


def _run_and_die(candidate: Candidate, run: Path) -> None:
    """In a child process: fit with a checkpoint after every epoch, and get killed in the middle."""
    from credo.engine import fit_job

    fit_job.CHECKPOINT_SECONDS = 0.0

    def die(row: dict[str, Any]) -> None:
        if row["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        candidate.fitted(run=run, callbacks=[die])
    finally:
        os._exit(1)


def _takes_any_text(metadata: Mapping[str, Any]) -> bool:
    """Whether a field is free text, such as a pattern of names: no text is a bad value of its
    own.
    """
    kind = metadata.get("kind")
    return str in (kind if isinstance(kind, tuple) else (kind,)) and not metadata.get("choices")


@checks.register("settings")
def settings(candidate: Candidate) -> None:
    """Each bad setting is named in its error, and an unknown one brings the nearest name."""
    for field in fields(candidate.method):
        if not field.metadata:
            continue
        for bad in (object(), math.nan, "no such value"):
            if isinstance(bad, str) and _takes_any_text(field.metadata):
                continue
            try:
                candidate.method(**{field.name: bad})
            except SettingError as error:
                expect(
                    field.name in str(error),
                    f"the error for {field.name}={bad!r} does not name it: {error}",
                )
            else:
                raise Failure(f"{field.name}={bad!r} was accepted")
    bnn, data = candidate.example()
    try:
        bnn.fit(data, candidate.method(), no_such_setting=1)
    except SettingError as error:
        expect("no_such_setting" in str(error), "an unknown setting is not named in its error")
    else:
        raise Failure("an unknown setting was accepted")


@checks.register("uncertainty")
def uncertainty(candidate: Candidate) -> None:
    """Probabilities normalise; total = aleatoric + epistemic; mutual information is not
    negative.
    """
    bnn, (x, y) = candidate.fitted()
    p = bnn.predict(x, 20)
    if candidate.classifies:
        expect(
            torch.allclose(p.probs.sum(-1), torch.ones_like(p.probs[..., 0]), atol=1e-5),
            "probabilities do not sum to one",
        )
    expect(
        torch.allclose(p.total, p.aleatoric + p.epistemic, atol=1e-6),
        "total is not aleatoric + epistemic",
    )
    expect((p.epistemic >= 0).all(), "epistemic uncertainty is negative")
    expect(math.isfinite(bnn.evaluate((x, y), 20)["nll"]), "the nll is not finite")


@checks.register("networks")
def networks(candidate: Candidate) -> None:
    """Fits and predicts on an MLP, a CNN with BatchNorm, an LSTM and a Transformer."""
    for name, make in examples().items():
        case = make()
        net = candidate.method.example_network(case.net, 3)
        bnn = BNN(net, "categorical").fit(
            (case.x, case.y), candidate.method(), progress=False, **candidate.quick()
        )
        expect(
            bnn.predict(case.x, 4).probs.isfinite().all(),
            f"predictions on the {name} are not finite",
        )


@checks.register("conjugate_mean")
def conjugate_mean(candidate: Candidate) -> None:
    """On conjugate linear regression the draws are centred where the method's exact answer is, by
    z-test.
    """
    problem = conjugate(**candidate.method.problem)
    target = targets[candidate.method.target](problem).mean
    draws, chains = _draws(candidate)
    sd = problem.covariance.diagonal().sqrt()
    if len(draws) == 1:
        expect(
            ((draws[0] - target).abs() / sd).max() < candidate.method.tolerance,
            f"the point is {draws[0].tolist()}, not {target.tolist()}",
        )
        return
    slack = candidate.method.tolerance * sd  # what the method's own convergence leaves
    excess = ((draws.mean(0) - target).abs() - slack).clamp_min(0)
    z = torch.where(
        excess > 0, excess / _error(draws, chains), 0.0
    )  # a point has no standard error
    expect(
        z.max() < Z,
        f"posterior means are off by z = {z.max():.1f} (limit {Z}, failure rate {RATE})",
    )


@checks.register("conjugate_covariance")
def conjugate_covariance(candidate: Candidate) -> None:
    """On conjugate linear regression the draws have the variances of the method's exact answer, by
    a z-test with the standard error of their squares.
    """
    target = targets[candidate.method.target](conjugate(**candidate.method.problem)).variance
    draws, chains = _draws(candidate)
    expect((draws.var(0)[target == 0] == 0).all(), "a parameter that should be a point varies")
    draws, target = draws[:, target > 0], target[target > 0]
    log_ratio = (draws.var(0) / target).log().abs()
    centred = (draws - draws.mean(0)).square()
    error = _error(centred, chains) / centred.mean(0) + 1e-3
    z = (log_ratio - 2 * candidate.method.tolerance).clamp_min(0) / error
    expect(
        z.max() < Z,
        f"posterior variances are off by z = {z.max():.1f} (limit {Z}, failure rate {RATE})",
    )


#: Two-sided limit for the largest of four z values; a right method fails a check with at most this
#: probability.
Z, RATE = 4.2, 1e-4


def _error(values: Tensor, chains: int) -> Tensor:
    """Standard error of the mean of ``(S, 4)``: of independent draws, or of chains that lie one
    after another.
    """
    if chains == 1:
        return values.std(0) / math.sqrt(len(values))
    return mcse_mean(values.reshape(chains, -1, values.shape[1]))


def _draws(candidate: Candidate) -> tuple[Tensor, int]:
    """Draws (S, 4) of weights and bias on the conjugate problem, one row for a point estimate, and
    of how many chains they are.
    """
    return _fitted_draws(candidate.method, candidate.method.fit)


@lru_cache(maxsize=1)
def _fitted_draws(method: type[Method], fit: Callable[..., Any]) -> tuple[Tensor, int]:
    """The same, of one fit for the checks that follow each other; ``fit`` is the method's, which a
    test may have replaced.
    """
    problem = conjugate(**method.problem)
    bnn = problem.bnn(method.example_network).fit(
        (problem.x, problem.y), method(), progress=False, **method.conformance_settings
    )
    if bnn.posterior.process is not None:
        return _read_off(bnn, problem.x.shape[1]), 1
    chains = max((family.chains or 1 for family in bnn.posterior.factors), default=1)
    numbers = bnn.posterior.numbers(bnn.posterior.atoms or 4000)
    params = bnn.posterior.realise(numbers, 0)
    found = [
        next(value for name, value in params.items() if name.endswith(leaf))
        for leaf in ("weight", "bias")
    ]
    return torch.cat([value.flatten(1) for value in found], 1).double(), chains


def _read_off(bnn: BNN, features: int) -> Tensor:
    """The same of a posterior over functions, which are linear here: what they are at the unit
    vectors and at zero.
    """
    points = torch.cat([torch.eye(features), torch.zeros(1, features)]).double()
    values = bnn.functions(points, 4000)[:, :, 0].double()
    return torch.cat([values[:, :-1] - values[:, -1:], values[:, -1:]], 1)
