"""When a descent of no given length ends: the rule by itself, then fits that end by it."""

import numpy as np
import pytest
import torch
from torch import nn

import credo
from credo.core.errors import CredoError
from credo.engine.settling import COOLING, Settling, fall, still_falling, tolerance


def line(progress):
    return 1.0 - progress


def run(losses):
    settling = Settling(len(losses), 8, 0.1, line)
    factors = []
    for epoch, loss in enumerate(losses):
        factors.append(settling.factor(epoch))
        settling.observe(loss)
        if settling.done:
            break
    return settling, factors


def test_noise_around_a_level_settles_and_a_fall_does_not():
    rng = np.random.default_rng(0)
    assert not still_falling(rng.normal(size=200), 0.1)
    assert still_falling(rng.normal(size=200) - 0.05 * np.arange(200), 0.1)
    assert not still_falling(-1e-4 * np.arange(200.0), 0.1), "too slow to be worth anything"


def test_noise_is_rarely_taken_for_a_fall():
    """Under the null a difference of two means of 5 blocks exceeds twice its error about one time
    in 15 (t with 8 degrees of freedom, one side, 4 %); 400 tries, and 60 is four sigma above.
    """
    rng = np.random.default_rng(1)
    assert sum(still_falling(rng.normal(size=100), 0.0) for _ in range(400)) < 60


def test_the_rate_is_held_and_then_falls_over_half_as_many_epochs():
    settling, factors = run([1.0] * 100)
    assert settling.reason == "settled" and settling.cooling_from == 8
    assert factors[:8] == [1.0] * 8 and len(factors) == 8 + round(COOLING * 8)
    assert factors[8:] == [1.0, 0.75, 0.5, 0.25]


def test_what_goes_on_falling_uses_its_budget():
    settling, factors = run([-float(k) for k in range(90)])
    assert settling.reason == "budget" and settling.cooling_from == 60 and len(factors) == 90


def test_a_replayed_history_decides_as_before():
    losses = [10.0 * 0.9**k for k in range(200)]
    settling, _ = run(losses)
    rows, other = [], Settling(200, 8, 0.1, line)
    for loss in losses[: settling.cooling_from + 2]:
        reason = other.observe(loss)
        rows.append({"nll": loss, "kl": 0.0} | ({"cooling": reason} if reason else {}))
    again = Settling(200, 8, 0.1, line)
    again.replay(rows, 1.0)
    assert again.__dict__ == other.__dict__


def test_how_near_the_end_a_fit_must_come():
    assert tolerance(100, 10) == 0.1 and tolerance(50, 10) == 0.05
    assert tolerance(10_000, 500) == 5.0 and tolerance(1_000, 10**6) == 1.0
    assert fall([3.0] * 4 + [1.0] * 4)[0] == 0.0


pytestmark = pytest.mark.filterwarnings("ignore::credo.core.errors.FindingWarning")
X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
Y = X[:, :1] + 0.3 * torch.randn(60, 1, generator=torch.Generator().manual_seed(1))


def bnn():
    torch.manual_seed(0)
    return credo.BNN(nn.Linear(3, 1), credo.likelihoods.Gaussian(std=0.3))


@pytest.mark.parametrize("method", ["map", "vi", "laplace", "ivon", "deep_ensemble", "mc_dropout"])
def test_a_fit_without_epochs_says_why_it_ended(method):
    fitted = bnn().fit((X, Y), method, progress=False)
    assert [row["ended"] for row in fitted.history if "ended" in row][-1] == "settled"
    assert len(fitted.history) < 5_000


def test_given_epochs_are_obeyed():
    fitted = bnn().fit((X, Y), "vi", epochs=7, progress=False)
    assert len(fitted.history) == 7 and fitted.history[-1]["ended"] == "epochs"


def test_seconds_end_a_descent_and_a_chain():
    fitted = bnn().fit((X, Y), "vi", max_seconds=0.05, progress=False)
    assert fitted.history[-1]["ended"] == "seconds"
    drawn = bnn().fit((X, Y), "hmc", num_warmup=10, num_draws=10**5, max_seconds=0.3)
    assert drawn.history[-1]["ended"] == "seconds" and len(drawn.history) < 10**5
    with pytest.raises(CredoError, match=r"max_seconds=0\.01 were over in move .* of the warm-up"):
        bnn().fit((X, Y), "hmc", num_warmup=10**5, max_seconds=0.01)
    whole = bnn().fit((X, Y), "hmc", num_warmup=10, num_draws=20)
    assert whole.history[-1]["ended"] == "draws"


def test_a_killed_fit_ends_where_an_uninterrupted_one_does(tmp_path, monkeypatch):
    whole = bnn().fit((X, Y), "map", run=tmp_path / "whole", progress=False)

    class Killed(Exception):
        pass

    def kill(row):
        if row["epoch"] == len(whole.history) - 40:
            raise Killed

    monkeypatch.setattr("credo.engine.fit_job.CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Killed):
        bnn().fit((X, Y), "map", run=tmp_path / "run", callbacks=[kill], progress=False)
    resumed = bnn().fit((X, Y), "map", run=tmp_path / "run", progress=False)
    assert len(resumed.history) == len(whole.history)
    for name, value in whole.posterior.state_dict().items():
        assert torch.equal(value, resumed.posterior.state_dict()[name])
