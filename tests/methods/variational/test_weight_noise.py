import numpy as np
import torch
from torch.distributions import Normal
from zoo.regression import bnn, flat_mean, problem

from credo import load
from credo.priors import Optimal

DATA = problem()
FIT = {"epochs": 600, "batch_size": 1000, "lr": 0.02, "progress": False}


def least_squares():
    _, y, design = DATA
    return np.linalg.lstsq(design, y[:, 0].numpy(), rcond=None)[0]


def test_fixed_noise_keeps_its_size_and_ends_at_least_squares():
    """The prior is flat: independent noise on the weights of a linear network leaves the best mean
    where it was, up to a pull of init_std^2 sum x^2, which is part of the model and below the noise
    of the last steps at this size.
    """
    x, y, design = DATA
    fitted = bnn(prior=Normal(0.0, 1e-3)).fit((x, y), "weight_noise", init_std=0.02, **FIT)
    family = fitted.posterior.factors[0]
    assert torch.allclose(family.raw_std.exp(), torch.full_like(family.raw_std, 0.02))
    assert np.abs(flat_mean(fitted).numpy() - least_squares()).max() < 0.02
    assert not fitted.proper


def test_the_size_is_a_setting():
    x, y, _ = DATA
    fitted = bnn().fit((x, y), "weight_noise", init_std=0.3, epochs=2, progress=False)
    std = fitted.posterior.factors[0].std()["weight"]
    assert torch.allclose(std, torch.full_like(std, 0.3))


def test_adaptive_noise_learns_every_weights_size_under_the_optimal_prior(tmp_path):
    """A column of inputs scaled down tells less about its weight, which then keeps more noise."""
    x, y, _ = DATA
    x = x * torch.tensor([1.0, 1.0, 0.05])
    fitted = bnn().fit((x, y), "weight_noise", adaptive=True, **FIT)
    std = fitted.posterior.factors[0].std()["weight"][0]
    assert std[2] > 3 * std[:2].max() and fitted.proper
    prior = fitted.model.prior
    assert isinstance(prior, Optimal) and prior.per == "layer"
    mean, var = fitted.posterior.factors[0].marginals()
    flat, spread = (torch.cat([p["weight"].flatten(), p["bias"]]) for p in (mean, var))
    (values,) = prior.values().values()
    assert torch.allclose(values["loc"], flat.mean()) and torch.allclose(
        values["scale"] ** 2, (spread + (flat - flat.mean()) ** 2).mean()
    )
    fitted.save(tmp_path / "model")
    again = load(tmp_path / "model", fitted.net)
    assert again.objective((x, y)) == fitted.objective((x, y))
