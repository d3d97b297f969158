import math

import pytest
import torch
from zoo import regression
from zoo.chains import draws_of, last_layer, noise_error

from credo.core.errors import SettingError
from credo.methods import CSGMCMC

NUM = 30


def fit(**how):
    x, y, _ = regression.problem(n=NUM)
    how = {
        "lr": 0.1,
        "num_chains": 2,
        "num_draws": 6,
        "num_cycles": 2,
        "thin": 2,
        "exploration": 0.5,
        "batch_size": NUM,
    } | how
    return regression.bnn().fit((x, y), "csgmcmc", progress=False, **how)


@pytest.mark.parametrize("warmup", [0, 7])
@pytest.mark.parametrize("exploration", [0.0, 0.3, 0.8, 0.99])
@pytest.mark.parametrize(("draws", "cycles", "thin"), [(4, 4, 3), (12, 3, 1), (6, 1, 5)])
def test_draws_are_numbered_in_order_and_end_every_cycle(draws, cycles, thin, exploration, warmup):
    schedule = CSGMCMC(
        num_warmup=warmup, num_draws=draws, num_cycles=cycles, thin=thin, exploration=exploration
    ).schedule()
    length, rest = divmod(schedule.num_moves() - warmup, cycles)
    taken = {
        index: schedule.draw_after(index)
        for index in range(schedule.num_moves())
        if schedule.draw_after(index) is not None
    }
    assert rest == 0 and list(taken.values()) == list(range(draws))
    each = draws // cycles
    for index, draw in taken.items():
        cycle, place = divmod(index - warmup, length)
        assert cycle == draw // each and place == length - 1 - thin * (each - 1 - draw % each)
        assert place >= math.floor(exploration * length)  # in the sampling part
    # the cycle is no longer than the exploration asks for
    assert (
        length - each * thin >= exploration * length - 1e-9
        and (length - 1) * (1 - exploration) < each * thin
    )


def test_a_cycle_falls_from_lr_along_a_cosine():
    fitted = fit(thin=1, num_draws=8, num_cycles=2, exploration=0.5)
    steps = {row["epoch"]: row["lr"] for row in fitted.history}
    assert sorted(steps) == list(range(16))
    for index, lr in steps.items():
        assert math.isclose(lr, 0.05 * (1 + math.cos(math.pi * (index % 8) / 8)), rel_tol=1e-5)


def test_explorations_are_without_noise():
    """Of chains that start at one place on all data: until the first sampling part they are the
    same, from there on not.
    """
    rows = fit(thin=1, num_draws=8, num_cycles=2, exploration=0.5, init="pretrained").history
    apart = [
        row["epoch"] for row in rows if abs(row["log_density"][0] - row["log_density"][1]) > 1e-9
    ]
    assert min(apart) == 5  # the density noted is of where a move starts


def test_at_temperature_zero_chains_from_one_place_stay_together():
    draws = draws_of(fit(temperature=0.0, init="pretrained", num_draws=8))
    assert torch.allclose(draws[0], draws[1], atol=1e-12)  # rows are summed in different orders


@pytest.mark.parametrize(("draws", "cycles"), [(10, 4), (3, 4)])
def test_draws_that_cannot_be_shared_out_are_refused(draws, cycles):
    with pytest.raises(
        SettingError,
        match=rf"num_draws={draws} cannot be shared out among num_cycles={cycles}; use a multiple",
    ):
        fit(num_draws=draws, num_cycles=cycles)


@pytest.mark.parametrize("bad", [{"num_cycles": 0}, {"exploration": 1.0}, {"friction": 0.0}])
def test_bad_settings_are_named(bad):
    with pytest.raises(SettingError, match=next(iter(bad))):
        fit(**bad)


def test_cycles_find_both_modes_of_what_one_chain_would_not():
    """Chains start spread on both sides of a symmetric posterior; every cycle's draws are near a
    mode, not between them.
    """
    from zoo.chains import wells

    bnn, data = wells()
    starts = {"level": torch.tensor([[-1.5], [1.5], [-0.5], [0.5]], dtype=torch.float64)}
    fitted = bnn.fit(
        data,
        "csgmcmc",
        init=starts,
        lr=0.02,
        num_chains=4,
        num_draws=20,
        num_cycles=2,
        thin=5,
        progress=False,
    )
    draws = draws_of(fitted)[..., 0]
    assert (
        float(draws.min()) < -0.5 < 0.5 < float(draws.max())
        and float((draws.abs() - 1).abs().max()) < 0.6
    )


@pytest.mark.slow
def test_a_last_layer_alone():
    how = {
        "num_warmup": 400,
        "num_draws": 8,
        "num_cycles": 2,
        "num_chains": 2,
        "thin": 5,
        "point_lr": 0.02,
        "batch_size": 10,
    }
    last_layer("csgmcmc", lr=0.05, **how)


@pytest.mark.slow
def test_learned_noise():
    how = {
        "num_warmup": 400,
        "num_draws": 4,
        "num_cycles": 2,
        "exploration": 0.5,
        "num_chains": 8,
        "thin": 20,
        "point_lr": 0.02,
    }
    assert noise_error("csgmcmc", lr=0.05, **how) < 1
