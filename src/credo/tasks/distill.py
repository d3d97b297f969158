"""Distillation: one network that predicts, in one pass, what a posterior predicts with many
(Bayesian dark knowledge).

The student minimises the mean over inputs x of KL(teacher's p(y given x), student's q(y given x)),
that is, it maximises E log q(y given x) over the teacher's own predictions of y; labels of the data
play no part. What comes out is a single network whose stated uncertainty is the teacher's *total*
uncertainty: it cannot say how much of it more data would remove. It knows only what it was shown:
far from the inputs it was taught at it may be as overconfident as any network, which is what
perturbed or unlabelled inputs are for.

Korattikara, Rathod, Murphy and Welling 2015, Bayesian dark knowledge.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from credo.audit.reference import subsample
from credo.bnn import BNN
from credo.core.errors import CredoError, NetworkError, RunError, SettingError, nearest
from credo.core.settings import positive, whole
from credo.core.tree import Tree, map_leaves, num_rows, take
from credo.data.checks import check_inputs, check_pair
from credo.data.source import Arrays, Source
from credo.engine.fit_job import Callback
from credo.engine.method import Method, make_method
from credo.engine.run import read_json, write_json
from credo.likelihoods.base import Likelihood, get
from credo.likelihoods.soft import Soft
from credo.tasks.fidelity import fidelity
from credo.tasks.teaching import Jitter, Perturb, Perturbed, Teacher

SAMPLES = {
    "training": 100,
    "perturbed": 10,
}  # draws behind a soft target; perturbed ones are made anew all the time
COMPARED = 1000  # training inputs that fidelity is measured at, at most, where there are no others
SHOWN = 1000  # draws of a discrete posterior that fidelity looks at, at most
RECORD = "distill.json"


@final
@dataclass(frozen=True)
class Distilled:
    """``student``: a fitted model with a plain likelihood.

    ``fidelity``: how well it repeats its teacher.

    The keys of ``fidelity`` are explained at ``credo.tasks.fidelity.fidelity``.
    """

    student: BNN
    fidelity: dict[str, float]


def distill(
    teacher: BNN,
    student: nn.Module,
    data: Any,
    *,
    inputs: str = "training",
    noise: float = 0.1,
    perturb: Perturb | None = None,
    samples: int | None = None,
    likelihood: str | Likelihood | None = None,
    method: str | Method = "mle",
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    test: Any = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    run: str | os.PathLike[str] | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Distilled:
    """Teach ``student``, a plain network, to predict what ``teacher`` predicts; both networks and
    the teacher are left as they are.

    ``data``: x, or (x, y), whose labels are not looked at: tensors, arrays or DataFrames; the
    training inputs, or any unlabelled ones. x that is a pair itself is given as (x, None).
    ``inputs="training"`` takes them as they are, with soft targets from ``samples`` draws (100),
    computed once. ``"perturbed"`` takes fresh copies x + ``noise`` * std(x) * N(0, 1) in every
    epoch (std of each feature), or ``perturb(x, generator)``, and soft targets from ``samples``
    draws (10) picked anew for every batch. ``likelihood``: of the student; by default the
    teacher's, or "heteroscedastic" where y is a real number, which takes two outputs per target.
    ``method``, ``epochs``, ... ``settings``: of the student's fit, as in ``BNN.fit``; ``run``
    resumes. ``test``: inputs, or (x, y), at which fidelity is measured; by default up to 1,000 of
    ``data``'s inputs.
    """
    chosen = make_method(method, settings)
    if not chosen.teachable:
        raise SettingError(
            f"method={chosen.name!r} solves for its posterior in closed form, from targets that "
            "were observed; a student learns its teacher's "
            "predictions, which are distributions over y. Give a method that trains, such as "
            "'mle', 'map' or 'vi'."
        )
    if inputs not in SAMPLES:
        raise SettingError(f"inputs={inputs!r} is not valid.{nearest(str(inputs), SAMPLES)}")
    if perturb is not None and inputs != "perturbed":
        raise SettingError(
            f"perturb= is used with inputs='perturbed' only, not with inputs={inputs!r}; change "
            "one of them."
        )
    count: int = positive("samples", samples, SAMPLES[inputs])
    noise = positive("noise", noise, 0.1)
    whole("seed", seed)
    home, x = _check_teacher(teacher), _inputs(teacher, data, "data")
    own = (
        teacher.model.likelihood.student() if likelihood is None else copy.deepcopy(get(likelihood))
    )
    outputs = _check_student(teacher, BNN(student, own), x)
    held_out = None if test is None else _held_out(teacher, test)
    x = map_leaves(lambda leaf: leaf.to(home), x)
    lessons = Teacher(teacher, own, count)
    apprentice = BNN(student, Soft(own, outputs))
    source: Any
    if inputs == "perturbed":
        feed = Perturbed(x, perturb or Jitter(x, noise), lessons)
        source = Source(feed, num_rows(x), apprentice._dtype)
    else:
        source = x, lessons.at(x, seed)
    record = None
    if run is not None:
        asked = {"inputs": inputs, "noise": noise, "perturb": perturb is not None, "samples": count}
        record = _Record(run, asked | {"data": _digest(x), "teacher": _digest(_state(teacher))})
    watchers = callbacks if record is None else (record, *callbacks)
    apprentice.fit(
        source,
        chosen,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        seed=seed,
        device=home if device is None else device,
        run=run,
        progress=progress,
        callbacks=watchers,
    )
    if record is not None:
        record({})
    plain = _plain(apprentice, own)
    at, y = held_out or (_some(x, seed), None)
    # A set of draws is shown whole where it can be: the distance to some of its draws is that of
    # chance too.
    shown = max(count, SAMPLES["training"], min(teacher.posterior.atoms or 0, SHOWN))
    return Distilled(plain, fidelity(teacher, plain, at, y, shown, seed))


def _check_teacher(teacher: BNN) -> torch.device:
    """Where the teacher's model is; a teacher without a posterior has nothing to teach."""
    if not isinstance(teacher, BNN):
        raise SettingError(f"teacher is a {type(teacher).__name__}; expected a fitted credo.BNN.")
    try:
        teacher.posterior  # noqa: B018  the property raises
    except CredoError as error:
        raise CredoError(
            "The teacher has no posterior yet; fit it first, or load one with credo.load."
        ) from error
    return teacher.model.device


