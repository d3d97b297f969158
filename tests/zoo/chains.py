"""Targets with known moments, short runs of the kernels and of the samplers on them, and z-tests
with the Monte Carlo error of chains.

A z-score beyond ``Z`` (see ``zoo.stats``) comes from a right sampler with probability 5.7e-7 per
comparison. Whoever shows that a test has power asks that a wrong sampler's score be beyond it.
"""

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.distributions import Normal

from credo import BNN
from credo.core.seeds import isolated, mix
from credo.kernels.hamiltonian import Integrator, first_step, hmc
from credo.kernels.log_density import Point, differentiable
from credo.kernels.metric import unit
from credo.kernels.nuts_tree import nuts
from credo.kernels.warmup import Adaptation, WarmUp, per_chain
from credo.likelihoods import Gaussian
from credo.methods.sampling.parts.density import Density
from credo.metrics.chain_diagnostics import mcse_mean
from credo.posteriors import Samples
from zoo import regression
from zoo.stats import Z


class Known(NamedTuple):
    """A target over ``(C, P)``, what of its positions to look at, and mean and variance of that;
    ``exact(n, generator)`` draws from it.
    """

    target: object
    mean: torch.Tensor
    variance: torch.Tensor
    exact: object
    look: object = staticmethod(lambda position: position)


def _normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def gaussian(cov):
    """N(0, cov)."""
    cov = torch.as_tensor(cov, dtype=torch.float64)
    precision, tril = torch.linalg.inv(cov), torch.linalg.cholesky(cov)

    def target(x):
        slope = -x @ precision
        return 0.5 * (x * slope).sum(-1), slope

    return Known(
        target,
        torch.zeros(len(cov), dtype=torch.float64),
        cov.diagonal().clone(),
        lambda n, g: _normal(g, n, len(cov)) @ tril.T,
    )


def pair():
    """Two coordinates with correlation 0.9 and standard deviations 1 and 3."""
    return gaussian([[1.0, 2.7], [2.7, 9.0]])


def fifty():
    """Fifty coordinates, neighbours correlated by 0.8, standard deviations from 0.3 to 3."""
    place = torch.arange(50, dtype=torch.float64)
    std = torch.logspace(math.log10(0.3), math.log10(3.0), 50, dtype=torch.float64)
    return gaussian(std.outer(std) * 0.8 ** (place - place[:, None]).abs())


def funnel():
    """v ~ N(0, 9), z ~ N(0, 1), looked at as v and log(abs(exp(v / 2) z)): Neal's funnel, not
    centred.

    E log(abs(z)) = -(gamma + log 2) / 2 and V log(abs(z)) = pi^2 / 8.
    """
    known = gaussian([[9.0, 0.0], [0.0, 1.0]])
    mean = torch.tensor([0.0, -(0.5772156649015329 + math.log(2.0)) / 2], dtype=torch.float64)
    variance = torch.tensor([9.0, 9.0 / 4 + math.pi**2 / 8], dtype=torch.float64)

    def look(x):
        return torch.stack([x[..., 0], x[..., 0] / 2 + x[..., 1].abs().log()], -1)

    return Known(known.target, mean, variance, known.exact, look)


WIDTH, BEND = 1.0, 0.5


def banana(width=WIDTH, bend=BEND):
    """x ~ N(0, width^2), y ~ N(bend (x^2 - width^2), 1): mean zero, V y = 1 + 2 bend^2 width^4."""

    def log_density(p):
        x, y = p.unbind(-1)
        return -0.5 * (x / width).square() - 0.5 * (y - bend * (x.square() - width**2)).square()

    def exact(n, g):
        x, y = width * _normal(g, n), _normal(g, n)
        return torch.stack([x, y + bend * (x.square() - width**2)], -1)

    variance = torch.tensor([width**2, 1 + 2 * bend**2 * width**4], dtype=torch.float64)
    return Known(differentiable(log_density), torch.zeros(2, dtype=torch.float64), variance, exact)


KNOWN = {"pair": pair, "fifty": fifty, "funnel": funnel, "banana": banana}


