import torch
from zoo.models import make_model
from zoo.networks import make

from credo.likelihoods import Gaussian
from credo.methods.sampling.parts.chains import fitted_draws
from credo.methods.sampling.parts.density import Density


def test_draws_are_the_posterior_with_the_points_beside_them():
    net, _ = make("mlp")
    likelihood = Gaussian()
    model = make_model(net, "last", likelihood)
    density = Density(model, model.values())
    draws = torch.randn(3, 5, density.numel, dtype=torch.float64)
    fitted = fitted_draws(density, draws, num_chains=3)
    samples = next(f for f in fitted.posterior.members if f.atoms == 15)
    assert samples.chains == 3 and torch.equal(samples.flat, draws.flatten(0, 1))
    assert fitted.posterior.fixed == {"0.weight", "0.bias"}
    assert torch.equal(fitted.posterior.mean()["0.weight"], density.points["0.weight"])
    assert likelihood.log_std.requires_grad  # trainable again
