import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset
from zoo.models import make_model, make_posterior
from zoo.networks import make

from credo import BNN
from credo.core.errors import CredoError, RunError
from credo.data import intake
from credo.engine import step as module
from credo.engine.elbo import Elbo
from credo.engine.fit_job import FitJob
from credo.engine.model import Fitted
from credo.engine.run import Run
from credo.engine.saved_model import CONFIG, POSTERIOR
from credo.engine.step import descend
from credo.engine.training_loop import Learner, train
from credo.estimators import estimators
from credo.likelihoods import Gaussian


def data(n=20):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 5, generator=generator).double(), torch.randn(
        n, 2, generator=generator
    ).double()


def start(kind="mean_field", estimator="local"):
    net, _ = make("mlp")
    model = make_model(net, likelihood=Gaussian(std=0.5))
    return Elbo(model, make_posterior(kind, model, std=0.1), estimators[estimator])


def fit_job(source=None, **how):
    return FitJob(
        **({"source": source or intake(data()), "epochs": 5, "batch_size": 8, "lr": 0.01} | how)
    )


def weights_seen(monkeypatch, source, batch_size):
    """The KL weights of one epoch under Blundell's schedule."""
    seen = []

    def spy(elbo, optimizer, num_data, compile):
        return lambda x, y, weight: (seen.append(weight), (torch.zeros(()), torch.zeros(())))[1]

    monkeypatch.setattr(module, "make_step", spy)
    from credo.engine.training_loop import schedules

    descend(
        start(), fit_job(source, epochs=1, batch_size=batch_size), schedule=schedules["blundell"]
    )
    return seen


@pytest.mark.parametrize(
    "make_source",
    [
        lambda: intake(data()),
        lambda: intake(DataLoader(TensorDataset(*data()), batch_size=3)),
        lambda: intake(DataLoader(TensorDataset(*data()), batch_size=3, drop_last=True)),
        lambda: intake([(data()[0][:5], data()[1][:5]), (data()[0][5:], data()[1][5:])]),
        lambda: intake(data(), num_data=1000),
    ],
)
@pytest.mark.parametrize("batch_size", [8, None])
def test_blundells_weights_average_one_whatever_batches_the_data_come_in(
    monkeypatch, make_source, batch_size
):
    seen = weights_seen(monkeypatch, make_source(), batch_size)
    assert abs(sum(seen) / len(seen) - 1) < 1e-12


def test_history_has_the_two_parts_in_nats_per_data_set():
    elbo, work = start(), fit_job()
    descend(elbo, work)
    assert [row["epoch"] for row in work.history] == list(range(5))
    assert all(abs(row["elbo"] + row["nll"] + row["kl"]) < 1e-9 for row in work.history)
    assert work.history[-1]["elbo"] > work.history[0]["elbo"]
    scaled = fit_job(intake(data(), num_data=200))
    descend(start(), scaled)
    ratio = scaled.history[0]["nll"] / work.history[0]["nll"]
    assert (
        9 < ratio < 11
    )  # the first epoch of the same data, counted ten times; steps differ a little


def test_a_point_estimate_finds_least_squares():
    """Adam on a linear network against the normal equations."""
    x, y = data(50)
    net = torch.nn.Linear(5, 2).double()
    model = make_model(net, likelihood=Gaussian(std=1.0)).flat()
    elbo = Elbo(model, make_posterior("delta", model), estimators["weights"])
    descend(elbo, FitJob(intake((x, y)), epochs=1500, batch_size=None, lr=0.02))
    design = torch.cat([x, torch.ones(50, 1).double()], 1)
    exact = torch.linalg.lstsq(design, y).solution
    assert torch.allclose(elbo.posterior.mean()["weight"], exact[:5].T, atol=1e-4)
    assert torch.allclose(elbo.posterior.mean()["bias"], exact[5], atol=1e-4)