class KernelMoves:
    """How a chain moves: ``hmc`` with ``count`` steps, jittered, or ``nuts``."""

    def __init__(self, kind, count=8, max_depth=8):
        self.kind, self.count, self.max_depth = kind, count, max_depth

    def __call__(self, integrator, point, step, scale, generator):
        if self.kind == "nuts":
            return nuts(
                integrator, point, per_chain(step, point.position), scale, self.max_depth, generator
            )
        return hmc(
            integrator,
            point,
            per_chain(step, point.position, generator, 0.2),
            scale,
            self.count,
            generator,
        )


class Chains(NamedTuple):
    """Draws ``(C, D, P)`` and the adaptation after them."""

    draws: torch.Tensor
    adaptation: Adaptation
    rate: float
    divergent: int


def adapted(steps, target, position, num_warmup, num_draws, seed=0, dense=False, rate=0.8):
    """Warm-up as the samplers do it, then draws."""
    generator = torch.Generator().manual_seed(seed)
    integrator = target if isinstance(target, Integrator) else Integrator(target)
    point, warmup = Point.at(integrator.target, position), WarmUp(num_warmup, rate, dense)
    step = first_step(
        integrator, point, unit(position, dense), generator, torch.tensor(0.1, dtype=torch.float64)
    )
    adaptation, drawn, rates, divergent = warmup.start(position, step), [], [], 0
    for index in range(num_warmup + num_draws):
        size, scale = warmup.step(adaptation, index), adaptation.scale
        move = steps(integrator, point, size, scale, generator)
        point = move.point
        adaptation = warmup.adapt(adaptation, index, point.position, move.rate)
        if warmup.new_metric_after(index):
            guess = adaptation.step_size.log_step_mean.exp()
            step = first_step(integrator, point, adaptation.scale, generator, guess)
            adaptation = warmup.restart(adaptation, step)
        if index >= num_warmup:
            drawn.append(point.position)
            rates.append(move.rate.mean())
            divergent += int(move.divergent.sum())
    rate = float(torch.stack(rates).mean())
    return Chains(torch.stack(drawn, 1), adaptation, rate, divergent)


def fixed(steps, integrator, position, step, scale, num_draws, seed=0):
    """Draws ``(C, D, P)`` without adaptation.

    What a move says about the target is not believed: it may be a wrong sampler's.
    """
    generator, kept = torch.Generator().manual_seed(seed), []
    honest = integrator.target
    for _ in range(num_draws):
        position = steps(
            integrator, Point.at(honest, position), torch.tensor(step), scale, generator
        ).point.position
        kept.append(position)
    return torch.stack(kept, 1)


def score(draws, mean, variance):
    """The largest abs(z) of first and second moments about ``mean``, over all scalars of chains
    ``(C, D, P)``.
    """
    squares = (draws - mean).square()
    first = (draws.mean((0, 1)) - mean).abs() / mcse_mean(draws)
    second = (squares.mean((0, 1)) - variance).abs() / mcse_mean(squares)
    return float(torch.cat([first, second]).max())


def settled(draws, known, z=Z):
    """Assert that chains have the known moments of what is to be looked at."""
    worst = score(known.look(draws), known.mean, known.variance)
    assert worst < z, f"moments are off by z = {worst:.1f} (limit {z})"


class Careless:
    """An integrator that claims to keep the energy: every end is as good as every other.

    What uses it is a wrong sampler.
    """

    def __init__(self, target):
        self.target, self.honest = target, Integrator(target)

    def __call__(self, point, momentum, step, scale, count):
        energy = 0.5 * momentum.square().sum(-1) - point.value
        end, turned = self.honest(point, momentum, step, scale, count)
        return Point(end.position, 0.5 * turned.square().sum(-1) - energy, end.slope), turned


# --- samplers through ``fit`` ---------------------------------------------------------------------


def draws_of(fitted):
    """Draws ``(C, D, P)`` of the chains of a fitted model."""
    family = next(family for family in fitted.posterior.factors if isinstance(family, Samples))
    return family.flat.reshape(family.chains, -1, family.flat.shape[1])


def late(fitted, key):
    """A column of the history after the warm-up."""
    return [row[key] for row in fitted.history if not row["warmup"]]


