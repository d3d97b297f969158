"""Tiny latent-variable models whose bounds, gradients and evidence are known: quadrature,
enumeration, and linear-Gaussian algebra.
"""

import itertools
import math
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.distributions import MultivariateNormal
from torch.func import functional_call, grad, vmap

from credo.core.seeds import isolated
from credo.generative import VAE
from credo.generative.bounds import Bound
from credo.generative.codes import codes
from credo.generative.network import LatentNet
from credo.generative.priors import priors
from credo.likelihoods import Gaussian

STILL = {
    "epochs": 1,
    "lr": 1e-12,
    "batch_size": None,
    "progress": False,
}  # a fit that leaves every weight where it is
QUICK = {"epochs": 2, "batch_size": 16, "lr": 0.01, "progress": False}


def real(n=40, d=6, seed=0, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def binary(n=40, d=6, seed=0, dtype=torch.float32):
    return (torch.rand(n, d, generator=torch.Generator().manual_seed(seed)) < 0.4).to(dtype)


def coder(inputs, outputs, hidden=5, dtype=torch.float32, seed=0):
    """A perceptron with one hidden layer, the same at every call."""
    with isolated(seed):
        return nn.Sequential(
            nn.Linear(inputs, hidden, dtype=dtype),
            nn.Tanh(),
            nn.Linear(hidden, outputs, dtype=dtype),
        )


def vae(
    likelihood="gaussian",
    d=6,
    latent_dim=2,
    per=1,
    dtype=torch.float32,
    posterior="diagonal",
    **arguments,
):
    """A small VAE for d numbers per datum."""
    code = posterior if not isinstance(posterior, str) else codes[posterior](latent_dim)
    encoder, decoder = (
        coder(d, code.width, dtype=dtype),
        coder(code.size, per * d, dtype=dtype, seed=1),
    )
    return VAE(encoder, decoder, latent_dim, likelihood, posterior=code, **arguments)


# --- gradients ------------------------------------------------------------------------------------


def network(code, prior="normal", likelihood=None, d=3, seed=0, **prior_arguments):
    """A float64 network in training mode, with a smooth decoder."""
    likelihood = likelihood or Gaussian(std=0.7)
    with isolated(seed):
        encoder = nn.Linear(d, code.width).double()
        decoder = nn.Sequential(nn.Linear(code.size, 3), nn.Tanh(), nn.Linear(3, d)).double()
        chosen = priors[prior](code.size, **prior_arguments)
        chosen.prepare((d,))
        net = LatentNet(encoder, decoder, code, chosen, likelihood, (d,)).double()
        for parameter in net.prior.parameters():
            parameter.data = torch.randn_like(parameter) * 0.5
    return net


def gradients(net, x, bound, n, seed=0):
    """``n`` independent gradients ``(n, P)`` of the summed objective, and its parameters' names in
    order.
    """
    net.train_on(bound, [])
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def climbed(values, _):
        return functional_call(net, values, (x,))[:, 0].sum()

    with isolated(seed), vmappable_draws():
        rows = vmap(grad(climbed), (None, 0), randomness="different", chunk_size=2000)(
            parameters, torch.arange(n)
        )
    return torch.cat([rows[name].reshape(n, -1) for name in parameters], 1)


@contextmanager
def vmappable_draws():
    """torch fills its normal draws in place, and looks at the values it makes one-hot: vmap can do
    neither.
    """
    normal, several, plain = (
        torch.distributions.normal,
        torch.distributions.multivariate_normal,
        torch.nn.functional,
    )
    before = normal._standard_normal, plain.one_hot
    try:
        normal._standard_normal = several._standard_normal = lambda s, dtype, device: torch.randn(
            s, dtype=dtype, device=device
        )
        plain.one_hot = lambda index, count: (index.unsqueeze(-1) == torch.arange(count)).long()
        yield
    finally:
        normal._standard_normal = several._standard_normal = before[0]
        plain.one_hot = before[1]


def values(net, x, n, seed=0):
    """``n`` independent bounds of every datum ``(n, N)``, in training mode, by one pass over copies
    of the data.
    """
    with torch.no_grad(), isolated(seed):
        return net.train()(x.repeat(n, 1))[:, 0].unflatten(0, (n, len(x)))


def exact_gradient(net, value):
    """The gradient ``(P,)`` of a value, in the same order."""
    parameters = list(net.parameters())
    parts = torch.autograd.grad(value, parameters, allow_unused=True)
    pairs = zip(parts, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in pairs])


def encoder_part(net, rows):
    """Those columns of gradients that belong to the encoder."""
    return rows[..., : sum(p.numel() for p in net.encoder.parameters())]


def quadrature(net, x, draws=1, kind="elbo", weight=1.0, nodes=24):
    """The bound of a diagonal or full q, summed over data, by Gauss-Hermite quadrature over all
    draws: differentiable, no sampling.
    """
    points, mass = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(nodes))
    mass = mass / mass.sum()
    size = net.code.size
    grid = torch.cartesian_prod(*[points] * (draws * size)).reshape(-1, draws, size)
    share = torch.cartesian_prod(*[mass] * (draws * size)).reshape(len(grid), -1).prod(1)
    q = net.posterior(net.inputs(x))
    factor = (
        q.scale_tril if isinstance(q, MultivariateNormal) else torch.diag_embed(q.base_dist.scale)
    )
    z = q.mean + torch.einsum("nij,gkj->gkni", factor, grid)
    flat = z.flatten(0, 1)
    log_ratio = (net.log_prior(flat) - q.log_prob(flat)).unflatten(0, z.shape[:2])
    log_w = net.log_fit(flat, net.targets(x)).unflatten(0, z.shape[:2]) + weight * log_ratio
    value = log_w.mean(1) if kind == "elbo" else torch.logsumexp(log_w, 1) - math.log(draws)
    return (share @ value).sum()