def test_callbacks_see_rows_and_end_the_fit():
    rows = []
    work = fit_job(callbacks=[lambda row: rows.append(row["epoch"]) or row["epoch"] == 2])
    descend(start(), work)
    assert rows == [0, 1, 2] and len(work.history) == 3


def test_seeds_decide_and_the_global_state_stays():
    state = torch.get_rng_state()
    results = []
    for seed in (0, 0, 1):
        elbo = start()
        descend(elbo, fit_job(seed=seed))
        results.append(elbo.posterior.factors[0].flat_mean.detach())
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    assert torch.equal(state, torch.get_rng_state())


def test_an_exploding_objective_is_reported():
    with pytest.raises(CredoError, match=r"no longer finite in epoch \d+ .*use a smaller lr"):
        descend(start(), fit_job(lr=1e200, epochs=50))


def test_an_interrupted_run_resumes_to_the_same_numbers(tmp_path):
    """Stopped by an exception in the middle, resumed, against one go."""
    straight = start()
    work = fit_job(epochs=6, checkpoint_seconds=0.0)
    descend(straight, work)

    class Stop(Exception):
        pass

    def crash(row):
        if row["epoch"] == 3:
            raise Stop

    run = Run(tmp_path / "run")
    run.begin({})
    with pytest.raises(Stop):
        descend(start(), fit_job(epochs=6, run=run, checkpoint_seconds=0.0, callbacks=[crash]))
    elbo, rest = start(), fit_job(epochs=6, run=run, checkpoint_seconds=0.0)
    descend(elbo, rest)
    assert all(
        torch.equal(a, b)
        for a, b in zip(straight.posterior.parameters(), elbo.posterior.parameters(), strict=True)
    )
    assert (
        without_seconds(rest.history)
        == without_seconds(work.history)
        == without_seconds(run.history())
    )


def without_seconds(rows):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


SCRIPT = """
import sys, torch
torch.set_num_threads(1)
import credo, credo.engine.fit_job
credo.engine.fit_job.CHECKPOINT_SECONDS = 0.0
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
g = torch.Generator().manual_seed(1)
x, y = torch.randn(64, 5, generator=g), torch.randn(64, generator=g)
settings = dict(epochs=int(sys.argv[2]), batch_size=16, seed=3, run=sys.argv[1], progress=False)
credo.BNN(net, "gaussian").fit((x, y), "vi", **settings)
"""


def launch(folder, epochs):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(epochs)], stderr=subprocess.PIPE
    )


@pytest.mark.timeout(180)
def test_a_killed_run_resumes_to_bit_identical_numbers(tmp_path):
    epochs, whole, killed = 100, tmp_path / "whole", tmp_path / "killed"
    straight = launch(whole, epochs)
    rng = random.Random(0)
    for _ in range(2):
        process = launch(killed, epochs)
        history = killed / "history.jsonl"
        lines = len(history.read_text().splitlines()) if history.exists() else 0
        goal = lines + rng.randint(5, 40)
        while process.poll() is None and (
            not history.exists() or len(history.read_text().splitlines()) < goal
        ):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not json.loads((killed / CONFIG).read_text()).get("complete"), (
            "the run ended before it was killed"
        )
    last = launch(killed, epochs)
    for process in (straight, last):
        assert process.wait(timeout=120) == 0, process.stderr.read().decode()
    one, two = (load_file(folder / POSTERIOR) for folder in (whole, killed))
    assert one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
    assert without_seconds(Run(whole).history()) == without_seconds(Run(killed).history())
    assert len(Run(killed).history()) == epochs
    leftovers = {p.name for p in killed.iterdir()} - {p.name for p in whole.iterdir()}
    assert all(
        name.startswith(".") for name in leftovers
    )  # a kill between write and rename leaves a hidden temporary file at most


