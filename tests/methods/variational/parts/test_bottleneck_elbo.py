"""The objective of the information bottleneck; z-tests as in ``zoo.stats``."""

import pytest
import torch
from torch import nn
from zoo.models import make_model
from zoo.stats import same_mean

from credo.core.errors import NetworkError
from credo.core.seeds import isolated
from credo.engine.step import EagerStep, make_step
from credo.likelihoods import Gaussian
from credo.methods.variational.parts.bottleneck_elbo import Bottlenecked
from credo.nets import Bottleneck
from credo.posteriors import Stochastic

STD = 0.5
N = 12
SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(N, 3, generator=SOURCE, dtype=torch.float64)
Y = torch.randn(N, 1, generator=SOURCE, dtype=torch.float64)


class Plain(nn.Module):
    """A code of two numbers of the inputs, and a linear answer."""

    def __init__(self):
        super().__init__()
        self.code, self.head = Bottleneck(3, 2), nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.code(x))


class Twice(nn.Module):
    """One bottleneck used twice in a pass, and another after it."""

    def __init__(self):
        super().__init__()
        self.code, self.last, self.head = Bottleneck(3, 3), Bottleneck(3, 2), nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.last(self.code(torch.tanh(self.code(x)))))


def objective(net=None, random="all", train_samples=1, num_data=N):
    torch.manual_seed(0)
    net = (Plain if net is None else net)().double()
    model = make_model(net, random, Gaussian(std=STD)).flat()
    values, noisy_modules = model.values(), ["code"]
    posterior = model.with_points(
        [Stochastic.of({n: values[n] for n in model.random}, noisy_modules)], values
    )
    made = Bottlenecked(model, posterior, num_data, train_samples)
    model.shell().train(True)
    return made


def by_name(made):
    """Parameters of the posterior by the network's names."""
    return {
        n: v
        for family in made.posterior.factors
        for n, v in zip(family.names, family.values, strict=True)
    }


def by_hand(made, x, y, noise, beta):
    """(N / B) sum of nll + beta KL, and its gradient by the chain rule written out."""
    p = {n: v.detach() for n, v in by_name(made).items()}
    mean, raw = (x @ p["code.numbers.weight"].T + p["code.numbers.bias"]).chunk(2, -1)
    raw = raw + made.model.net.code.shift
    std = raw.exp().log1p()
    z = mean + std * noise
    w = p["head.weight"]
    residual = y - z @ w.T - p["head.bias"]
    scale = N / len(x)
    nll = (
        residual.square() / (2 * STD**2) + 0.5 * torch.log(torch.tensor(2 * torch.pi * STD**2))
    ).sum()
    kl = scale * (0.5 * (mean.square() + std.square() - 1) - std.log()).sum()
    for_z = -(residual / STD**2) * w
    for_mean = for_z + beta * mean
    for_raw = (for_z * noise + beta * (std - 1 / std)) * torch.sigmoid(raw)
    both = torch.cat([for_mean, for_raw], -1)
    grads = {
        "code.numbers.weight": both.T @ x,
        "code.numbers.bias": both.sum(0),
        "head.weight": -(residual / STD**2).T @ z,
        "head.bias": -(residual / STD**2).sum(0),
    }
    return nll, kl, {n: scale * g for n, g in grads.items()}


@pytest.mark.parametrize("random", ["all", "last"])
@pytest.mark.parametrize("rows", [N, 5])
def test_value_and_gradient_are_the_hand_written_ones(rows, random):
    beta, made = 0.3, objective(random=random)
    x, y = X[:rows], Y[:rows]
    made.plan(made.model.shell(), x)
    with isolated(7):
        nll, kl = made(x, y)
    with isolated(7):
        noise = torch.randn(rows, 2, dtype=torch.float64)
    expected_nll, expected_kl, expected = by_hand(made, x, y, noise, beta)
    torch.testing.assert_close((nll, kl), (expected_nll, expected_kl))
    named = by_name(made)
    grads = torch.autograd.grad(nll * N / rows + beta * kl, list(named.values()))
    torch.testing.assert_close(dict(zip(named, grads, strict=True)), expected)


def test_a_step_descends_on_the_mean_over_examples():
    """sum(nll) / B + beta mean(KL): what a step moves along is the objective over N."""
    beta, made = 0.3, objective()
    made.plan(made.model.shell(), X)
    named = by_name(made)
    step = EagerStep(made, torch.optim.SGD(named.values(), lr=1.0), N)
    before = {n: p.detach().clone() for n, p in named.items()}
    with isolated(7):
        noise = torch.randn(5, 2, dtype=torch.float64)
    expected = by_hand(made, X[:5], Y[:5], noise, beta)[2]
    with isolated(7):
        step(X[:5], Y[:5], beta)
    torch.testing.assert_close(
        {n: before[n] - p.detach() for n, p in named.items()},
        {n: g / N for n, g in expected.items()},
    )


