"""An independent sampler as oracle: numpyro's NUTS on the same network, prior and noise, in jax.

z-tests of posterior mean and standard deviation of the function at ten inputs, with the Monte Carlo
errors of both sides; each comparison fails right samplers with probability 5.7e-7.
"""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.stats import Z

from credo import BNN
from credo.likelihoods import Gaussian
from credo.metrics.chain_diagnostics import mcse_mean, mcse_sd, rhat

numpyro = pytest.importorskip("numpyro", reason="numpyro is not installed")

pytestmark = pytest.mark.slow

INPUTS, HIDDEN, STD = 3, 8, 0.3


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, INPUTS))
    y = np.sin(1.5 * x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:] + STD * rng.normal(size=(40, 1))
    return x, y, 1.5 * rng.normal(size=(10, INPUTS))


@cache
def theirs():
    """Function values ``(C, D, 10)`` of numpyro's chains: two of 500 draws."""
    import jax
    import jax.numpy as jnp
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64()
    x, y, new = data()
    shapes = {"first": (INPUTS, HIDDEN), "bias": (HIDDEN,), "second": (HIDDEN, 1), "last": (1,)}

    def network(w, x):
        return jnp.tanh(x @ w["first"] + w["bias"]) @ w["second"] + w["last"]

    def model(x, y):
        w = {
            name: numpyro.sample(name, dist.Normal(0, 1).expand(shape).to_event(len(shape)))
            for name, shape in shapes.items()
        }
        numpyro.sample("y", dist.Normal(network(w, x), STD).to_event(2), obs=y)

    chains = MCMC(
        NUTS(model),
        num_warmup=500,
        num_samples=500,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    chains.run(jax.random.PRNGKey(0), x, y)
    values = jax.vmap(jax.vmap(lambda w: network(w, new)[:, 0]))(
        chains.get_samples(group_by_chain=True)
    )
    return torch.from_numpy(np.array(values))


@cache
def ours(method):
    """The same of credo's: four chains of 500 draws."""
    x, y, new = (torch.from_numpy(part) for part in data())
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)).double()
    bnn = BNN(net, Gaussian(std=STD), prior=Normal(0.0, 1.0))
    most = (
        {"max_depth": 5} if method == "nuts" else {"max_steps": 30}
    )  # keeps it to a minute each, and is no less exact
    bnn.fit((x, y), method, num_chains=4, num_warmup=300, num_draws=500, progress=False, **most)
    return bnn.functions(new, 2000)[..., 0].reshape(4, 500, 10)


def scores(a, b, stretch=1.0):
    """Largest abs(z) of means and of standard deviations; ``stretch`` makes a wrong second side."""
    b = b.mean((0, 1)) + stretch * (b - b.mean((0, 1)))
    mean = (a.mean((0, 1)) - b.mean((0, 1))) / (
        mcse_mean(a).square() + mcse_mean(b).square()
    ).sqrt()
    sd = (a.flatten(0, 1).std(0) - b.flatten(0, 1).std(0)) / (
        mcse_sd(a).square() + mcse_sd(b).square()
    ).sqrt()
    return float(torch.stack([mean, sd]).abs().max())


@pytest.mark.parametrize("method", ["hmc", "nuts"])
def test_functions_have_the_oracles_mean_and_spread(method):
    for draws in (theirs(), ours(method)):
        assert float(rhat(draws).max()) < 1.05  # or errors would be too small and the test unfair
    assert scores(ours(method), theirs()) < Z
    assert scores(ours(method), theirs(), 1.3) > Z  # a spread that is a third off is seen
