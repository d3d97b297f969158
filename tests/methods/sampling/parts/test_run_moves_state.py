"""The contract of all moves, as the loop relies on it."""

import pytest
import torch
from zoo import regression

from credo.data import intake
from credo.engine.fit_job import FitJob
from credo.methods import methods
from credo.methods.sampling.annealing import AnnealingMoves
from credo.methods.sampling.csgmcmc import CSGMCMCMoves
from credo.methods.sampling.hmc import HMCMoves
from credo.methods.sampling.metropolis import MetropolisMoves
from credo.methods.sampling.nuts import NUTSMoves
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.run_moves import from_tensors, named_tensors
from credo.methods.sampling.psgld import PSGLDMoves
from credo.methods.sampling.sghmc import SGHMCMoves
from credo.methods.sampling.sgld import SGLDMoves
from credo.methods.sampling.svgd import SVGDMoves
from credo.methods.sampling.tempering import TemperingMoves

MOVES = {
    "hmc": HMCMoves,
    "nuts": NUTSMoves,
    "metropolis": MetropolisMoves,
    "tempering": TemperingMoves,
    "annealing": AnnealingMoves,
    "sgld": SGLDMoves,
    "psgld": PSGLDMoves,
    "sghmc": SGHMCMoves,
    "csgmcmc": CSGMCMCMoves,
    "svgd": SVGDMoves,
}


def moves(name):
    x, y, _ = regression.problem(n=12)
    model = regression.bnn().model
    fit_job = FitJob(intake((x, y)), 1, 5, 0.01, 0)
    return MOVES[name](methods[name](), Density(model, model.values()), fit_job)


def started(name):
    position = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    all_chains = moves(name)
    return position, all_chains, all_chains.start(position, torch.Generator().manual_seed(0))


def test_every_sampler_is_here():
    assert {name for name, kind in methods.items() if kind.is_sampler} <= MOVES.keys()


@pytest.mark.parametrize("name", MOVES)
def test_chains_start_where_they_are_told_to(name):
    position, all_chains, state = started(name)
    assert torch.equal(all_chains.drawn(state), position)


@pytest.mark.parametrize("name", MOVES)
def test_a_move_depends_on_its_state_and_its_random_numbers_alone(name):
    """From a state that went through a checkpoint, in another process; and the state before is left
    as it was.
    """
    _, one, state = started(name)
    for index in range(3):
        state, _ = one.move(state, index, torch.Generator().manual_seed(index))
    stored = {key: value.clone() for key, value in named_tensors(state).items()}
    two = moves(name)
    again = from_tensors(two.state_type, stored)
    assert type(again) is type(state)
    after, info = one.move(state, 3, torch.Generator().manual_seed(3))
    assert all(torch.equal(stored[key], value) for key, value in named_tensors(state).items())
    other, same = two.move(again, 3, torch.Generator().manual_seed(3))
    for a, b in ((after, other), (info, same)):
        a, b = named_tensors(a), named_tensors(b)
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    assert info is not None and named_tensors(info)["log_density"].shape == (4,)
    assert one.drawn(after).shape == (4, 4)
