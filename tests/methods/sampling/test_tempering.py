import os
import signal
from functools import cache

import pytest
import torch
from zoo import regression
from zoo.chains import draws_of, last_layer, late, noise_error, well_density, wells
from zoo.stats import Z

from credo.data import intake
from credo.engine.fit_job import FitJob
from credo.kernels.ladder import geometric
from credo.likelihoods import Gaussian
from credo.methods import Tempering
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.tempering import TemperingMoves
from credo.metrics.chain_diagnostics import mcse_mean

DOUBLE = torch.float64
LADDER = {
    "num_rungs": 5,
    "num_steps": 4,
    "num_chains": 8,
    "num_warmup": 150,
    "num_draws": 250,
    "init": "pretrained",
}


def moments(prior_mean=0.0):
    """P(w > 0) and E w^2 of the two wells, by quadrature."""
    w = torch.linspace(-4.0, 4.0, 8001, dtype=DOUBLE)
    weight = torch.softmax(well_density(w, prior_mean), 0)
    return float(weight[w > 0].sum()), float((weight * w.square()).sum())


@pytest.mark.parametrize("prior_mean", [0.0, pytest.param(0.4, marks=pytest.mark.slow)])
def test_both_modes_are_found_with_their_weights(prior_mean):
    """All chains start in one. The prior's mean, where not 0, makes it hold more than half:
    0.69.
    """
    bnn, data = wells(prior_mean)
    draws = draws_of(bnn.fit(data, "tempering", progress=False, **LADDER))
    share, square = moments(prior_mean)
    right = (draws > 0).double()
    assert (
        0 < float(right.mean()) < 1 and (right.diff(dim=1) != 0).any(1).all()
    )  # every chain has crossed
    assert abs(float(right.mean()) - share) < Z * float(mcse_mean(right))
    assert abs(float(draws.square().mean()) - square) < Z * float(mcse_mean(draws.square()))
    if prior_mean:
        assert abs(share - 0.5) > 0.15


def test_without_a_ladder_chains_stay_where_they_start():
    bnn, data = wells()
    how = {
        key: LADDER[key] for key in ("num_steps", "num_chains", "num_warmup", "num_draws", "init")
    } | {"num_draws": 100}
    assert (draws_of(bnn.fit(data, "hmc", target_rate=0.8, progress=False, **how)) > 0).all()
    bnn, data = wells()
    assert (
        draws_of(
            bnn.fit(data, "tempering", progress=False, **LADDER | {"num_rungs": 1, "num_draws": 50})
        )
        > 0
    ).all()


def test_one_rung_is_hmc():
    """The same random numbers in the same order; without a warm-up nothing adapts, and draws are
    the same.
    """
    x, y, _ = regression.problem()
    how = {"num_chains": 3, "num_warmup": 0, "num_draws": 6, "num_steps": 4, "progress": False}
    plain = regression.bnn().fit((x, y), "hmc", **how)
    ladder = regression.bnn().fit((x, y), "tempering", num_rungs=1, **how)
    assert torch.allclose(draws_of(plain), draws_of(ladder)) and not any(
        "swap" in row for row in ladder.history
    )


@cache
def climbed(moves=320, rungs=5):
    """The states of a ladder over the two wells, move by move; the last twenty are after the
    warm-up.
    """
    bnn, data = wells()
    method = Tempering(num_rungs=rungs, num_steps=4, num_chains=8, num_warmup=300, hottest=0.01)
    model = bnn.model
    climb = TemperingMoves(
        method, Density(model, model.values()), FitJob(intake(data), 1, None, 0.01, 0)
    )
    state = climb.start(torch.ones(8, 1, dtype=DOUBLE), torch.Generator().manual_seed(0))
    states = []
    for index in range(moves):
        state, _ = climb.move(state, index, torch.Generator().manual_seed(index + 1))
        states.append(state)
    return states


def test_the_ladder_is_respaced_between_its_ends_and_then_fixed():
    powers = [state.ladder.powers for state in climbed()]
    start = geometric(5, 0.01, powers[0])
    assert torch.equal(powers[0], start) and not torch.allclose(powers[-1], start)
    assert all(p[0] == 1.0 and p[-1] == start[-1] and (p.diff() < 0).all() for p in powers)
    assert all(torch.equal(p, powers[-1]) for p in powers[300:])


def test_a_step_size_for_every_rung():
    """Hot rungs have more room, and each has the rate that was asked for: the steps of the hottest
    are the longest.
    """
    steps = climbed()[-1].adaptation.step_size.log_step_mean.exp()
    assert steps.shape == (5,) and float(steps[-1]) > 1.5 * float(steps[0])


def test_draws_are_of_the_posteriors_rung_alone():
    bnn, data = wells()
    fitted = bnn.fit(
        data,
        "tempering",
        progress=False,
        **LADDER | {"num_draws": 5, "num_warmup": 5, "num_chains": 3},
    )
    assert draws_of(fitted).shape == (3, 5, 1) and all(
        len(row["log_density"]) == 3 for row in fitted.history
    )
    values = torch.tensor(late(fitted, "log_density"), dtype=DOUBLE).T - well_density(
        draws_of(fitted)[..., 0]
    )
    assert torch.allclose(
        values, values[0, 0].expand_as(values)
    )  # of the draw itself, after its swap


@pytest.mark.parametrize("rungs", [2, 3])
def test_swaps_are_in_the_history_whatever_the_thinning(rungs):
    """Pairs take turns; thinning by two must not show the same half of them for ever, or none."""
    bnn, data = wells()
    fitted = bnn.fit(
        data,
        "tempering",
        num_rungs=rungs,
        num_steps=2,
        num_chains=2,
        num_warmup=4,
        num_draws=6,
        thin=2,
        progress=False,
    )
    assert any("swap" in row for row in fitted.history)


def test_a_ladder_killed_while_noise_is_learned_goes_on_where_it_was(tmp_path):
    x, y, _ = regression.problem()

    def fit(**how):
        return regression.bnn(likelihood=Gaussian()).fit(
            (x, y),
            "tempering",
            num_rungs=3,
            num_steps=2,
            num_chains=2,
            num_warmup=20,
            num_draws=3,
            progress=False,
            **how,
        )

    whole = fit()
    child = os.fork()
    if child == 0:
        from credo.engine import fit_job

        fit_job.CHECKPOINT_SECONDS = 0.0
        try:
            fit(
                run=tmp_path / "run",
                callbacks=[
                    lambda row: os.kill(os.getpid(), signal.SIGKILL) if row["epoch"] == 5 else None
                ],
            )
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert torch.equal(draws_of(fit(run=tmp_path / "run")), draws_of(whole))


@pytest.mark.slow
def test_a_last_layer_alone():
    last_layer(
        "tempering", num_rungs=2, num_warmup=200, num_draws=5, num_chains=2, num_steps=3, lr=0.05
    )


@pytest.mark.slow
def test_learned_noise():
    assert (
        noise_error(
            "tempering",
            num_rungs=2,
            num_warmup=200,
            num_draws=2,
            num_steps=3,
            num_chains=8,
            lr=0.02,
        )
        < 1
    )