def _inputs(teacher: BNN, data: Any, name: str) -> Tree:
    """Checked inputs of x or (x, y)."""
    return check_inputs(
        data[0] if isinstance(data, tuple) and len(data) == 2 else data,
        dtype=teacher._dtype,
        name=name,
    )


def _held_out(teacher: BNN, test: Any) -> tuple[Tree, Any]:
    """Inputs and targets of ``test``, refused before training where the teacher cannot be scored on
    them.
    """
    x = _inputs(teacher, test, "test")
    width = _first(teacher, x, "The teacher cannot predict at test")
    if not isinstance(test, tuple) or len(test) != 2 or test[1] is None:
        return x, None
    _, y = check_pair(x, test[1])
    teacher.model.likelihood.check_pair(torch.empty(num_rows(x), width), y)
    return x, y


def _first(bnn: BNN, x: Tree, what: str) -> int:
    """How many outputs the network gives for the first two inputs."""
    try:
        return bnn.functions(
            take(x, slice(0, 2)), 1, source="prior" if bnn._fitted is None else "posterior"
        ).shape[-1]
    except NetworkError as error:
        raise NetworkError(f"{what}: {error}") from error


def _check_student(teacher: BNN, student: BNN, x: Tree) -> int:
    """How many outputs the student needs, and has."""
    theirs = _first(teacher, x, "The teacher cannot predict at data")
    likelihood, own = teacher.model.likelihood, student.likelihood
    needed = own.student_outputs(likelihood, theirs)
    given = _first(student, x, "The student cannot take data")
    if given != needed:
        each = own.latents_per_target
        why = (
            f", {each} for each of {needed // each} target(s)"
            if each is not None and each > 1
            else ""
        )
        raise NetworkError(
            f"The student gives {given} outputs per example, but needs {needed} to state the "
            f"teacher's predictions with the {own.name} "
            f"likelihood{why}; change its last layer{_alternative(likelihood, own, theirs, given)}."
        )
    return needed


def _alternative(likelihood: Likelihood, own: Likelihood, theirs: int, given: int) -> str:
    """The teacher's own likelihood, where the student's outputs would do for that."""
    if likelihood.name == own.name or likelihood.student_outputs(likelihood, theirs) != given:
        return ""
    return f", or give likelihood={likelihood.name!r}, whose noise is the same at every x"


def _some(x: Tree, seed: int) -> Tree:
    """Up to 1,000 of the inputs, at random."""
    count = num_rows(x)
    return x if count <= COMPARED else subsample((x, torch.zeros(count)), COMPARED, seed)[0]


def _plain(apprentice: BNN, likelihood: Likelihood) -> BNN:
    """The fitted student with its own likelihood in place of the soft one."""
    fitted = apprentice.model.likelihood
    assert isinstance(fitted, Soft)
    student = copy.copy(apprentice)
    student.likelihood, student._initial = fitted.inside, copy.deepcopy(likelihood)
    student._model = replace(apprentice.model, likelihood=fitted.inside, _local=threading.local())
    return student


def _state(teacher: BNN) -> dict[str, Any]:
    """Every number that the teacher's predictions depend on."""
    parts = {
        "posterior": teacher.posterior.state_dict(),
        "buffers": teacher._result().buffers,
        "likelihood": teacher.model.likelihood.state_dict(),
        "frozen": teacher.model.frozen(),
    }
    return {
        f"{part}/{name}": tensor
        for part, tensors in parts.items()
        for name, tensor in tensors.items()
    }


def _digest(tree: Tree) -> str | None:
    return Source(Arrays(tree, torch.zeros(1)), 1).fingerprint()


@final
class _Record:
    """What a run was distilled from, kept beside it, so that it is not resumed with another teacher
    or other inputs.
    """

    def __init__(self, run: str | os.PathLike[str], now: dict[str, Any]) -> None:
        self.path, self.now = Path(run) / RECORD, now
        before = read_json(self.path) if self.path.is_file() else now
        differing = [
            f"{key}: there {before.get(key)!r}, now {value!r}"
            for key, value in now.items()
            if before.get(key) != value
        ]
        if differing:
            raise RunError(
                f"{run} holds another distillation ({'; '.join(differing)}). Choose another "
                "directory, or the same settings."
            )

    def __call__(self, _row: dict[str, Any]) -> None:
        """With the first row of the history: the run takes only a directory of its own, so this
        file joins it once it has one.
        """
        if not self.path.is_file():
            write_json(self.path, self.now)