def enumeration(net, x, draws=1, kind="elbo", weight=1.0):
    """The bound of a categorical q, summed over data, from all codes: differentiable, no
    sampling.
    """
    groups, categories = net.code.latent_dim, net.code.categories
    table = torch.eye(categories, dtype=torch.float64)
    every = torch.stack(
        [
            torch.cat([table[c] for c in row])
            for row in itertools.product(range(categories), repeat=groups)
        ]
    )
    q = net.posterior(net.inputs(x))
    z = every.unsqueeze(1).expand(-1, len(x), -1)
    log_q = q.log_prob(z)
    log_w = net.log_fit(z, net.targets(x)) + weight * (net.log_prior(z) - log_q)
    total = 0.0
    for chosen in itertools.product(range(len(every)), repeat=draws):
        chosen = list(chosen)
        value = (
            log_w[chosen].mean(0)
            if kind == "elbo"
            else torch.logsumexp(log_w[chosen], 0) - math.log(draws)
        )
        total = total + (log_q[chosen].sum(0).exp() * value).sum()
    return total


# --- linear-Gaussian ------------------------------------------------------------------------------


class Linear:
    """x = W z + b + std e with z ~ N(0, I): evidence and posterior in closed form, and a VAE with
    this decoder.
    """

    def __init__(self, d=4, latent_dim=2, std=0.6, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.randn(d, latent_dim, generator=generator, dtype=torch.float64)
        self.weight = torch.linalg.qr(self.weight)[0] * torch.tensor(
            [1.5, 0.8, 1.1][:latent_dim], dtype=torch.float64
        )
        self.bias = torch.randn(d, generator=generator, dtype=torch.float64)
        self.std, self.d, self.latent_dim = std, d, latent_dim

    def data(self, n, seed=1):
        generator = torch.Generator().manual_seed(seed)
        z = torch.randn(n, self.latent_dim, generator=generator, dtype=torch.float64)
        e = torch.randn(n, self.d, generator=generator, dtype=torch.float64)
        return z @ self.weight.T + self.bias + self.std * e

    def log_evidence(self, x):
        cover = self.weight @ self.weight.T + self.std**2 * torch.eye(self.d, dtype=torch.float64)
        return MultivariateNormal(self.bias, cover).log_prob(x)

    def posterior(self, x):
        """Mean ``(N, d)`` and covariance ``(d, d)`` of z given x."""
        inner = self.weight.T @ self.weight + self.std**2 * torch.eye(
            self.latent_dim, dtype=torch.float64
        )
        return torch.linalg.solve(
            inner, self.weight.T @ (x - self.bias).T
        ).T, self.std**2 * torch.linalg.inv(inner)

    def encoder(self, shift=0.0, stretch=1.0):
        """The exact diagonal posterior (columns of W are orthogonal), or one moved and stretched on
        purpose.
        """
        inner = self.weight.T @ self.weight + self.std**2 * torch.eye(
            self.latent_dim, dtype=torch.float64
        )
        gain = torch.linalg.solve(inner, self.weight.T)
        std = stretch * (self.std**2 * torch.linalg.inv(inner)).diagonal().sqrt()
        net = nn.Linear(self.d, 2 * self.latent_dim).double()
        with torch.no_grad():
            net.weight.copy_(torch.cat([gain, torch.zeros_like(gain)]))
            net.bias.copy_(torch.cat([shift - gain @ self.bias, std.expm1().log()]))
        return net

    def decoder(self):
        net = nn.Linear(self.latent_dim, self.d).double()
        with torch.no_grad():
            net.weight.copy_(self.weight)
            net.bias.copy_(self.bias)
        return net

    def network(self, **encoder):
        """The float64 network itself."""
        code, prior = codes["diagonal"](self.latent_dim), priors["normal"](self.latent_dim)
        net = LatentNet(
            self.encoder(**encoder), self.decoder(), code, prior, Gaussian(std=self.std), (self.d,)
        )
        net.train_on(Bound(), [])
        return net.requires_grad_(False).eval()

    def vae(self, x, method="mle", **encoder):
        """A fitted VAE that is exactly this model."""
        return VAE(
            self.encoder(**encoder), self.decoder(), self.latent_dim, Gaussian(std=self.std)
        ).fit(x, method, **STILL)


def ppca(x, latent_dim):
    """Largest mean log-likelihood of probabilistic PCA, and its noise variance (Tipping and Bishop
    1999).
    """
    n, d = x.shape
    values = torch.linalg.eigvalsh((x - x.mean(0)).T @ (x - x.mean(0)) / n).flip(0)
    noise = values[latent_dim:].mean()
    log_det = values[:latent_dim].log().sum() + (d - latent_dim) * noise.log()
    return float(-0.5 * (d * math.log(2 * math.pi) + log_det + d)), float(noise)
