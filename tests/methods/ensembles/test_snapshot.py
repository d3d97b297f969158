import math

import pytest
import torch
from torch import nn

import credo
from credo import BNN
from credo.core.errors import CredoError, SettingError
from credo.core.seeds import isolated
from credo.data import intake
from credo.engine import fit_job, training_loop
from credo.engine.batchnorm import statistics
from credo.likelihoods import Gaussian
from credo.methods import Snapshot
from credo.methods.ensembles.parts.training_path import Snapshots

DOUBLE = torch.float64


def data(n=24):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 5, generator=generator, dtype=DOUBLE), torch.randn(
        n, 2, generator=generator, dtype=DOUBLE
    )


def network(normalise=False):
    with isolated(0):
        layers = [
            nn.Linear(5, 6),
            *([nn.BatchNorm1d(6)] if normalise else []),
            nn.Tanh(),
            nn.Linear(6, 2),
        ]
        return nn.Sequential(*layers).double()


def fit(net=None, likelihood=None, random="all", **how):
    settings = {"num_cycles": 3, "epochs": 7, "batch_size": 7, "lr": 0.05, "progress": False}
    return BNN(net or network(), likelihood or Gaussian(), random=random).fit(
        data(), "snapshot", **(settings | how)
    )


def rates(monkeypatch, **how):
    seen, own = [], training_loop._set_lr
    monkeypatch.setattr(
        training_loop, "_set_lr", lambda optimizer, lr: (seen.append(lr), own(optimizer, lr))
    )
    fit(lr=0.08, **how)
    return seen


@pytest.mark.parametrize(("epochs", "cycles"), [(6, 3), (7, 3), (5, 5), (8, 1), (22, 22), (26, 26)])
def test_the_learning_rate_restarts_with_every_cycle(monkeypatch, epochs, cycles):
    """lr / 2 (1 + cos(pi frac(M t / T))), with the fraction in whole numbers: one of 0.999...

    instead of 0 would be a lost epoch.
    """
    wanted = [
        0.04 * (1 + math.cos(math.pi * (cycles * t % epochs) / epochs)) for t in range(epochs)
    ]
    assert rates(monkeypatch, epochs=epochs, num_cycles=cycles) == pytest.approx(wanted, abs=1e-15)


def watched(monkeypatch, **how):
    """A fit, and copies of everything learned after each of its epochs."""
    seen, own = [], Snapshots.observe

    def observe(self, values, likelihood_params, epoch, epochs):
        learned = (values | likelihood_params).items()
        seen.append({n: v.detach().clone()[0] for n, v in learned})
        own(self, values, likelihood_params, epoch, epochs)

    monkeypatch.setattr(Snapshots, "observe", observe)
    return fit(**how), seen


@pytest.mark.parametrize(
    ("epochs", "cycles", "ends"),
    [(6, 3, [1, 3, 5]), (7, 3, [2, 4, 6]), (4, 4, [0, 1, 2, 3]), (5, 2, [2, 4])],
)
def test_members_are_the_weights_at_the_ends_of_cycles(monkeypatch, epochs, cycles, ends):
    fitted, seen = watched(monkeypatch, epochs=epochs, num_cycles=cycles)
    assert fitted.posterior.atoms == cycles
    draws = fitted.posterior.realise(range(cycles), 0)
    for place, epoch in enumerate(ends):
        assert all(torch.equal(draws[n][place], seen[epoch][n]) for n in fitted.random)
        assert torch.equal(draws["likelihood/log_std"][place], seen[epoch]["log_std"])


def test_the_low_points_are_where_the_rate_is_about_to_rise(monkeypatch):
    """A snapshot comes after the epoch with the cycle's smallest rate."""
    seen = rates(monkeypatch, epochs=7, num_cycles=3)
    rises = [t for t in range(6) if seen[t + 1] > seen[t]]
    assert rises == [2, 4]


def test_it_is_one_fit_that_goes_on():
    """One cycle is the fit of one network."""
    one = fit(num_cycles=1, epochs=4)
    single = BNN(network(), Gaussian()).fit(
        data(), "map", init="random", epochs=4, batch_size=7, lr=0.05, progress=False
    )
    assert one.posterior.atoms == 1
    assert torch.allclose(
        one.predict(data()[0]).outputs, single.predict(data()[0]).outputs, rtol=0, atol=1e-6
    )  # noise in float32


