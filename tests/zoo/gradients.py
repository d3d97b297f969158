"""Many independent gradients of the negative ELBO at once, and what they should average to:
quadrature and enumeration.
"""

import itertools

import torch
from torch.func import functional_call, grad, vmap

from credo.core.seeds import isolated
from credo.posteriors import Delta


def gradients(elbo, x, y, n, seed=0):
    """``n`` independent gradients of nll + KL by vmap, each parameter's ``(n, *shape)``.

    Not for estimators that draw inside hand-written autograd functions; see :func:`looped`.
    """
    elbo.plan(elbo.model.shell(), x)
    parameters = {name: p.detach() for name, p in elbo.named_parameters()}

    def loss(parameters, _):
        nll, kl = functional_call(elbo, parameters, (x, y))
        return nll + kl

    with isolated(seed):
        return vmap(grad(loss), (None, 0), randomness="different", chunk_size=5000)(
            parameters, torch.arange(n)
        )


def looped(elbo, x, y, n, seed=0):
    """The same one by one: ``(n, P)`` of all parameters of the posterior."""
    rows = []
    parameters = list(elbo.posterior.parameters())
    with isolated(seed):
        for _ in range(n):
            rows.append(
                torch.cat([g.flatten() for g in torch.autograd.grad(sum(elbo(x, y)), parameters)])
            )
    return torch.stack(rows)


def joined(parts):
    """Gradients by name as one matrix (n, P), by name."""
    return torch.cat([parts[name].reshape(len(parts[name]), -1) for name in sorted(parts)], 1)


def outputs_at(elbo, weights, x):
    """Outputs ``(C, N, F)`` of the network at weights stacked by name."""
    return vmap(lambda w: functional_call(elbo.model.net, w, x))(weights)


def quadrature(elbo, x, y, nodes=24):
    """-ELBO of a mean-field posterior over very few weights by Gauss-Hermite quadrature,
    differentiable.
    """
    import numpy as np

    family = elbo.posterior.factors[0]
    points, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(nodes))
    grid = torch.tensor(
        list(itertools.product(points.tolist(), repeat=family.layout.numel)), dtype=torch.float64
    )
    mass = (
        torch.tensor(
            list(itertools.product((weights / weights.sum()).tolist(), repeat=family.layout.numel))
        )
        .double()
        .prod(1)
    )
    flat = family.flat_mean + family.std_transform.std(family.raw_std) * grid
    params = family.layout.split(flat)
    for other in elbo.posterior.factors[1:]:
        params |= {n: v.expand(len(grid), *v.shape) for n, v in other.mean().items()}
    nll = -elbo.likelihood.log_prob(outputs_at(elbo, params, x), y).sum(-1)
    return mass @ nll + _kl(elbo)


def _kl(elbo):
    pairs = zip(elbo.posterior.factors, elbo.terms(0).priors, strict=True)
    return sum(family.kl(prior) for family, prior in pairs if prior is not None)


class Enumerated:
    """A network of few discrete weights at every one of its configurations: exact evidence,
    posterior and ELBO.
    """

    def __init__(self, elbo, x, y):
        self.elbo, self.family = elbo, elbo.posterior.factors[0]
        levels = self.family.levels.tolist()
        size = self.family.layout.numel
        self.index = torch.tensor(list(itertools.product(range(len(levels)), repeat=size)))
        self.weights = self.family.layout.split(self.family.levels[self.index])
        params = dict(self.weights)
        for other in elbo.posterior.factors[1:]:
            assert isinstance(other, Delta)
            params |= {
                n: v.detach().expand(len(self.index), *v.shape) for n, v in other.mean().items()
            }
        with torch.no_grad():
            self.log_likelihood = elbo.likelihood.log_prob(outputs_at(elbo, params, x), y).sum(-1)
            self.log_prior = elbo.terms(0).priors[0].log_prob(self.weights)
        joint = self.log_likelihood + self.log_prior
        self.log_evidence = torch.logsumexp(joint, 0)
        self.posterior = (joint - self.log_evidence).exp()

    def log_q(self, logits):
        """log q of every configuration (C,)."""
        table = logits.log_softmax(-1)
        return table.gather(1, self.index.T).sum(0)

    def elbo_of(self, logits):
        """The exact ELBO of these logits (P, K)."""
        log_q = self.log_q(logits)
        return (log_q.exp() * (self.log_likelihood + self.log_prior - log_q)).sum()

    def marginals(self):
        """Exact posterior probability of every level of every weight (P, K)."""
        hot = torch.nn.functional.one_hot(self.index, len(self.family.levels)).double()
        return torch.einsum("c,cpk->pk", self.posterior, hot)

    def best(self, starts=6, steps=300):
        """The highest exact ELBO that gradient ascent on it finds from several starts, and its
        logits.
        """
        found = []
        for seed in range(starts):
            generator = torch.Generator().manual_seed(seed)
            logits = torch.randn(
                self.family.logits.shape, generator=generator, dtype=torch.float64
            ).requires_grad_()
            optimizer = torch.optim.Adam([logits], lr=0.1)
            for _ in range(steps):
                optimizer.zero_grad()
                (-self.elbo_of(logits)).backward()
                optimizer.step()
            found.append((float(self.elbo_of(logits).detach()), logits.detach()))
        return max(found, key=lambda pair: pair[0])