def kinetic_is_chi_squared(fitted):
    """Energy + log density is the kinetic energy of a momentum ~ N(0, I), of mean P / 2: joint
    stationarity, by z-test.
    """
    energy, value = (
        torch.tensor(late(fitted, key), dtype=torch.float64).T for key in ("energy", "log_density")
    )
    kinetic = energy + value
    wanted = draws_of(fitted).shape[-1] / 2
    assert float(kinetic.min()) > -1e-9
    assert abs(float(kinetic.mean()) - wanted) < Z * float(mcse_mean(kinetic.unsqueeze(-1)))


class Square(nn.Module):
    """f(x) = w^2 whatever x: the data cannot tell w from -w.

    Its modules' own start is ``start``.
    """

    def __init__(self, start=1.0):
        super().__init__()
        self.start = start
        self.level = nn.Parameter(torch.full((1,), start, dtype=torch.float64))

    def reset_parameters(self):
        nn.init.constant_(self.level, self.start)

    def forward(self, x):
        return self.level.square().expand(len(x), 1)


WELLS = 8  # data around 1 with noise 0.5: a barrier of 16 nats at w = 0


def wells(prior_mean=0.0, start=1.0):
    """A model whose posterior has modes near -1 and 1, and its data; a prior around ``prior_mean``
    > 0 makes the one near 1 the higher.
    """
    y = 1 + 0.2 * (-1.0) ** torch.arange(WELLS, dtype=torch.float64).unsqueeze(1)
    data = (torch.zeros_like(y), y)
    return BNN(Square(start), Gaussian(std=0.5), prior=Normal(prior_mean, 1.0)), data


def well_density(w, prior_mean=0.0):
    """The same posterior's log density up to a constant, by hand."""
    return -0.5 * WELLS * ((1 - w.square()) / 0.5).square() - 0.5 * (w - prior_mean).square()


def last_layer(method, **how):
    """A network of which only the last layer is random, fitted by a sampler: draws of it, and point
    parameters that have learned.
    """
    x, y, _ = regression.problem()
    with isolated(0):
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    bnn = BNN(net, Gaussian(std=0.5), random="last").fit(
        (x, y), method, seed=3, progress=False, **how
    )
    family = next(family for family in bnn.posterior.factors if isinstance(family, Samples))
    assert set(family.names) == {"2.weight", "2.bias"} and bnn.posterior.fixed == {
        "0.weight",
        "0.bias",
    }
    assert float(family.flat.std(0).min()) > 0
    start = bnn.model.random_values(mix(3, "chain", 0))
    assert all(
        not torch.equal(bnn.posterior.mean()[name], start[name]) for name in ("0.weight", "0.bias")
    )
    outputs = bnn.functions(x, family.atoms)
    assert (
        outputs.isfinite().all() and float((outputs.mean(0) - y).square().mean() / y.var()) < 0.5
    )  # it explains the data
    return bnn


def noise_error(method, **how):
    """How far a sampler's learned log std ends from the maximum of the evidence, in units of what
    30 data know of it: sqrt(1 / 60).
    """
    x, y, design = regression.problem()
    bnn = regression.bnn(likelihood=Gaussian()).fit((x, y), method, progress=False, **how)
    best = max(
        (regression.exact(design, y[:, 0].numpy(), math.exp(s))[2], s)
        for s in torch.linspace(-1.5, 0.5, 401).tolist()
    )[1]
    assert abs(best) > 3 * math.sqrt(1 / 60)  # the start, log std 0, is a wrong answer
    return abs(float(bnn.likelihood.log_std.detach()) - best) / math.sqrt(1 / 60)


def density(model):
    return Density(model, model.values())


def weights(model, chains=3, seed=0, size=0.5):
    """Positions of chains over a model's random parameters."""
    count = sum(site.numel for site in model.random.values())
    return size * torch.randn(
        chains, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def split(model, row):
    """A flat vector by name, with nothing of the library's."""
    out, place = {}, 0
    for name, site in model.random.items():
        out[name] = row[place : place + site.numel].reshape(site.shape)
        place += site.numel
    return out
