"""Distillation: one network that predicts, in one pass, what a posterior predicts with many
(Bayesian dark knowledge).

The student minimises the mean over inputs x of KL(teacher's p(y given x), student's q(y given x)),
that is, it maximises E log q(y given x) over the teacher's own predictions of y; labels of the data
are not used. The result is a single network whose stated uncertainty is the teacher's *total*
uncertainty: it cannot say how much of it more data would remove. Far from the inputs it was trained
at it may be as overconfident as any network; perturbed or unlabelled inputs help there.

Korattikara, Rathod, Murphy and Welling 2015, Bayesian dark knowledge.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import nn

from credo.audit.reference import subsample
from credo.bnn import BNN
from credo.core.atomic import read_json
from credo.core.errors import CredoError, NetworkError, RunError, SettingError, nearest
from credo.core.settings import positive, renamed, whole
from credo.core.tree import Tree, map_leaves, num_rows, take
from credo.data.checks import check_inputs, check_pair
from credo.data.intake import intake
from credo.data.source import Arrays, Source
from credo.engine.fit_job import Callback
from credo.engine.method import Method, make_method
from credo.engine.run import Run
from credo.likelihoods.base import Likelihood, get
from credo.likelihoods.soft import Soft
from credo.tasks.fidelity import fidelity
from credo.tasks.teaching import Jitter, Perturb, Perturbed, Teacher, check_units, in_units, inside

# draws behind a soft target; those at perturbed inputs are made anew for every batch
SAMPLES = {"training": 100, "perturbed": 10}
COMPARED = 1000  # most training inputs that fidelity is measured at, where there are no others
COMPARED_DRAWS = 1000  # most draws of a discrete posterior that fidelity uses
RECORD = "distill.json"


@final
@dataclass(frozen=True)
class Distilled:
    """A fitted ``student`` with a plain likelihood, and how faithfully it repeats its teacher: the
    keys of ``fidelity`` are explained at ``credo.tasks.fidelity.fidelity``.
    """

    student: BNN
    fidelity: dict[str, float]


@renamed(samples="num_samples", warn=False)
def distill(
    teacher: BNN,
    student: nn.Module,
    data: Any,
    *,
    inputs: str = "training",
    noise: float = 0.1,
    perturb: Perturb | None = None,
    num_samples: int | None = None,
    likelihood: str | Likelihood | None = None,
    method: str | Method = "mle",
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    test: Any = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    run: str | os.PathLike[str] | Run | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Distilled:
    """Teach ``student``, a plain network, to predict what ``teacher`` predicts; both networks and
    the teacher are left as they are.

    ``data``: x, or (x, y), whose labels are not used: tensors, arrays or DataFrames; the
    training inputs, or any unlabelled ones. x that is a pair itself is given as (x, None).
    ``inputs="training"`` takes them as they are, with soft targets from ``num_samples`` draws
    (100), computed once. ``"perturbed"`` takes fresh copies x + ``noise`` * std(x) * N(0, 1) in
    every epoch (std of each feature), or ``perturb(x, generator)``, and soft targets from
    ``num_samples`` draws (10) picked anew for every batch. ``likelihood``: of the student; by
    default the teacher's, or "heteroscedastic" where y is a real number, which takes two outputs
    per target. ``method``, ``epochs``, ... ``settings``: of the student's fit, as in ``BNN.fit``;
    ``run`` resumes. ``test``: inputs, or (x, y), at which fidelity is measured; by default up to
    1,000 of ``data``'s inputs.
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
    count: int = positive("num_samples", num_samples, SAMPLES[inputs])
    noise = positive("noise", noise, 0.1)
    whole("seed", seed)
    home, x = _check_teacher(teacher), _inputs(teacher, data, "data")
    own = (
        teacher.model.likelihood.student() if likelihood is None else copy.deepcopy(get(likelihood))
    )
    check_units(teacher, own)
    outputs = _check_student(teacher, BNN(student, own, standardise=False), x)
    held_out = None if test is None else _held_out(teacher, test)
    x = map_leaves(lambda leaf: leaf.to(home), x)
    units, given = teacher.standardised, x  # the student's are the teacher's
    if units is not None:
        given, perturb = units.inputs(x, teacher.dtype), in_units(perturb, units, teacher.dtype)
    targets = Teacher(inside(teacher), own, count)
    taught = BNN(student, Soft(own, outputs), standardise=units or False)
    source: Any
    if inputs == "perturbed":
        feed = Perturbed(given, perturb or Jitter(given, noise), targets)
        source = Source(feed, num_rows(x), taught.dtype)
    else:
        source = given, targets.at(given, seed)
        source = source if units is None else intake(source, dtype=taught.dtype)
    directory = None if run is None else Run.of(run)
    if directory is not None:
        asked = {"inputs": inputs, "noise": noise, "perturb": perturb is not None, "samples": count}
        made_of = {"data": _digest(x), "teacher": _digest(_state(teacher))}
        _attach_record(directory, asked | made_of)
    taught.fit(
        source,
        chosen,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        seed=seed,
        device=home if device is None else device,
        run=directory,
        progress=progress,
        callbacks=callbacks,
    )
    plain = _plain(taught, own)
    at, y = held_out or (_some_inputs(x, seed), None)
    # All of a set of draws where that is possible: the distance to some of them is partly chance.
    draws = max(count, SAMPLES["training"], min(teacher.posterior.atoms or 0, COMPARED_DRAWS))
    return Distilled(plain, fidelity(teacher, plain, at, y, draws, seed))


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
        dtype=None if teacher.standardised else teacher.dtype,
        name=name,
    )


