"""Distillation: the student is the teacher's predictions, repeatably, whatever the labels; and what
cannot be distilled is refused.
"""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import credo
from credo.core.errors import CredoError, DataError, NetworkError, RunError, SettingError
from credo.engine import run as runs
from credo.likelihoods import Categorical, Gaussian, Heteroscedastic, Laplace
from credo.tasks.distill import RECORD, distill

QUICK = {"epochs": 3, "batch_size": 16, "progress": False}


def build(*sizes, activation="tanh", seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return credo.nets.mlp(sizes[0], sizes[1:-1], sizes[-1], activation=activation)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def classes():
    """A chain's posterior on 40 points in the plane."""
    x = normal(40, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()
    moves = {
        "num_chains": 4,
        "num_warmup": 100,
        "num_draws": 10,
        "thin": 20,
        "lr": 0.1,
        "progress": False,
    }
    return credo.BNN(build(2, 8, 2)).fit((x, y), "sghmc", **moves), x, y


@pytest.fixture(scope="module")
def values():
    """A variational posterior on two targets, whose uncertainty grows away from the data."""
    x = torch.linspace(-1, 1, 30).unsqueeze(1)
    y = torch.cat([torch.sin(3 * x), x.square()], 1) + 0.1 * normal(30, 2, seed=1)
    bnn = credo.BNN(build(1, 10, 2), Gaussian(std=0.1))
    return bnn.fit((x, y), "vi", epochs=400, lr=0.02, init_std=0.1, progress=False), x, y


def weights(bnn):
    return torch.cat([value.flatten() for value in bnn.posterior.mean().values()])


# --- what comes out -------------------------------------------------------------------------------


def test_a_wide_student_reaches_the_teachers_predictions_on_a_grid(classes):
    """At the inputs it was taught at: with enough weights nothing but the optimiser stands in the
    way, and 400 epochs leave it 1 %.
    """
    teacher, *_ = classes
    axis = torch.linspace(-2, 2, 9)
    grid = torch.cartesian_prod(axis, axis)
    found = distill(teacher, build(2, 64, 64, 2), grid, epochs=400, lr=1e-2, progress=False)
    theirs, ours = teacher.predict(grid, 40), found.student.predict(grid)
    assert ours.num_samples == 1 and float((ours.mean - theirs.mean).abs().max()) < 0.03
    assert found.fidelity["total_variation"] < 0.01 and found.fidelity["kl"] < 0.001
    assert found.fidelity["rank_correlation"] > 0.99 and found.fidelity["agreement"] > 0.95
    torch.testing.assert_close(ours.total, theirs.total, rtol=0, atol=0.05)
    assert (
        float(theirs.epistemic.mean()) > 0.02 and float(ours.epistemic.max()) < 1e-6
    )  # what it cannot say


def test_a_regression_students_variance_is_the_teachers_total(values):
    teacher, x, _ = values
    wide = torch.linspace(-2, 2, 60).unsqueeze(1)
    found = distill(
        teacher, build(1, 64, 64, 4), wide, samples=400, epochs=600, lr=1e-2, progress=False
    )
    assert isinstance(found.student.likelihood, Heteroscedastic)
    theirs, ours = teacher.predict(wide, 400), found.student.predict(wide)
    assert float(theirs.total.max() / theirs.total.min()) > 2  # there is something to learn
    assert (
        float((ours.variance / theirs.total).log().abs().mean()) < 0.05
    )  # and 600 epochs learn it to 5 %
    assert float(((ours.mean - theirs.mean) / theirs.std).abs().mean()) < 0.05
    assert found.fidelity["rank_correlation"] > 0.95


def test_perturbed_inputs_teach_the_same_predictions(classes):
    teacher, x, _ = classes
    found = distill(
        teacher,
        build(2, 32, 32, 2),
        x,
        inputs="perturbed",
        noise=0.3,
        epochs=300,
        batch_size=20,
        lr=1e-2,
        progress=False,
    )
    assert found.fidelity["kl"] < 0.02 and found.fidelity["rank_correlation"] > 0.9


def test_labels_never_count(classes):
    teacher, x, y = classes
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(3))
    for inputs in ("training", "perturbed"):
        first, *others = (
            distill(teacher, build(2, 6, 2), data, inputs=inputs, **QUICK)
            for data in (
                (x, y),
                (x, y[order]),
                x,
                (x, None),
                (x, "nothing at all"),
                (x.numpy(), y.numpy()),
                pd.DataFrame(x.numpy()),
            )
        )
        for other in others:
            assert (
                torch.equal(weights(first.student), weights(other.student))
                and first.fidelity == other.fidelity
            )


def test_perturbed_students_repeat_with_their_seed(classes):
    teacher, x, _ = classes
    students = [
        distill(teacher, build(2, 6, 2), x, inputs="perturbed", seed=seed, **QUICK).student
        for seed in (0, 0, 1)
    ]
    assert torch.equal(weights(students[0]), weights(students[1])) and not torch.equal(
        weights(students[0]), weights(students[2])
    )


def test_noise_and_a_function_of_the_users_matter(classes):
    teacher, x, _ = classes
    seen = []

    def perturb(rows, source):
        seen.append(len(rows))
        return rows * 1.5

    options = ({"noise": 0.1}, {"noise": 0.5}, {"perturb": perturb})
    students = [
        distill(teacher, build(2, 6, 2), x, inputs="perturbed", **option, **QUICK).student
        for option in options
    ]
    assert len({tuple(weights(student).tolist()) for student in students}) == 3
    assert seen == [16, 16, 8] * 3  # fresh in every epoch


def test_everything_else_is_left_as_it_was(classes):
    teacher, x, y = classes
    net = build(2, 6, 2)
    before, rng = {n: v.clone() for n, v in net.state_dict().items()}, torch.get_rng_state()
    theirs, kept = teacher.predict(x).outputs, x.clone()
    for inputs in ("training", "perturbed"):
        distill(teacher, net, (x, y), inputs=inputs, **QUICK)
    assert all(torch.equal(before[n], v) for n, v in net.state_dict().items()) and all(
        p.grad is None for p in net.parameters()
    )
    assert torch.equal(rng, torch.get_rng_state()) and torch.equal(x, kept) and net.training
    assert torch.equal(teacher.predict(x).outputs, theirs) and teacher.net is not net


# --- the student is a plain model -----------------------------------------------------------------


def test_the_student_is_saved_and_loaded_like_any_model(values, tmp_path):
    teacher, x, y = values
    student = distill(teacher, build(1, 6, 4), x, **QUICK).student
    student.save(tmp_path / "s")
    loaded = credo.load(tmp_path / "s", build(1, 6, 4))
    assert (
        torch.equal(loaded.predict(x).outputs, student.predict(x).outputs)
        and loaded.likelihood.name == "heteroscedastic"
    )
    assert set(student.evaluate((x, y))) == {"nll", "rmse", "crps", "coverage_90", "std"}
    assert (
        len(student.history) == 3 and "heteroscedastic" in repr(student) and "mle" in repr(student)
    )
    student.fit((x, y), "map", epochs=2, progress=False)  # on labels, as any model
    assert not torch.equal(loaded.predict(x).outputs, student.predict(x).outputs)


def test_learned_noise_of_the_student_is_kept(values, tmp_path):
    """One deviation for all x: its optimum is the root mean total variance and squared error of the
    mean.
    """
    teacher, x, _ = values
    found = distill(
        teacher,
        build(1, 32, 2),
        x,
        likelihood=Gaussian(num_outputs=2),
        epochs=600,
        lr=2e-2,
        samples=200,
        progress=False,
    )
    p, own = teacher.predict(x, 200), found.student.predict(x)
    wanted = (p.total + (own.mean - p.mean).square()).mean(0)
    torch.testing.assert_close(own.variance[0], wanted, rtol=0.02, atol=0)
    found.student.save(tmp_path / "s")
    torch.testing.assert_close(
        credo.load(tmp_path / "s", build(1, 32, 2)).predict(x).variance, own.variance
    )
    assert (
        found.fidelity["rank_correlation"] != found.fidelity["rank_correlation"]
    )  # the same everywhere: no ranks


def test_a_run_directory_is_a_plain_students_and_is_taken_up_again(values, tmp_path):
    teacher, x, _ = values
    first = distill(teacher, build(1, 6, 4), x, run=tmp_path / "r", **QUICK)
    assert torch.equal(
        credo.load(tmp_path / "r", build(1, 6, 4)).predict(x).outputs,
        first.student.predict(x).outputs,
    )
    rows = []
    again = distill(
        teacher, build(1, 6, 4), x, run=tmp_path / "r", callbacks=(rows.append,), **QUICK
    )
    assert not rows and again.fidelity == first.fidelity
    assert json.loads((tmp_path / "r" / RECORD).read_text())["samples"] == 100


@pytest.mark.parametrize(
    "method",
    [
        ("vi", {}),
        ("sgld", {"num_warmup": 5, "num_draws": 3, "num_chains": 2}),
        ("mc_dropout", {"p": 0.2}),
    ],
)
@pytest.mark.parametrize("inputs", ["training", "perturbed"])
def test_students_of_any_method(classes, method, inputs):
    teacher, x, _ = classes
    name, settings = method
    short = {"progress": False, "batch_size": 16} | ({} if name == "sgld" else {"epochs": 2})
    found = distill(teacher, build(2, 6, 2), x, inputs=inputs, method=name, **short, **settings)
    assert (
        found.student.predict(x, 5).num_samples == 5 and 0 <= found.fidelity["total_variation"] <= 1
    )
    assert isinstance(found.student.likelihood, Categorical) and found.student.method.name == name


@pytest.mark.parametrize("inputs", ["training", "perturbed"])
@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson", "laplace", "student_t"])
def test_teachers_of_other_likelihoods(likelihood, inputs):
    x = normal(24, 1)
    y = (x[:, 0] > 0).float() if likelihood in ("bernoulli", "poisson") else x
    teacher = credo.BNN(build(1, 4, 1), likelihood).fit((x, y), "vi", epochs=3, progress=False)
    own = teacher.likelihood.student()
    found = distill(
        teacher,
        build(1, 4, own.student_outputs(teacher.likelihood, 1)),
        x,
        inputs=inputs,
        test=(x, y),
        **QUICK,
    )
    assert found.student.likelihood.name == own.name and {"nll_teacher", "nll_student"} <= set(
        found.fidelity
    )


def test_a_student_of_drawn_targets_learns_them(values):
    """Laplace has no closed form: its student learns from drawn y, and the median it states is near
    the teacher's mean.
    """
    teacher, x, _ = values
    found = distill(
        teacher,
        build(1, 32, 2),
        x,
        likelihood=Laplace(),
        samples=200,
        epochs=300,
        lr=1e-2,
        progress=False,
    )
    gap = found.student.predict(x).mean - teacher.predict(x, 200).mean
    assert (
        float((gap / teacher.predict(x, 200).std).abs().mean()) < 0.25
    )  # 200 drawn y leave 1.25 / sqrt(200) of a deviation


def test_a_teacher_that_is_random_by_itself(classes):
    _, x, y = classes
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
    teacher = credo.BNN(net).fit((x, y), "mc_dropout", epochs=5, progress=False)
    students = [
        distill(teacher, build(2, 6, 2), x, inputs="perturbed", samples=3, **QUICK).student
        for _ in range(2)
    ]
    assert torch.equal(*(weights(student) for student in students))


class Pair(nn.Module):
    """Two inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, a, b):
        return self.layer(torch.cat([a, b], -1))


def test_several_inputs_and_double_precision():
    x, y = {"a": normal(20, 2), "b": normal(20, 1, seed=1)}, torch.arange(20) % 2
    teacher = credo.BNN(Pair()).fit((x, y), "vi", epochs=2, progress=False)
    for inputs in ("training", "perturbed"):
        found = distill(teacher, Pair().double(), x, inputs=inputs, test=(x, y), **QUICK)
        assert (
            found.student.predict(x).outputs.dtype == torch.float64
            and "error_student" in found.fidelity
        )


def test_fidelity_is_measured_at_test_inputs(classes):
    teacher, x, y = classes
    far, labels = 3 * normal(10, 2, seed=9), torch.zeros(10).long()
    near = distill(teacher, build(2, 6, 2), (x, y), **QUICK).fidelity
    found = distill(teacher, build(2, 6, 2), (x, y), test=far.numpy(), **QUICK).fidelity
    assert set(found) == set(near) and found != near
    scored = distill(teacher, build(2, 6, 2), x, test=(far, labels), **QUICK).fidelity
    assert set(scored) - set(found) == {
        "nll_teacher",
        "nll_student",
        "error_teacher",
        "error_student",
    }
    p = teacher.predict(far, 40)
    assert scored["error_teacher"] == pytest.approx(float((p.label != labels).double().mean()))


@pytest.mark.parametrize("curvature", ["ggn", "empirical", "mc"])
def test_a_student_may_have_curvature(classes, values, curvature):
    for (teacher, x, _), width in ((classes, 2), (values, 4)):
        student = distill(
            teacher, build(x.shape[1], 6, width), x, method="laplace", curvature=curvature, **QUICK
        ).student
        assert student.predict(x).outputs.shape == (100, len(x), width)


# --- resuming -------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", ["training", "perturbed"])
def test_a_run_stopped_on_the_way_resumes_to_the_same_student(
    classes, tmp_path, monkeypatch, inputs
):
    teacher, x, _ = classes
    options = {"inputs": inputs, "epochs": 6, "batch_size": 16, "progress": False}
    whole = distill(teacher, build(2, 6, 2), x, **options)
    clock = itertools.count(
        step=3600
    )  # an hour between looks at the clock: every epoch is worth a checkpoint
    monkeypatch.setattr(
        "credo.engine.training_loop.time",
        SimpleNamespace(monotonic=lambda: next(clock), perf_counter=lambda: 0.0),
    )
    record, count = runs.Run.record, [0]

    def stop(self, row):
        count[0] += 1
        if count[0] == 4:
            raise KeyboardInterrupt
        record(self, row)

    monkeypatch.setattr(runs.Run, "record", stop)
    with pytest.raises(KeyboardInterrupt):
        distill(teacher, build(2, 6, 2), x, run=tmp_path / "r", **options)
    monkeypatch.setattr(runs.Run, "record", record)
    epochs = []
    resumed = distill(
        teacher,
        build(2, 6, 2),
        x,
        run=tmp_path / "r",
        callbacks=(lambda row: epochs.append(row["epoch"]),),
        **options,
    )
    assert epochs == [3, 4, 5]
    assert (
        torch.equal(weights(whole.student), weights(resumed.student))
        and whole.fidelity == resumed.fidelity
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise": 0.2}, "noise: there 0.1, now 0.2"),
        ({"samples": 3}, "samples: there 10, now 3"),
        ({"inputs": "training", "samples": 10}, "inputs: there 'perturbed', now 'training'"),
        ({"perturb": lambda x, g: x}, "perturb: there False, now True"),
        ({"x": 1.0}, "data: there"),
        ({"teacher": "another"}, "teacher: there"),
        ({"lr": 0.5}, "fit.lr"),
    ],
)
def test_a_run_is_not_resumed_as_another(classes, tmp_path, change, message):
    teacher, x, y = classes
    distill(teacher, build(2, 6, 2), x, inputs="perturbed", run=tmp_path / "r", **QUICK)
    if change.pop("teacher", None):
        teacher = credo.BNN(build(2, 8, 2)).fit((x, y), "vi", epochs=1, progress=False)
    moved = x + change.pop("x", 0.0)
    with pytest.raises(RunError, match=message):
        distill(
            teacher,
            build(2, 6, 2),
            moved,
            run=tmp_path / "r",
            **{"inputs": "perturbed"} | QUICK | change,
        )


# --- refusals -------------------------------------------------------------------------------------


def test_a_teacher_that_is_not_fitted(classes):
    _, x, _ = classes
    with pytest.raises(CredoError, match="The teacher has no posterior yet"):
        distill(credo.BNN(build(2, 4, 2)), build(2, 4, 2), x, **QUICK)
    with pytest.raises(SettingError, match="teacher is a Sequential"):
        distill(build(2, 4, 2), build(2, 4, 2), x, **QUICK)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"inputs": "perturb"},
            SettingError,
            "inputs='perturb' is not valid. Did you mean 'perturbed'",
        ),
        ({"noise": 0.0, "inputs": "perturbed"}, SettingError, "noise=0.0"),
        ({"noise": "much"}, SettingError, "noise='much'"),
        ({"samples": 0}, SettingError, "samples=0"),
        ({"samples": 2.5}, SettingError, "samples=2.5"),
        ({"seed": 0.5}, SettingError, "seed=0.5"),
        ({"perturb": lambda x, g: x}, SettingError, "perturb= is used with inputs='perturbed'"),
        ({"method": "mlee"}, SettingError, "Did you mean 'mle'"),
        (
            {"method": "exact"},
            SettingError,
            "'exact' solves .* in closed form, from targets that were observed; .* such as 'mle'",
        ),
        ({"method": "nngp"}, SettingError, "'nngp' solves for its posterior in closed form"),
        ({"rate": 3}, SettingError, "no setting 'rate'"),
        ({"epochs": 0}, SettingError, "epochs=0"),
        ({"lr": -1.0}, SettingError, "lr=-1.0"),
        ({"likelihood": "gausian"}, SettingError, "Did you mean 'gaussian'"),
        (
            {"likelihood": "gaussian"},
            SettingError,
            "gaussian likelihood describes continuous values",
        ),
        ({"test": normal(4, 3)}, NetworkError, "cannot predict at test"),
        ({"test": (normal(4, 2), torch.tensor([0, 1, 2, 0]))}, DataError, "2 outputs"),
        ({"test": (normal(4, 2), torch.tensor([0, 1]))}, DataError, "x has 4 rows and y has 2"),
    ],
)
def test_settings_are_refused_by_name(classes, options, kind, message):
    teacher, x, _ = classes
    seen = []
    with pytest.raises(kind, match=message):
        distill(teacher, build(2, 4, 2), x, callbacks=(seen.append,), **QUICK | options)
    assert not seen  # before any work


def test_students_whose_outputs_do_not_fit(classes, values):
    teacher, x, _ = classes
    with pytest.raises(NetworkError, match="gives 3 outputs per example, but needs 2.*categorical"):
        distill(teacher, build(2, 4, 3), x, **QUICK)
    with pytest.raises(NetworkError, match=r"student cannot take data.*\(2, 2\)"):
        distill(teacher, build(3, 4, 2), x, **QUICK)
    teacher, x, _ = values
    wanted = (
        "gives 2 outputs.*needs 4.*heteroscedastic likelihood, 2 for each of 2 target.*or give "
        "likelihood='gaussian'"
    )
    with pytest.raises(NetworkError, match=wanted):
        distill(teacher, build(1, 4, 2), x, **QUICK)
    with pytest.raises(NetworkError, match="gives 5 outputs") as caught:
        distill(teacher, build(1, 4, 5), x, **QUICK)
    assert "or give likelihood" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (normal(5, 3), NetworkError, "teacher cannot predict at data"),
        (torch.full((5, 2), float("nan")), DataError, "data has NaN"),
        (np.zeros((0, 2)), DataError, "data is empty"),
        ("x.csv", DataError, "data is a str"),
        (credo.BNN, DataError, "data is a"),
    ],
)
def test_inputs_that_cannot_be_used(classes, data, kind, message):
    with pytest.raises(kind, match=message):
        distill(classes[0], build(2, 4, 2), data, **QUICK)


def test_whole_numbers_are_taken_as_they_are_but_not_perturbed():
    x, y = (
        torch.randint(0, 9, (20, 4), generator=torch.Generator().manual_seed(0)),
        torch.arange(20) % 2,
    )

    def net():
        return nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2))

    teacher = credo.BNN(net()).fit((x, y), "vi", epochs=2, progress=False)
    distill(teacher, net(), x, **QUICK)
    with pytest.raises(DataError, match="whole numbers.*perturb="):
        distill(teacher, net(), x, inputs="perturbed", **QUICK)
    distill(teacher, net(), x, inputs="perturbed", perturb=lambda rows, _: rows.flip(1), **QUICK)
