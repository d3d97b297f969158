"""Chains of no given length begin where a short descent ends."""

import pytest
import torch
from torch import nn

import credo
from credo.engine.fit_job import FitJob, FitOptions, Problem
from credo.methods import make_method
from credo.methods.sampling.parts.chains import Chains
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.descent import FEWEST, MOST, descend, num_steps

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=G)
Y = torch.sin(2 * X[:, :1]) + 0.1 * torch.randn(60, 1, generator=G)


def parts(method="hmc", rows=60):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 1))
    model = credo.BNN(net, "gaussian").model
    chosen = make_method(method, {})
    fit_job = FitJob.on((X[:rows], Y[:rows]), FitOptions(), chosen, model, False, torch.float32)
    return model, fit_job


@pytest.mark.parametrize("method", ["hmc", "sghmc"])
def test_every_chain_comes_down_from_a_start_of_its_own_and_repeats(method):
    model, fit_job = parts(method)
    start = Chains.start(model, "random", 3, fit_job, descends=True)
    model.move(X)

    def log_density(position):
        with torch.no_grad():
            return start.density.joint(position, [(X, Y)])

    before = start.position.clone()
    moved = descend(start.density, fit_job, start.position)
    assert torch.equal(start.position, before) and not moved.requires_grad
    assert bool((log_density(moved) > log_density(before) + 10).all())
    assert len({float(row.sum()) for row in moved}) == 3
    model, fit_job = parts(method)
    again = Chains.start(model, "random", 3, fit_job, descends=True)
    assert torch.equal(descend(again.density, fit_job, again.position), moved)


def test_steps_are_a_tenth_of_the_budget_within_limits():
    _, fit_job = parts()
    fit_job.problem = Problem(100, 50)
    assert num_steps(fit_job, 4) == MOST
    fit_job.problem = Problem(10**6, 10**6)
    assert num_steps(fit_job, 4) == FEWEST


def test_only_random_starts_of_no_given_length_are_moved(monkeypatch):
    from credo.methods.sampling.parts import chains

    asked = []
    monkeypatch.setattr(chains, "descend", lambda d, j, position: asked.append(1) or position)
    few = {"progress": False, "num_chains": 1, "num_warmup": 1}

    def fit(**given):
        torch.manual_seed(0)
        bnn = credo.BNN(nn.Linear(3, 1), credo.likelihoods.Gaussian(std=0.1))
        bnn.fit((X, Y), "metropolis", **few, **given)
        return len(asked)

    assert fit(num_draws=4) == 0
    assert fit(init="prior", max_seconds=5.0) == 0
    assert fit() == 1


def test_particles_are_not_moved():
    model, fit_job = parts("svgd")
    assert Chains.start(model, "random", 3, fit_job).approach is None


def test_what_is_fitted_alongside_descends_too():
    model, fit_job = parts()
    start = Chains.start(model, "random", 2, fit_job, descends=True)
    assert isinstance(start.density, Density)
    (before,) = [t.detach().clone() for t in start.density.fitted_alongside]
    descend(start.density, fit_job, start.position)
    (after,) = start.density.fitted_alongside
    assert float(after) < float(before)