def _held_out(teacher: BNN, test: Any) -> tuple[Tree, Any]:
    """Inputs and targets of ``test``; refused now if the teacher cannot predict them."""
    x = _inputs(teacher, test, "test")
    width = _num_outputs(teacher, x, "The teacher cannot predict at test")
    if not isinstance(test, tuple) or len(test) != 2 or test[1] is None:
        return x, None
    _, y = check_pair(x, test[1])
    teacher.model.likelihood.check_pair(torch.empty(num_rows(x), width), y)
    return x, y


def _num_outputs(bnn: BNN, x: Tree, what: str) -> int:
    """How many outputs the network gives, from its first two inputs."""
    try:
        return bnn.functions(
            take(x, slice(0, 2)), 1, source="prior" if not bnn.is_fitted else "posterior"
        ).shape[-1]
    except NetworkError as error:
        raise NetworkError(f"{what}: {error}") from error


def _check_student(teacher: BNN, student: BNN, x: Tree) -> int:
    """How many outputs the student needs, and has."""
    theirs = _num_outputs(teacher, x, "The teacher cannot predict at data")
    likelihood, own = teacher.model.likelihood, student.likelihood
    needed = own.student_outputs(likelihood, theirs)
    given = _num_outputs(student, x, "The student cannot take data")
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


def _some_inputs(x: Tree, seed: int) -> Tree:
    """Up to ``COMPARED`` of the inputs, at random."""
    count = num_rows(x)
    return x if count <= COMPARED else subsample((x, torch.zeros(count)), COMPARED, seed)[0]


def _plain(taught: BNN, likelihood: Likelihood) -> BNN:
    """The fitted student with its own likelihood in place of the soft one."""
    observed = taught.model.likelihood.observed
    student = copy.copy(taught)
    student.likelihood, student._initial = observed, copy.deepcopy(likelihood)
    student._model = replace(taught.model, likelihood=observed, _local=threading.local())
    return student


def _state(teacher: BNN) -> dict[str, Any]:
    """Every number that the teacher's predictions depend on."""
    parts = {
        "posterior": teacher.posterior.state_dict(),
        "buffers": teacher.buffers,
        "likelihood": teacher.model.likelihood.state_dict(),
        "frozen": teacher.model.frozen(),
        "standardised": {} if teacher.standardised is None else teacher.standardised.tensors(),
    }
    return {
        f"{part}/{name}": tensor
        for part, tensors in parts.items()
        for name, tensor in tensors.items()
    }


def _digest(tree: Tree) -> str | None:
    return Source(Arrays(tree, torch.zeros(1)), 1).fingerprint()


def _attach_record(run: Run, now: dict[str, Any]) -> None:
    """Keep beside the run what it was distilled from, so that it is not resumed with another
    teacher or other inputs.
    """
    path = run.path / RECORD
    before = read_json(path) if path.is_file() else now
    differing = [
        f"{key}: there {before.get(key)!r}, now {value!r}"
        for key, value in now.items()
        if before.get(key) != value
    ]
    if differing:
        raise RunError(
            f"{run.path} holds another distillation ({'; '.join(differing)}). Choose another "
            "directory, or the same settings."
        )
    run.attach(RECORD, now)
