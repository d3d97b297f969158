"""What a plan says is what a fit then does, and making it changes nothing."""

import json
import random
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import credo
from credo.conformance.suite import Candidate
from credo.core.errors import CredoError
from credo.engine import plan_timing
from credo.engine.fit_job import Problem
from credo.methods import methods

LONGEST = 3.0  # seconds that a plan may take on a problem of this size
pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")
SHORT = {"num_warmup": 3, "num_draws": 4}


def problem(rows=60, hidden=()):
    source = torch.Generator().manual_seed(0)
    x, y = (torch.randn(rows, k, generator=source) for k in (3, 1))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = credo.nets.mlp(3, hidden, 1)
    return credo.BNN(net, credo.likelihoods.Gaussian(std=0.5)), (x, y)


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Shorter trials than those of users."""
    monkeypatch.setattr(plan_timing, "MOVING", 0.1)
    monkeypatch.setattr(plan_timing, "EPOCHS", 3)


@pytest.mark.parametrize("name", methods.names())
def test_every_method_has_a_plan(name):
    candidate = Candidate(methods[name])
    bnn, data = candidate.example()
    random_state, settings = torch.get_rng_state(), methods[name]().settings()
    values = {n: t.clone() for n, t in bnn.net.state_dict().items()}
    started = time.perf_counter()
    plan = bnn.plan(data, name)
    assert time.perf_counter() - started < LONGEST
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(t, values[n]) for n, t in bnn.net.state_dict().items())
    assert not bnn.is_fitted and bnn.history == []
    assert plan.seconds is not None and plan.seconds > 0 and plan.memory > 0
    assert plan.settles == (methods[name].takes_epochs and not methods[name].fixed_length)
    assert {n for n in settings if plan.settings[n] != settings[n]} == set(plan.chosen)
    assert (plan.epochs is None) == (not methods[name].takes_epochs or plan.steps is None)
    assert json.loads(json.dumps(plan.to_dict())) == plan.to_dict()
    assert str(plan).startswith(f"{name} on {len(data[1])} examples")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vi", {"epochs": 7, "batch_size": 16}),
        ("map", {"epochs": 3}),
        ("swag", {"epochs": 8}),
        ("svgd", {"epochs": 5, "batch_size": 16, "num_particles": 3}),
        ("exact", {}),
        ("importance", {"epochs": 2, "num_proposals": 100}),
    ],
)
def test_a_fit_has_the_epochs_of_its_plan(name, arguments):
    bnn, data = problem()
    plan = bnn.plan(data, name, **arguments)
    rows = bnn.fit(data, name, progress=False, **arguments).history
    epochs = [row for row in rows if "seconds" in row]
    assert len(epochs) == (plan.epochs or 0)
    if plan.epochs is not None:
        assert plan.steps == plan.epochs * plan.batches
    found = bnn.method.for_problem(Problem(plan.num_data, plan.num_weights))
    assert plan.settings == found.settings()


@pytest.mark.parametrize("name", ["hmc", "sgld", "csgmcmc", "tempering"])
def test_a_fit_has_the_moves_of_its_plan(name):
    settings = {"num_warmup": 30, "num_draws": 8, "thin": 1, "num_chains": 2}
    settings |= {"num_steps": 2, "num_rungs": 2} if name == "tempering" else {}
    bnn, data = problem()
    plan = bnn.plan(data, name, **settings)
    rows = bnn.fit(data, name, progress=False, **settings).history
    assert plan.steps == rows[-1]["epoch"] + 1
    assert (plan.num_chains, plan.num_draws, plan.epochs) == (2, 8, None)


def test_a_descent_ends_within_its_plan():
    bnn, data = problem()
    plan = bnn.plan(data, "map")
    rows = bnn.fit(data, "map", progress=False).history
    assert plan.settles and len(rows) < plan.epochs and rows[-1]["ended"] == "settled"


def test_what_the_problem_chooses_is_marked():
    bnn, data = problem()
    plan = bnn.plan(data, "svgd")
    assert plan.chosen == ("num_particles",) and plan.settings["num_particles"] == 200
    assert "200, chosen by the problem" in str(plan)
    given = bnn.plan(data, "svgd", num_particles=7)
    assert given.chosen == () and given.settings["num_particles"] == 7


def test_a_plan_changes_nothing_of_a_fitted_model():
    bnn, data = problem()
    bnn.fit(data, "vi", epochs=2, progress=False)
    posterior, history, model = bnn.posterior, list(bnn.history), bnn.model
    before = {n: t.clone() for n, t in posterior.state_dict().items()}
    likelihood = bnn.likelihood
    bnn.plan(data, "hmc", **SHORT)
    assert bnn.posterior is posterior and bnn.model is model and bnn.likelihood is likelihood
    assert bnn.history == history and bnn.method.name == "vi"
    assert all(torch.equal(t, before[n]) for n, t in posterior.state_dict().items())


def test_random_states_and_loaders_are_left_as_found():
    bnn, (x, y) = problem()
    order = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True, generator=order)
    states = order.get_state(), np.random.get_state()[1].copy(), random.getstate()
    plan = bnn.plan(loader, "vi")
    assert (plan.batch_size, plan.batches) == (8, 8)
    assert torch.equal(order.get_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all() and random.getstate() == states[2]


def test_data_that_a_plan_would_use_up_are_refused():
    bnn, data = problem()
    with pytest.raises(CredoError, match="iterated once only"):
        bnn.plan(iter([data]), num_data=60)


def test_nothing_is_written_and_no_callback_called(tmp_path):
    bnn, data = problem()
    plan = bnn.plan(data, "hmc", run=tmp_path / "run", store="disk", callbacks=[print], **SHORT)
    assert plan.steps == 7 and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("exact", {}),
        ("hmc", {"epochs": 3}),
        ("hmc", {"store": "disk"}),
        ("vi", {"init_st": 1}),
        ("snapshot", {"epochs": 2}),
        ("nope", {}),
    ],
)
def test_what_a_fit_refuses_a_plan_refuses_alike(name, arguments):
    bnn, data = problem(hidden=(4,))
    with pytest.raises(CredoError) as of_fit:
        bnn.fit(data, name, progress=False, **arguments)
    with pytest.raises(CredoError) as of_plan:
        bnn.plan(data, name, **arguments)
    assert str(of_plan.value) == str(of_fit.value)


def test_a_long_fit_is_tried_on_a_part_of_the_data():
    bnn, data = problem(rows=5_000)
    plan = bnn.plan(data, "vi", batch_size=128)
    assert (plan.num_data, plan.batches) == (5_000, 40)
    assert bnn.plan(data, "exact").seconds is None
    assert "not known" in str(bnn.plan(data, "exact"))


@pytest.mark.parametrize("kind", ["dataset", "batches"])
def test_data_that_are_not_in_memory(kind):
    bnn, (x, y) = problem(rows=100)
    dataset = list(zip(x, y, strict=True))
    data = {"dataset": Rows(dataset), "batches": [(x[:60], y[:60]), (x[60:], y[60:])]}[kind]
    size = {"dataset": 5, "batches": None}[kind]
    for name in ("vi", "svgd"):
        plan = bnn.plan(data, name, batch_size=size)
        assert (plan.num_data, plan.batches) == (100, {"dataset": 20, "batches": 2}[kind])
        assert plan.seconds > 0


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def test_seconds_are_limited_and_compiling_is_not_timed():
    bnn, data = problem()
    plan = bnn.plan(data, "vi", max_seconds=0.01)
    assert plan.seconds == 0.01 and any("max_seconds=0.01" in note for note in plan.notes)
    compiled = bnn.plan(data, "vi", compile=True)
    assert compiled.seconds is None and compiled.settings["compile"] is True
    assert "compile=True" in str(compiled)


def test_a_sampler_says_how_many_steps_a_move_is_taken_to_have():
    bnn, data = problem()
    plan = bnn.plan(data, "hmc", num_steps=3, **SHORT)
    assert "The time is that of about 3 leapfrog steps per move" in str(plan)


def test_memory_counts_what_is_learned_and_the_draws():
    bnn, data = problem()
    weights = 4 * 4  # bytes of three weights and a bias
    # the network twice; means and spreads, each with a gradient and two averages of Adam
    steps = 2 * 4 * 4  # of Adam's counters, per tensor: at most
    assert 0 <= bnn.plan(data, "vi").memory - (2 * weights + 2 * 4 * weights) <= steps
    plan = bnn.plan(data, "hmc", num_chains=3, **SHORT)
    assert plan.memory == 2 * weights + 3 * 4 * weights


def test_the_time_is_about_that_of_the_fit():
    """Not a statistical test: a factor of five is for busy machines."""
    bnn, data = problem(hidden=(8,))
    plan = bnn.plan(data, "map", epochs=300, batch_size=16)
    started = time.perf_counter()
    bnn.fit(data, "map", epochs=300, batch_size=16, progress=False)
    assert 0.2 < plan.seconds / (time.perf_counter() - started) < 5


def test_validation_is_part_of_the_time():
    class Slow(nn.Linear):
        def forward(self, x):
            if not self.training:
                time.sleep(0.002)
            return super().forward(x)

    bnn, data = credo.BNN(Slow(3, 1), credo.likelihoods.Gaussian(std=0.5)), problem()[1]
    plan = bnn.plan(data, "map", epochs=1_000, validation=data)
    assert plan.seconds > 2


@pytest.mark.parametrize(("name", "steps"), [("vi", 8_000), ("hmc", None)])
def test_a_trial_does_not_wait_for_a_step_for_ever(monkeypatch, name, steps):
    monkeypatch.setattr(plan_timing, "PATIENCE", 0.0)
    bnn, data = problem()
    plan = bnn.plan(data, name)
    assert plan.seconds is None and plan.steps == steps and plan.lr is not None
    assert "not one step was done" in str(plan)
    if steps is None:
        assert ("length", "not known") in plan.rows()
