import math
from functools import cache

import pytest
import torch
from zoo import regression
from zoo.chains import draws_of, kinetic_is_chi_squared, last_layer, late, noise_error, score, wells
from zoo.stats import Z

from credo.core.errors import SettingError
from credo.kernels.warmup import EVERY

DOUBLE = torch.float64


def fit(data=None, **how):
    x, y, _ = regression.problem() if data is None else data
    return regression.bnn().fit(
        (x, y),
        "hmc",
        progress=False,
        **({"num_chains": 8, "num_warmup": 150, "num_draws": 100} | how),
    )


def collinear():
    """Two inputs that differ by a twentieth: the posterior is some thirty times as long as it is
    wide.
    """
    x, y, _ = regression.problem()
    x = x.clone()
    x[:, 1] = x[:, 0] + 0.05 * x[:, 1]
    return x, y, torch.cat([x, torch.ones(len(x), 1, dtype=DOUBLE)], 1).numpy()


@cache
def plain():
    return fit()


def test_a_round_posterior_takes_a_handful_of_steps():
    """A quarter period of a Gaussian is pi / 2 standard deviations; four weights accept steps of
    about one.
    """
    steps = set(late(plain(), "steps"))
    assert len(steps) == 1 and 1 <= steps.pop() <= 8


def test_a_dense_metric_takes_fewer_steps_where_inputs_are_collinear():
    """The diagonal metric must cross a valley of axes 1 : 30 in steps as small as it is wide.

    Both draw the same posterior.
    """
    x, y, design = data = collinear()
    mean, cov, _ = (torch.as_tensor(part) for part in regression.exact(design, y[:, 0].numpy()))
    diagonal, dense = (fit(data, mass=mass, num_draws=150) for mass in ("diagonal", "dense"))
    assert 3 * late(dense, "steps")[0] < late(diagonal, "steps")[0]
    for fitted in (diagonal, dense):
        assert score(draws_of(fitted), mean, cov.diagonal()) < Z


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_long_valley_is_not_crossed_in_a_few_steps(seed):
    """Under the diagonal metric the long axis has deviation sqrt(2) and steps are some 0.08: a
    quarter period is 28 of them. A quarter of that still forgets in a few moves; a single step is a
    random walk of hundreds.
    """
    fitted = fit(collinear(), num_warmup=100, num_draws=2, seed=seed)
    assert late(fitted, "steps")[0] * late(fitted, "step_size")[0] > 0.25 * math.pi / 2 * math.sqrt(
        2
    )


def test_a_fixed_number_of_steps_costs_nothing_else(monkeypatch):
    """Nothing is measured where nothing adapts: every gradient belongs to a trajectory or to the
    search for a first step.
    """
    import credo.methods.sampling.hmc as module

    def refuse(*_):
        raise AssertionError("trajectories were measured")

    monkeypatch.setattr(module, "turning_steps", refuse)
    fitted = fit(num_steps=3, num_warmup=2 * EVERY, num_draws=3, num_chains=2)
    assert {row["steps"] for row in fitted.history} == {3.0}
    with pytest.raises(AssertionError, match="measured"):
        fit(num_warmup=2 * EVERY, num_draws=3, num_chains=2)


def test_lengths_adapt_up_to_a_bound():
    fitted = fit(collinear(), max_steps=4, num_warmup=60, num_draws=5, num_chains=2)
    assert max(row["steps"] for row in fitted.history) == 4.0


def test_positions_and_momenta_are_drawn_jointly():
    kinetic_is_chi_squared(plain())


def test_step_size_follows_the_wanted_rate():
    """Trial steps of the warm-up are accepted as often as was asked for: its last forty, of eight
    chains each, within a tenth. Their average, which draws use, is met by more than that, since the
    rate falls off steeply where a step becomes unstable.
    """
    found = {rate: fit(target_rate=rate, num_steps=3, num_draws=40) for rate in (0.6, 0.95)}
    assert late(found[0.95], "step_size")[0] < late(found[0.6], "step_size")[0]
    for rate, fitted in found.items():
        trials = [row["acceptance"] for row in fitted.history if row["warmup"]][-40:]
        assert (
            abs(sum(trials) / 40 - rate) < 0.1 and sum(late(fitted, "acceptance")) / 40 > rate - 0.1
        )


def test_chains_started_by_annealing_are_at_the_higher_mode():
    """Modules start at the lower mode, and 16 nats keep chains where they are; annealing takes some
    of them over before.
    """
    share = {}
    for init in ("random", "annealing"):
        bnn, data = wells(prior_mean=2.0, start=-1.0)
        fitted = bnn.fit(
            data,
            "hmc",
            init=init,
            num_steps=4,
            target_rate=0.8,
            num_chains=8,
            num_warmup=20,
            num_draws=20,
            progress=False,
        )
        right = (draws_of(fitted) > 0).double()
        assert (right.diff(dim=1) == 0).all()
        share[init] = float(right.mean())
    assert share["random"] == 0.0 and share["annealing"] >= 0.25


def test_a_last_layer_alone():
    last_layer("hmc", num_warmup=200, num_draws=5, num_chains=2, num_steps=3, lr=0.05)


def test_learned_noise():
    assert noise_error("hmc", num_warmup=200, num_draws=2, num_steps=3, num_chains=8, lr=0.02) < 1


@pytest.mark.parametrize(
    "bad", [{"num_steps": 0}, {"max_steps": 0}, {"mass": "full"}, {"target_rate": 1.0}]
)
def test_bad_settings_are_named(bad):
    with pytest.raises(SettingError, match=next(iter(bad))):
        fit(**bad)
