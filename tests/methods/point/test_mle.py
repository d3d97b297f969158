import numpy as np
import torch
from torch.distributions import Normal
from zoo.regression import bnn, flat_mean, problem

from credo import BNN
from credo.likelihoods import Gaussian


def test_it_is_least_squares_whatever_the_prior():
    x, y, design = problem()
    fitted = bnn(prior=Normal(5.0, 0.01)).fit(
        (x, y), "mle", epochs=800, lr=0.05, batch_size=1000, progress=False
    )
    exact = np.linalg.lstsq(design, y[:, 0].numpy(), rcond=None)[0]
    assert np.allclose(
        flat_mean(fitted), exact, atol=1e-4
    )  # Adam's last steps are about lr times 1e-3 under the cosine
    assert fitted.posterior.atoms == 1 and fitted.history[-1]["kl"] == 0.0


def test_a_prior_named_by_pattern_is_ignored_too():
    x, y, design = problem()
    net = torch.nn.Linear(3, 1).double()
    model = BNN(net, Gaussian(std=0.5), prior={"*": Normal(5.0, 0.01)}, random="weights")
    fitted = model.fit((x, y), "mle", epochs=800, lr=0.05, batch_size=1000, progress=False)
    assert np.allclose(
        flat_mean(fitted), np.linalg.lstsq(design, y[:, 0].numpy(), rcond=None)[0], atol=1e-4
    )


def test_learned_noise_is_the_root_mean_square_residual():
    x, y, design = problem()
    fitted = bnn(likelihood=Gaussian()).fit(
        (x, y), "mle", epochs=1500, lr=0.05, batch_size=1000, progress=False
    )
    residual = y[:, 0].numpy() - design @ np.linalg.lstsq(design, y[:, 0].numpy(), rcond=None)[0]
    std = float(fitted.model.likelihood.std(torch.zeros(1, 1, 1)).detach())
    assert np.isclose(std, np.sqrt((residual**2).mean()), rtol=1e-3)


def test_it_has_no_epistemic_uncertainty():
    x, y, _ = problem()
    fitted = bnn().fit((x, y), "mle", epochs=2, progress=False)
    assert (
        fitted.predict(x).num_samples == 1 and float(fitted.predict(x).epistemic.abs().max()) == 0.0
    )


def test_init_can_be_random_or_a_state():
    x, y, _ = problem()
    other = torch.nn.Linear(3, 1).double()
    fitted = bnn().fit((x, y), "mle", epochs=1, lr=1e-9, init=other.state_dict(), progress=False)
    assert torch.allclose(fitted.posterior.mean()["weight"], other.weight, atol=1e-6)
