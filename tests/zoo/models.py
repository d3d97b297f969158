"""Posteriors with structure over small networks, and repeated passes through them."""

import torch

from credo import likelihoods
from credo.core.seeds import generator, isolated
from credo.core.sites import select
from credo.engine.model import Model
from credo.engine.outputs import Draws, sampled_outputs
from credo.estimators import estimators, make_plan, place
from credo.estimators.placement import with_masks
from credo.posteriors import Flow, Mixture, Posterior, Samples, Start
from credo.priors import as_prior, default_prior
from zoo.stats import same_mean, same_variance

FAMILIES = (
    "mean_field",
    "mean_field_softplus",
    "low_rank",
    "full",
    "kron",
    "mixture",
    "samples",
    "flow",
)


def make_model(net, random="all", likelihood="gaussian", prior=None, output=None):
    chosen, point = select(net, random)
    dtype = next(net.parameters()).dtype
    own = likelihoods.get(likelihood) if isinstance(likelihood, str) else likelihood
    return Model(
        net,
        own.to(dtype),
        default_prior() if prior is None else as_prior(prior),
        chosen,
        point,
        torch.device("cpu"),
        output,
    )


def shaken(module, seed=0, size=0.3):
    """The same family with every number moved at random, so that no symmetry of the start is
    left.
    """
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter += size * torch.randn(
                parameter.shape, generator=generator(seed, "shake", index), dtype=torch.float64
            )
    return module


def make_posterior(kind, model, std=0.3, seed=0):
    """A posterior of the named kind over a model's random parameters, with standard deviations
    around ``std``.
    """
    values = model.values()
    if kind == "mixture":
        return Posterior(
            [Mixture.of([make_posterior("mean_field", model, std, s) for s in (1, 2)], [0.3, 0.7])]
        )
    if kind == "samples":
        draws = make_posterior("mean_field", model, std).sample(5)
        return Posterior([Samples.of({n: draws[n] for n in model.random})])
    if kind == "flow":
        with isolated(seed):
            flow = Flow.start({n: values[n] for n in model.random}, std, hidden=8)
        return model.with_points([shaken(flow, seed, 0.1)], values)
    if kind == "delta":
        return model.point_posterior(values)
    family, _, scale = kind.partition("_softplus")
    posterior = model.posterior(
        family, values, Start(std, "softplus" if "softplus" in kind else "log", 2, seed=seed)
    )
    members = [
        shaken(f, seed, 0.1) if f.name == "full" else shaken(f, seed)
        for f in posterior.factors
        if f.atoms is None
    ]
    return Posterior([*members, *[f for f in posterior.factors if f.atoms is not None]])


def targets_for(model, x):
    """Targets that a model's likelihood takes, one for each example of ``x``."""
    size = len(
        next(iter(x.values())) if isinstance(x, dict) else x[0] if isinstance(x, tuple) else x
    )
    if model.likelihood.discrete:
        return torch.arange(size) % 2
    return torch.arange(size, dtype=torch.float64).unsqueeze(-1)


class Passes:
    """Repeated passes through a model's network under one estimator, as training makes them."""

    def __init__(self, model, posterior, estimator, x, train=False):
        self.model, self.posterior, self.x, self.estimator = (
            model,
            posterior,
            x,
            estimators[estimator],
        )
        self.shell = model.shell()
        self.shell.train(train)
        self.shell.place(model.frozen())
        sites = with_masks(model.random, posterior)
        self.plan = make_plan(
            self.shell, posterior, sites, self.estimator, x, model.buffers(), model.device
        )

    def one(self):
        self.shell.place(self.model.buffers())
        place(self.shell, self.posterior, self.estimator, self.plan)
        return self.model.outputs(self.shell, self.x)

    def __call__(self, n, seed=0):
        """Outputs ``(n, B, F)`` of n passes."""
        with torch.no_grad(), isolated(seed):
            return torch.stack([self.one() for _ in range(n)])


def agree(net, x, kind, estimator, random="all", draws=2500, vectorise=True, reference=8000):
    """z-tests of mean and variance of every output of every input: an estimator against weight
    draws; the estimator's plan.

    The weight draws are many, so that the estimator's own sampling error is what limits the test: a
    variance that is 20 % off fails at 2,500 draws.
    """
    model = make_model(net, random)
    posterior = make_posterior(kind, model)
    passes = Passes(model, posterior, estimator, x)
    ours = passes(draws, seed=1)
    if vectorise:
        truth, _ = sampled_outputs(
            model, Draws.of(posterior, reference, 2), x, model.buffers(), 2, vectorise=True
        )
    else:
        truth = Passes(model, posterior, "weights", x)(draws, seed=2)
    same_mean(ours, truth)
    same_variance(ours, truth)
    return passes.plan
