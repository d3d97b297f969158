"""Closed-form regression by its parts, against numpy; the methods built on it are tested in their
own files.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Laplace, Normal
from zoo.models import make_model
from zoo.regression import exact, problem

from credo.core.errors import NetworkError, SettingError
from credo.core.sites import FlatLayout
from credo.data import intake
from credo.engine.fit_job import FitJob
from credo.engine.linear_gaussian import (
    accumulate,
    conjugate,
    noise_std,
    normal_prior,
    regression,
    solve,
)
from credo.likelihoods import Gaussian

X, Y, DESIGN = problem()


def setup(net=None, likelihood=None, prior=None, random="all", **how):
    net = nn.Linear(3, 1).double() if net is None else net
    model = make_model(net, random, likelihood or Gaussian(std=0.5), prior or Normal(0.0, 1.25))
    fit_job = FitJob(intake((X, Y), **how), epochs=1, batch_size=7, lr=0.1)
    return model, fit_job, FlatLayout({n: s.shape for n, s in model.random.items()})


def test_the_sums_over_the_data():
    model, fit_job, layout = setup()
    sums = accumulate(model, fit_job, layout, noise_std(model), model.values(), model.buffers())
    assert np.allclose(sums.gram, DESIGN.T @ DESIGN / 0.25) and sums.count == 30
    assert np.allclose(sums.cross, DESIGN.T @ Y[:, 0].numpy() / 0.25) and np.isclose(
        sums.square, float((Y**2).sum()) / 0.25
    )


def test_the_solution():
    model, fit_job, layout = setup()
    solved = regression(model, fit_job, model.values(), model.buffers(), layout)
    mean, cov, _ = exact(DESIGN, Y[:, 0].numpy())
    assert np.allclose(solved.mean, mean) and np.allclose(solved.tril @ solved.tril.T, cov)
    assert np.allclose(solved.precision, np.linalg.inv(cov)) and np.allclose(
        solved.factor @ solved.factor.T, solved.precision
    )


def test_no_data_leave_the_prior():
    model, fit_job, layout = setup(prior=Normal(0.5, 2.0))
    mean, var = normal_prior(model, layout)
    sums = accumulate(model, fit_job, layout, noise_std(model), model.values(), model.buffers())
    empty = sums._replace(gram=torch.zeros_like(sums.gram), cross=torch.zeros_like(sums.cross))
    solved = solve(mean, torch.diag(1 / var), empty)
    assert torch.allclose(solved.mean, torch.full((4,), 0.5).double()) and torch.allclose(
        solved.tril, 2 * torch.eye(4).double()
    )


def test_points_enter_at_their_values():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    model, fit_job, layout = setup(net, random="last")
    values = model.values()
    values["0.weight"] = values["0.weight"] * 2
    solved = regression(model, fit_job, values, model.buffers(), layout)
    features = torch.tanh(X @ values["0.weight"].T + values["0.bias"]).numpy()
    assert np.allclose(
        solved.mean, exact(np.concatenate([features, np.ones((30, 1))], 1), Y[:, 0].numpy())[0]
    )


def test_what_is_conjugate():
    assert conjugate(setup()[0])
    assert not conjugate(setup(prior=Laplace(0.0, 1.0))[0])
    assert not conjugate(make_model(nn.Linear(3, 2), likelihood="categorical"))


def test_what_is_refused():
    model, fit_job, layout = setup(
        nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    )
    with pytest.raises(NetworkError, match="not linear in its random parameters"):
        regression(model, fit_job, model.values(), model.buffers(), layout)
    model, fit_job, layout = setup(prior={"weight": Normal(0.0, 1.0), "*": Laplace(0.0, 1.0)})
    with pytest.raises(SettingError, match="needs a normal prior, but 'bias' has Laplace"):
        normal_prior(model, layout)
    model, fit_job, layout = setup(num_data=100)
    with pytest.raises(SettingError, match="saw 30 examples in one pass, but num_data is 100"):
        regression(model, fit_job, model.values(), model.buffers(), layout)
