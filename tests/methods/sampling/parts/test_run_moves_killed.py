"""Runs that end without a chance to clean up, and go on from their last checkpoint."""

import os

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset

from credo import BNN
from credo.engine import fit_job as job_module
from credo.engine.run import CHECKPOINT, DRAWS, Run
from credo.likelihoods import Gaussian

DOUBLE = torch.float64
QUICK = {"num_warmup": 10, "num_draws": 5, "num_chains": 3, "progress": False}


def data(n=12):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator, dtype=DOUBLE)
    return x, x @ torch.tensor([[1.0], [-0.5]], dtype=DOUBLE) + 0.3 * torch.randn(
        n, 1, generator=generator, dtype=DOUBLE
    )


def bnn():
    """With learned noise, so that Adam's state matters."""
    torch.manual_seed(0)
    return BNN(nn.Linear(2, 1).double(), Gaussian(), prior=Normal(0.0, 1.0))


def flat(fitted):
    return fitted.posterior.factors[0].flat


def rows(history):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


def killed(make, run, after):
    """``make(run=, callbacks=)`` in a process that dies at the row of move ``after`` without a
    chance to clean up.
    """

    def die(row):
        if row["epoch"] >= after:
            os._exit(9)

    child = os.fork()
    if child == 0:
        try:
            make(run=run, callbacks=[die])
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9, "the process was to die in its callback"


def loader(n=12):
    return DataLoader(TensorDataset(*data(n)), batch_size=4, shuffle=True)


CYCLES = {"num_draws": 6, "num_cycles": 2, "exploration": 0.5, "num_warmup": 4, "thin": 2}
KILLED = {
    "hmc": ("hmc", data, {"max_steps": 20}),
    "hmc_dense": (
        "hmc",
        data,
        {"mass": "dense", "num_warmup": 22, "batch_size": 5, "max_steps": 20},
    ),
    "nuts": ("nuts", data, {"num_warmup": 22}),
    "sgld_arrays": ("sgld", data, {"batch_size": 5, "thin": 2}),
    "sgld_loader": ("sgld", loader, {"thin": 3}),
    "psgld": ("psgld", data, {"batch_size": 5}),
    "sghmc": ("sghmc", loader, {}),
    "csgmcmc": ("csgmcmc", data, CYCLES | {"batch_size": 5}),
}


@pytest.mark.parametrize("case", KILLED)
def test_a_killed_run_goes_on_with_bit_identical_numbers(case, tmp_path, monkeypatch):
    """Killed in the warm-up, while Adam moves the learned noise, and again among the draws."""
    method, source, extra = KILLED[case]
    monkeypatch.setattr(job_module, "CHECKPOINT_SECONDS", 0.0)
    how = QUICK | extra

    def make(**more):
        return bnn().fit(source(), method, seed=3, **how, **more)

    straight = make()
    run = tmp_path / "run"
    moves = straight.history[-1]["epoch"]
    killed(make, run, 3)
    assert (run / CHECKPOINT).exists()
    killed(make, run, moves - 2)
    resumed = make(run=run)
    assert torch.equal(flat(resumed), flat(straight))
    assert torch.equal(resumed.likelihood.log_std, straight.likelihood.log_std) and bool(
        straight.likelihood.log_std != 0
    )
    assert rows(resumed.history) == rows(straight.history)
    assert not (run / DRAWS).exists() and not (run / CHECKPOINT).exists()


def test_a_run_killed_before_its_first_checkpoint_starts_over(tmp_path):
    def make(**more):
        return bnn().fit(data(), "hmc", num_steps=4, **QUICK, **more)

    killed(make, tmp_path / "run", 7)
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    resumed, straight = make(run=tmp_path / "run"), make()
    assert torch.equal(flat(resumed), flat(straight)) and rows(resumed.history) == rows(
        straight.history
    )


def test_a_killed_run_of_no_given_length_ends_where_it_would_have(tmp_path, monkeypatch):
    monkeypatch.setattr(job_module, "CHECKPOINT_SECONDS", 0.05)

    def make(**more):
        return bnn().fit(data(), "hmc", num_warmup=30, num_steps=3, seed=3, progress=False, **more)

    straight = make()
    assert straight.history[-1]["ended"] == "converged"
    run = tmp_path / "run"
    killed(make, run, 60)
    resumed = make(run=run)
    assert rows(resumed.history) == rows(straight.history)
    flat = [fitted.posterior.factors[0].flat for fitted in (resumed, straight)]
    assert torch.equal(*flat)


def test_a_run_killed_after_its_last_move_has_nothing_left_to_do(tmp_path, monkeypatch):
    def make(**more):
        return bnn().fit(data(), "hmc", num_warmup=30, num_steps=3, seed=3, progress=False, **more)

    straight = make()

    class Died(Exception):
        pass

    def die(*_):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Run, "finish", die)
        with pytest.raises(Died):
            make(run=tmp_path / "run")
    resumed = make(run=tmp_path / "run")
    assert rows(resumed.history) == rows(straight.history)
    assert torch.equal(resumed.posterior.factors[0].flat, straight.posterior.factors[0].flat)