def test_the_codes_kl_is_scaled_as_the_data_term():
    """Without noise in it: the KL of the whole data set is exactly the mean over batches of equal
    size.
    """
    made = objective()
    with torch.no_grad():
        whole = made(X, Y)[1]
        parts = [made(X[start : start + 4], Y[start : start + 4])[1] for start in range(0, N, 4)]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


def test_batches_have_the_gradient_of_the_whole_on_average():
    beta, draws, made = 0.3, 3000, objective()
    named = list(by_name(made).values())

    def gradient(rows):
        nll, kl = made(X[rows], Y[rows])
        parts = torch.autograd.grad(nll * N / len(rows) + beta * kl, named)
        return torch.cat([g.flatten() for g in parts])

    order = torch.Generator().manual_seed(3)
    with isolated(0):
        whole = torch.stack([gradient(torch.arange(N)) for _ in range(draws)])
        batches = torch.stack(
            [gradient(torch.randperm(N, generator=order)[:4]) for _ in range(draws)]
        )
    same_mean(whole, batches)


def test_more_draws_average():
    made, single = objective(train_samples=3), objective()
    for one in (made, single):
        one.plan(one.model.shell(), X)
    with torch.no_grad():
        with isolated(0):
            nll, kl = made(X, Y)
        with isolated(0):
            parts = [single(X, Y) for _ in range(3)]
    torch.testing.assert_close(nll, torch.stack([a for a, _ in parts]).mean())
    torch.testing.assert_close(kl, parts[0][1])
    assert made.rate() == pytest.approx(float(kl) / N)


def test_all_calls_of_all_bottlenecks_count():
    made = objective(Twice)
    made.plan(made.model.shell(), X)
    with torch.no_grad(), isolated(1):
        _, kl = made(X, Y)
    net = made.model.net
    with torch.no_grad(), isolated(1):
        seen, first = [], torch.tanh(net.code(X))
        seen.append(net.code.kl)
        second = net.code(first)
        seen.append(net.code.kl)
        net.last(second)
        seen.append(net.last.kl)
    torch.testing.assert_close(kl, torch.stack(seen).sum())


def test_the_rate_is_the_mean_over_an_epochs_examples():
    made = objective()
    shares = [(slice(0, 8), 8), (slice(8, 12), 4)]
    with torch.no_grad():
        kls = [float(made(X[rows], Y[rows])[1]) * size / N for rows, size in shares]
    assert made.rate() == pytest.approx(sum(kls) / N) and float(made.divergence()) == pytest.approx(
        sum(kls)
    )
    assert made.monitor()["rate"] == made.rate() and "tally" not in made.state_dict()
    made.after_epoch(0, 1)
    with torch.no_grad():
        _, kl = made(X, Y)
    assert made.rate() == pytest.approx(float(kl) / N)


def test_no_graph_is_left_in_the_network():
    made = objective()
    made(X, Y)
    module = made.model.shell().module
    assert module.code.kl is None and module.code.calls is None and made.model.net.code.kl is None


class Turned(nn.Module):
    """A sequence with its positions first where the code is made."""

    def __init__(self):
        super().__init__()
        self.code, self.head = Bottleneck(1, 2), nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.code(x.T.unsqueeze(-1))).mean(0)


class Idle(nn.Module):
    """A bottleneck nobody calls, with parameters that do not train."""

    def __init__(self):
        super().__init__()
        self.code, self.head = Bottleneck(3, 2).requires_grad_(False), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(x)


def test_codes_without_the_examples_in_front_are_refused():
    with pytest.raises(
        NetworkError, match=r"codes for \(3,\) examples where the batch has 12.*examples first"
    ):
        objective(Turned)(X, Y)


def test_a_bottleneck_that_is_not_called_is_refused():
    with pytest.raises(NetworkError, match="a Bottleneck that no pass calls"):
        objective(Idle)(X, Y)


@pytest.mark.slow
@pytest.mark.parametrize("net", [Plain, Twice])
def test_a_compiled_step_has_the_same_expectation(net):
    """The compiler draws other numbers; the KL of a first call has none in it."""
    draws, means = 400, {}
    for compile in (False, True):
        made = objective(net)
        step = make_step(made, torch.optim.SGD(made.parameters(), lr=0.0), N, compile)
        with isolated(5):
            means[compile] = torch.stack(
                [torch.stack(step(X, Y, 0.1)).clone() for _ in range(draws)]
            )
    same_mean(means[False], means[True])
