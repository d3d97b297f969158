import numpy as np
import torch
from torch.distributions import Laplace, Normal
from zoo.regression import PRIOR_STD, bnn, flat_mean, problem

from credo import BNN
from credo.likelihoods import Gaussian


def fit(model, x, y, **how):
    return model.fit((x, y), "map", epochs=800, lr=0.05, batch_size=1000, progress=False, **how)


def test_a_normal_prior_is_ridge_regression():
    x, y, design = problem()
    ridge = np.linalg.solve(
        design.T @ design + 0.5**2 / PRIOR_STD**2 * np.eye(4), design.T @ y[:, 0].numpy()
    )
    assert np.allclose(flat_mean(fit(bnn(), x, y)), ridge, atol=1e-4)


def test_it_does_not_depend_on_the_batch_or_on_scaling_of_the_data():
    """N / B scaling: a loader over the same data twice, declared as N, has the same mode."""
    x, y, _ = problem()
    twice = (torch.cat([x, x]), torch.cat([y, y]))
    assert torch.allclose(
        flat_mean(fit(bnn(), *twice, num_data=30)), flat_mean(fit(bnn(), x, y)), atol=1e-4
    )


def test_a_laplace_prior_is_the_lasso():
    x, y, _ = problem()
    fitted = fit(bnn(prior=Laplace(0.0, 0.01)), x, y)
    small = fit(bnn(prior=Laplace(0.0, 10.0)), x, y)
    assert flat_mean(fitted).abs().sum() < 0.5 * flat_mean(small).abs().sum()


def test_point_parameters_are_free_of_the_prior():
    x, y, design = problem()
    net = torch.nn.Linear(3, 1).double()
    fitted = fit(BNN(net, Gaussian(std=0.5), prior=Normal(0.0, 0.1), random="weights"), x, y)
    penalty = np.diag([0.5**2 / 0.1**2] * 3 + [0.0])
    assert np.allclose(
        flat_mean(fitted),
        np.linalg.solve(design.T @ design + penalty, design.T @ y[:, 0].numpy()),
        atol=1e-4,
    )


def test_history_counts_minus_log_prior_as_kl():
    x, y, _ = problem()
    fitted = fit(bnn(), x, y)
    expected = -Normal(0.0, PRIOR_STD).log_prob(flat_mean(fitted)).sum()
    assert np.isclose(fitted.history[-1]["kl"], float(expected), atol=1e-3)
