import copy

import pytest
import torch
from torch import nn

import credo
from credo.core.errors import SettingError
from credo.data.source import Arrays, Source
from credo.engine.fit_job import FitJob
from credo.methods.ensembles.parts import threaded_members
from credo.methods.ensembles.parts.members import Members, member_seeds
from credo.methods.ensembles.parts.members_fit import step_maker
from credo.methods.ensembles.parts.members_step import MembersStep, members_optimizer
from credo.methods.ensembles.parts.threaded_members import ThreadedMembers

N, K = 23, 3
X = torch.randn(N, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = (X[:, 0] > 0).long()


@pytest.fixture(autouse=True)
def all_are_heavy(monkeypatch):
    monkeypatch.setattr(threaded_members, "HEAVY", 0)


def net(*extra):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), *extra, nn.Tanh(), nn.Linear(6, 2)).double()


def fit(compile, network=None, **settings):
    given = {
        "num_members": K,
        "epochs": 3,
        "batch_size": 4,
        "progress": False,
        "seed": 0,
    } | settings
    bnn = credo.BNN(network or net(), "categorical", prior=given.pop("prior", None))
    return bnn.fit(given.pop("data", (X, Y)), "deep_ensemble", compile=compile, **given)


def state(bnn):
    return bnn.posterior.state_dict()


def same(one, other, atol=1e-10):
    one, other = state(one), state(other)
    return one.keys() == other.keys() and all(
        torch.allclose(other[n], t, rtol=0, atol=atol) for n, t in one.items()
    )


def start(prior=None):
    model = credo.BNN(net(), "categorical", prior=prior).model
    return Members(model, [model.values() for _ in range(K)], member_seeds(0, K))


def took(monkeypatch):
    """Counts the strides that threads took."""
    seen = []
    whole = ThreadedMembers._stride

    def watched(self, views, rows):
        seen.append(len(rows))
        return whole(self, views, rows)

    monkeypatch.setattr(ThreadedMembers, "_stride", watched)
    return seen


@pytest.mark.parametrize("stride", [1, 2, 100])
@pytest.mark.parametrize("batch", [4, N, 100, None])
def test_threaded_members_learn_what_members_at_once_do(stride, batch, monkeypatch):
    monkeypatch.setattr(threaded_members, "STRIDE", stride)
    seen = took(monkeypatch)
    plain, alone = fit(False, batch_size=batch), fit(True, batch_size=batch)
    assert seen and same(plain, alone)
    for a, b in zip(plain.history, alone.history, strict=True):
        assert a["nll"] == pytest.approx(b["nll"], rel=1e-10) and a["kl"] == pytest.approx(
            b["kl"], rel=1e-10
        )


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_gives_the_same_bits_and_leaves_the_setting(threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        first, second = fit(True), fit(True)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert same(first, second, atol=0.0)


def test_a_thread_started_later_has_as_many_threads_as_before():
    from concurrent.futures import ThreadPoolExecutor

    before = torch.get_num_threads()
    fit(True)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == before


def test_statistics_of_normalisation_are_each_members_own():
    plain, alone = (fit(compile, net(nn.BatchNorm1d(6).double())) for compile in (False, True))
    assert same(plain, alone)


def test_networks_that_toss_coins_and_data_that_stream_learn_at_once(monkeypatch):
    seen = took(monkeypatch)
    assert same(fit(True, net(nn.Dropout(0.5))), fit(True, net(nn.Dropout(0.5))), atol=0.0)
    batches = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, N, 4)]
    assert same(fit(True, data=batches, num_data=N), fit(False, data=batches, num_data=N))
    assert not seen


def test_small_networks_learn_at_once(monkeypatch):
    monkeypatch.setattr(threaded_members, "HEAVY", 10**9)
    seen = took(monkeypatch)
    assert same(fit(True), fit(False)) and not seen


def test_convolutions_can_be_recorded_too(monkeypatch):
    seen = took(monkeypatch)
    torch.manual_seed(0)
    convolutional = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)
    ).double()
    data = (torch.randn(N, 1, 5, 5, dtype=torch.float64), Y)
    plain, alone = (fit(c, copy.deepcopy(convolutional), data=data) for c in (False, True))
    assert seen and same(plain, alone)


def test_what_cannot_be_replayed_is_said_in_one_sentence():
    class Last(nn.Module):
        def forward(self, found):
            return found[0][:, -1]

    recurrent = nn.Sequential(nn.LSTM(5, 4, batch_first=True), Last(), nn.Linear(4, 2))
    with pytest.raises(
        SettingError, match="the compiler cannot trace this network .*; use compile=False"
    ):
        fit(True, recurrent, data=(torch.randn(N, 3, 5), Y))


def test_each_thread_learns_its_members_noise(monkeypatch):
    seen = took(monkeypatch)

    def gaussian(compile):
        bnn = credo.BNN(net(), credo.likelihoods.Gaussian(initial_std=0.5))
        data = (X, X[:, :2].tanh())
        return bnn.fit(
            data,
            "deep_ensemble",
            num_members=K,
            epochs=3,
            batch_size=4,
            compile=compile,
            progress=False,
        )

    assert same(gaussian(False), gaussian(True)) and seen


def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    seen = took(monkeypatch)
    whole = fit(True, epochs=4)

    class Killed(Exception):
        pass

    def stop(row):
        if row["epoch"] == 2:
            raise Killed

    monkeypatch.setattr("credo.engine.fit_job.CHECKPOINT_SECONDS", 0.0)

    with pytest.raises(Killed):
        fit(True, epochs=4, run=tmp_path / "run", callbacks=[stop])
    resumed = fit(True, epochs=4, run=tmp_path / "run")
    assert same(whole, resumed, atol=0.0) and seen


def test_an_error_in_a_thread_is_the_fits_and_stops_it(monkeypatch):
    monkeypatch.setattr(
        ThreadedMembers, "_move", lambda *_: (_ for _ in ()).throw(RuntimeError("in a thread"))
    )
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="in a thread"):
        fit(True)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    "optimizer, prior, steps",
    [
        ("sgd", None, None),
        ("adam", torch.distributions.Laplace(0.0, 1.0), None),
        ("adam", None, torch.tensor(0.1)),
    ],
)
def test_what_does_not_suit_steps_at_once(optimizer, prior, steps):
    group = start(prior)
    step = step_maker(None, steps)(group, members_optimizer(optimizer, 0.9)(group, 0.1, N), N, True)
    assert isinstance(step, MembersStep) and step.gradients.recorded is not None


def test_how_members_step():
    group = start()
    mover = members_optimizer("adam", 0.9)(group, 0.1, N)
    with pytest.raises(
        SettingError,
        match="compile='graph' captures the step as a CUDA graph; on a CPU use True or False",
    ):
        step_maker()(group, mover, N, "graph")
    assert isinstance(step_maker()(group, mover, N, False), MembersStep)
    step = step_maker()(group, mover, N, True)
    assert isinstance(step, ThreadedMembers) and step.at_once.gradients.recorded is None


def test_the_optimizers_state_counts_every_step():
    group = start()
    mover = members_optimizer("adam", 0.9)(group, 0.1, N)
    step = step_maker()(group, mover, N, True)
    fit_job = FitJob(Source(Arrays(X, Y), N), epochs=1, batch_size=4, lr=0.1)
    for epoch in range(2):
        for x, y in group.batches(fit_job.source, fit_job, epoch):
            step(x, y, 1.0)
        assert {int(state["step"]) for state in mover.state.values()} == {6 * (epoch + 1)}