def test_resuming_with_other_settings_is_refused(tmp_path):
    net, _ = make("mlp", dtype=torch.float32)
    x, y = (t.float() for t in data())
    how = {"epochs": 2, "batch_size": 8, "progress": False, "run": tmp_path / "run"}
    BNN(net, "gaussian").fit((x, y), "vi", **how)
    with pytest.raises(RunError, match=r"holds another run \(fit\.epochs: there 2, now 3\)"):
        BNN(net, "gaussian").fit((x, y), "vi", **(how | {"epochs": 3}))
    with pytest.raises(RunError, match=r"settings\.beta: there None, now 2\.0"):
        BNN(net, "gaussian").fit((x, y), "vi", beta=2.0, **how)
    again = BNN(net, "gaussian").fit((x, y), "vi", **how)
    assert len(again.history) == 2 and os.path.exists(Path(tmp_path / "run" / POSTERIOR))


# --- any learner ----------------------------------------------------------------------------------


class Noted(Learner):
    """Learns nothing and writes down what the loop asks."""

    def __init__(self):
        super().__init__()
        net, _ = make("mlp")
        self._model, self.asked = [make_model(net, likelihood=Gaussian(std=0.5))], []
        self.weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    @property
    def model(self):
        return self._model[0]

    def examples(self, y):
        return 2 * len(y)  # as if a batch held twice as many

    def divergence(self):
        return torch.tensor(7.0)

    def monitor(self):
        return {"weight": float(self.weight.detach())}

    def after_epoch(self, epoch, epochs):
        self.asked.append(("look", epoch, epochs))

    def after_fit(self):
        self.asked.append("settle")

    def fitted(self):
        self.asked.append("fitted")
        return Fitted(make_posterior("delta", self.model), {})


def noted(work, told=None):
    learner = Noted()
    told = [] if told is None else told

    def make_step(one, optimizer, num_data, compile):
        def step(x, y, weight):
            with torch.no_grad():
                one.weight += 1
            told.append(
                (
                    len(y),
                    weight,
                    num_data,
                    compile,
                    optimizer.param_groups[0]["lr"],
                    one.model.shell().module.training,
                )
            )
            return torch.tensor(float(len(y))), torch.tensor(100.0)

        return step

    fitted = train(
        learner,
        work,
        lambda one, lr, n: torch.optim.SGD(one.parameters(), lr=lr),
        make_step,
        decay=lambda p: 1 - p,
    )
    return learner, fitted


def test_the_loop_asks_a_learner_for_everything_it_writes_down():
    told, work = [], fit_job(epochs=2)
    learner, fitted = noted(work, told)
    assert [row[0] for row in told] == [8, 8, 4] * 2 and all(
        row[1:4] == (1.0, 20, False) and row[5] for row in told
    )
    assert [row[4] for row in told] == [0.01] * 3 + [0.005] * 3
    assert learner.asked == [("look", 0, 2), ("look", 1, 2), "settle", "fitted"] and isinstance(
        fitted, Fitted
    )
    first = work.history[0]
    assert first["nll"] == 20 * 20 / 40 and first["kl"] == 7.0 and first["weight"] == 3.0


def test_validation_asks_for_the_learner_as_it_stands():
    seen = []
    work = fit_job(
        epochs=3,
        validate=lambda posterior, buffers: float(len(seen)) if seen.append(buffers) else 1.5,
    )
    learner, _ = noted(work)
    assert (
        len(seen) == 3
        and learner.asked.count("fitted") == 4
        and all(row["validation_nll"] == 1.5 for row in work.history)
    )


def test_a_learners_state_is_what_a_checkpoint_holds(tmp_path):
    run = Run(tmp_path / "run")
    run.begin({})

    class Stop(Exception):
        pass

    def crash(row):
        if row["epoch"] == 2:
            raise Stop

    with pytest.raises(Stop):
        noted(fit_job(epochs=4, run=run, checkpoint_seconds=0.0, callbacks=[crash]))
    learner, _ = noted(fit_job(epochs=4, run=run, checkpoint_seconds=0.0))
    assert float(learner.weight.detach()) == 12.0 and learner.asked[0] == ("look", 2, 4)
