"""A network trained before: its noise by maximum likelihood, and the Gaussian around it."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.curvature import make_job, make_sweep, targets
from zoo.models import make_model
from zoo.regression import problem

from credo.curvature.log_evidence import elementwise_prior
from credo.curvature.structures import STRUCTURES, Measured
from credo.likelihoods import Gaussian, StudentT
from credo.methods.laplace.parts.mode import trained_before
from credo.posteriors import Delta, Full


def linear_model(likelihood=None, prior=None, outputs=1):
    torch.manual_seed(0)
    net = nn.Linear(3, outputs).double()
    return make_model(
        net, likelihood=likelihood or Gaussian(std=0.5), prior=prior or Normal(0.0, 1.0)
    )


@pytest.mark.parametrize("each", [False, True])
def test_learned_noise_is_the_residuals_root_mean_square(each):
    x, y, _ = problem(n=40, outputs=2)
    likelihood = Gaussian(num_outputs=2 if each else None)
    model = linear_model(likelihood.double(), outputs=2)
    trained_before(model, make_job(x, y), model.values())
    square = (model.net(x).detach() - y).square()
    expected = square.mean(0).sqrt() if each else square.mean().sqrt()
    torch.testing.assert_close(model.likelihood.std(y).detach(), expected, rtol=1e-4, atol=0)
    assert model.likelihood.log_std.grad is None and model.likelihood.log_std.requires_grad


def test_other_noise_is_fitted_by_maximum_likelihood():
    x, y, _ = problem(n=40)
    model = linear_model(StudentT().double())
    values = model.values()
    trained_before(model, make_job(x, y), values)
    outputs = model.net(x).detach()
    loss = -model.likelihood.log_prob(outputs, y).mean()
    grads = torch.autograd.grad(loss, list(model.likelihood.parameters()))
    assert all(float(g.abs()) < 1e-4 for g in grads)
    assert all(torch.equal(v, model.values()[n]) for n, v in values.items())


def test_noise_that_is_given_stays():
    x, y, _ = problem()
    model = linear_model()
    trained_before(model, make_job(x, y), model.values())
    assert float(model.likelihood.std(y)) == pytest.approx(0.5)


def test_noise_in_batches_of_a_job():
    x, y, _ = problem(n=40)
    one, other = (linear_model(Gaussian().double()) for _ in range(2))
    trained_before(one, make_job(x, y), one.values())
    fit_job = make_job(x, y)
    fit_job.batch_size = 7
    trained_before(other, fit_job, other.values())
    torch.testing.assert_close(one.likelihood.log_std, other.likelihood.log_std)


def test_the_gaussian_has_points_beside_it():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(6, 3).double()
    sweep = make_sweep(net, x, targets(6), random="last")
    blocks = STRUCTURES["full"].measure(sweep, 0).blocks
    precision = elementwise_prior(sweep.model, sweep.values).precision
    posterior = Measured(blocks, 0.0).posterior(sweep.model, sweep.values, precision)
    assert [type(m) for m in posterior.factors] == [Full, Delta]
    assert all(torch.equal(v, sweep.values[n]) for n, v in posterior.mean().items())