def test_statistics_are_computed_anew_for_every_snapshot():
    net = network(True)
    fitted = fit(net)
    draws = fitted.posterior.realise(range(3), 0)
    values = [{n: draws[n][i] for n in fitted.random} for i in range(3)]
    wanted = statistics(fitted.model, fit_job.FitJob(intake(data()), 7, 7, 0.05, 0), values)
    assert all(torch.equal(draws[n], wanted[n]) for n in wanted)
    x = data()[0]
    net.eval()
    hand = [
        torch.func.functional_call(net, v | {n: wanted[n][i] for n in wanted}, (x,))
        for i, v in enumerate(values)
    ]
    for way in (True, False):
        assert torch.allclose(
            fitted.predict(x, vectorise=way).outputs, torch.stack(hand), rtol=0, atol=1e-12
        )


def test_points_and_noise_belong_to_their_snapshot():
    fitted = fit(random="last")
    draws = fitted.posterior.realise(range(3), 0)
    assert not torch.equal(draws["0.weight"][0], draws["0.weight"][1])
    assert len(set(draws["likelihood/log_std"].tolist())) == 3


def test_more_cycles_than_epochs_are_refused():
    with pytest.raises(SettingError, match=r"num_cycles=5 do not fit into epochs=4"):
        fit(num_cycles=5, epochs=4)


@pytest.mark.parametrize(
    ("given", "text"),
    [({"num_cycles": 0}, "num_cycles=0"), ({"lr_schedule": "constant"}, "lr_schedule='constant'")],
)
def test_bad_settings_are_named(given, text):
    with pytest.raises(SettingError, match=text):
        Snapshot(**given)


def test_ending_early():
    with pytest.raises(CredoError, match="before the end of the first cycle; nothing was kept"):
        fit(callbacks=[lambda row: row["epoch"] == 1])
    assert fit(callbacks=[lambda row: row["epoch"] == 4]).posterior.atoms == 2


@pytest.mark.parametrize("normalise", [False, True])
def test_a_fit_killed_after_any_epoch_resumes_to_the_same_bits(tmp_path, monkeypatch, normalise):
    monkeypatch.setattr(fit_job, "CHECKPOINT_SECONDS", 0.0)
    straight = fit(network(normalise), validation=data(10))

    class Killed(Exception):
        pass

    for epoch in range(7):

        def crash(row, epoch=epoch):
            if row["epoch"] == epoch:
                raise Killed

        run = tmp_path / f"run{epoch}"
        with pytest.raises(Killed):
            fit(network(normalise), validation=data(10), run=run, callbacks=[crash])
        resumed = fit(network(normalise), validation=data(10), run=run)
        one, two = straight.posterior.state_dict(), resumed.posterior.state_dict()
        assert one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)
        drop = [
            [{k: v for k, v in row.items() if k != "seconds"} for row in each.history]
            for each in (straight, resumed)
        ]
        assert drop[0] == drop[1]


@pytest.mark.parametrize("normalise", [False, True])
def test_saved_and_loaded_it_is_the_same(tmp_path, normalise):
    net = network(normalise)
    fitted, (x, y) = fit(net), data()
    fitted.save(tmp_path / "model")
    again = credo.load(tmp_path / "model", net)
    assert again.evaluate((x, y)) == fitted.evaluate((x, y))


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda b: b.predict(data()[0], shortcut="mean"), "shortcut='mean' is not meaningful"),
        (lambda b: b.update(data(), progress=False), "update needs a posterior with a density"),
        (lambda b: b.objective(data()), "no density"),
        (lambda b: credo.audit.diagnose(b), "3 draws per chain"),
    ],
)
def test_questions_without_an_answer_are_refused(ask, text):
    with pytest.raises(CredoError, match=text):
        ask(fit())


@pytest.mark.parametrize("normalise", [False, True])
def test_traced_passes_train_like_plain_ones(normalise):
    plain, recorded = (
        fit(network(normalise), compile=compile).posterior.state_dict() for compile in (False, True)
    )
    assert all(torch.allclose(recorded[n], t, rtol=0, atol=1e-10) for n, t in plain.items())
