import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, Dataset, TensorDataset
from zoo import regression
from zoo.chains import score
from zoo.models import make_model
from zoo.networks import make
from zoo.stats import Z

from credo import BNN
from credo.data import intake
from credo.engine.fit_job import FitJob
from credo.likelihoods import Gaussian
from credo.methods import PSGLD, SGLD
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.full_batch import FullBatch
from credo.methods.sampling.parts.stochastic_gradient import ChainBatches
from credo.methods.sampling.psgld import PSGLDMoves
from credo.methods.sampling.sgld import SGLDMoves

DOUBLE = torch.float64


def chains(fitted):
    family = fitted.posterior.factors[0]
    return family.flat.reshape(family.chains, -1, family.flat.shape[1])


# --- batches --------------------------------------------------------------------------------------


class Rows(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        return self.x[row], self.y[row]


X = torch.arange(10.0, dtype=DOUBLE).reshape(10, 1)
SOURCES = {
    "arrays": lambda: (X, X),
    "dataset": lambda: Rows(X, X),
    "loader": lambda: DataLoader(TensorDataset(X, X), batch_size=4, shuffle=True),
}


def batches_of(data, batch_size=4, chains=3, seed=0, net=None):
    model = make_model(net or nn.Linear(1, 1).double(), likelihood=Gaussian(std=1.0))
    return ChainBatches(
        Density(model, model.values()), FitJob(intake(data), 1, batch_size, 1.0, seed), chains
    )


@pytest.mark.parametrize("kind", SOURCES)
def test_every_chain_sees_everything_once_an_epoch_in_an_order_of_its_own(kind):
    given = batches_of(SOURCES[kind]())
    assert given.count == 3
    orders = []
    for epoch in range(2):
        batches = [given.at(3 * epoch + t) for t in range(3)]
        assert [y.shape[1] for _, y in batches] == [4, 4, 2]
        assert all(
            x.shape == y.shape == (3, y.shape[1], 1) and torch.equal(x, y) for x, y in batches
        )
        seen = torch.cat([y for _, y in batches], 1).squeeze(-1)
        assert torch.equal(seen.sort(1).values, X.T.expand(3, 10))
        orders += [tuple(row.tolist()) for row in seen]
    assert len(set(orders)) == 6


@pytest.mark.parametrize("kind", SOURCES)
def test_any_step_can_be_reached_again(kind):
    steady = batches_of(SOURCES[kind]())
    wanted = [steady.at(t)[1] for t in range(8)]
    for t in (0, 1, 2, 3, 4, 7):
        jumped = batches_of(SOURCES[kind]())
        assert torch.equal(jumped.at(t)[1], wanted[t])
        if t < 7:
            assert torch.equal(jumped.at(t + 1)[1], wanted[t + 1])
    back = batches_of(SOURCES[kind]())
    assert all(torch.equal(back.at(t)[1], wanted[t]) for t in (5, 2, 2, 3, 0))
    assert not torch.equal(batches_of(SOURCES[kind](), seed=1).at(0)[1], wanted[0])


def test_batches_leave_the_callers_random_numbers_alone():
    given = batches_of(SOURCES["loader"]())
    state = torch.get_rng_state()
    for t in range(4):
        given.at(t)
    assert torch.equal(state, torch.get_rng_state())


def test_dictionaries_are_stacked_leaf_by_leaf():
    net, x = make("dicts")
    y = torch.arange(len(x["left"])) % 2
    model = make_model(net, likelihood="categorical", output="logits")
    batch, labels = ChainBatches(
        Density(model, model.values()), FitJob(intake((x, y)), 1, 2, 1.0, 0), 4
    ).at(0)
    assert (
        batch["left"].shape == (4, 2, 5)
        and batch["right"].shape == (4, 2, 2)
        and labels.shape == (4, 2)
    )


def test_slopes_of_batches_average_to_the_slope_of_all_data():
    """Equal batches of an epoch, each scaled by N / B: their mean is the full slope, prior
    included, exactly.
    """
    x, y, _ = regression.problem(n=12)
    model = make_model(
        nn.Linear(3, 1).double(), likelihood=Gaussian(std=0.5), prior=Normal(0.0, 1.25)
    )
    density = Density(model, model.values())
    given = ChainBatches(density, FitJob(intake((x, y)), 1, 4, 1.0, 0), 2)
    w = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    slopes = [density.slope(w, [given.at(t)], 12 / 4, own=True)[1] for t in range(3)]
    assert torch.allclose(torch.stack(slopes).mean(0), FullBatch(density, [(x, y)])(w)[1])


# --- stationary distributions ---------------------------------------------------------------------


NUM = 30


def exact():
    x, y, design = regression.problem(n=NUM)
    mean, cov, _ = (torch.as_tensor(part) for part in regression.exact(design, y[:, 0].numpy()))
    return x, y, mean, cov


def overdamped_cov(precision, eta, temperature=1.0, scale=None):
    """Of w <- w + eta G slope + sqrt(2 eta T G) noise, exactly: whitened by G^-1/2 it is T (A (1 -
    eta A / 2))^-1.
    """
    root = torch.diag(torch.ones(len(precision), dtype=DOUBLE) if scale is None else scale.sqrt())
    inner = root @ precision @ root
    return (
        temperature
        * root
        @ torch.linalg.inv(inner @ (torch.eye(len(inner)) - eta * inner / 2))
        @ root
    )


def with_sum(draws, mean, cov):
    """The sum of all weights beside them, whose variance needs the covariances."""
    draws = torch.cat([draws, draws.sum(-1, keepdim=True)], -1)
    return (
        draws,
        torch.cat([mean, mean.sum().reshape(1)]),
        torch.cat([cov.diagonal(), cov.sum().reshape(1)]),
    )


LONG = {
    "num_chains": 128,
    "num_warmup": 100,
    "num_draws": 40,
    "thin": 4,
    "progress": False,
    "batch_size": NUM,
}


@pytest.mark.parametrize(("lr", "temperature"), [(0.15, 1.0), (0.1, 0.2)])
def test_sgld_has_its_exact_stationary_moments(lr, temperature):
    """On all data; what the step itself adds included.

    The same draws fail a temperature that is a third off, and the posterior itself at large lr.
    """
    x, y, mean, cov = exact()
    fitted = regression.bnn().fit((x, y), "sgld", lr=lr, temperature=temperature, **LONG)
    precision = torch.linalg.inv(cov)
    wanted = overdamped_cov(precision, lr / NUM, temperature)
    assert (
        score(*with_sum(chains(fitted), mean, wanted))
        < Z
        < score(*with_sum(chains(fitted), mean, 1.3 * wanted))
    )
    if lr == 0.15:
        assert score(*with_sum(chains(fitted), mean, temperature * cov)) > Z


@pytest.mark.parametrize("friction", [0.05, 0.5])
def test_sghmc_has_exactly_the_posteriors_moments(friction):
    x, y, mean, cov = exact()
    fitted = regression.bnn().fit(
        (x, y), "sghmc", lr=0.25, friction=friction, **(LONG | {"num_warmup": 150})
    )
    assert (
        score(*with_sum(chains(fitted), mean, cov))
        < Z
        < score(*with_sum(chains(fitted), mean, 1.3 * cov))
    )


def test_noise_of_a_wrong_scale_fails_the_same_test():
    x, y, mean, cov = exact()
    for method, wanted in (
        ("sgld", overdamped_cov(torch.linalg.inv(cov), 0.15 / NUM)),
        ("sghmc", cov),
    ):
        fitted = regression.bnn().fit((x, y), method, lr=0.15, temperature=1.3, **LONG)
        assert score(*with_sum(chains(fitted), mean, wanted)) > Z


def moved(kind, settings, lr, chains_, steps, x, y):
    """Moves of one kind by hand, and their last states."""
    model = regression.bnn().model
    density = Density(model, model.values())
    moves = kind(settings, density, FitJob(intake((x, y)), 1, None, lr, 0))
    state = moves.start(torch.zeros(chains_, 4, dtype=DOUBLE), torch.Generator().manual_seed(0))
    last = []
    for index in range(steps):
        state, _ = moves.move(state, index, torch.Generator().manual_seed(index + 1))
        if index >= settings.num_warmup:
            last.append(state)
    return last


def test_psgld_learns_a_scale_fixes_it_and_samples_the_same_posterior():
    x, y, mean, cov = exact()
    x = x * torch.tensor([1.0, 1.0, 0.05], dtype=DOUBLE)  # one weight of another scale
    design = torch.cat([x, torch.ones(NUM, 1, dtype=DOUBLE)], 1).numpy()
    mean, cov, _ = (torch.as_tensor(part) for part in regression.exact(design, y[:, 0].numpy()))
    states = moved(
        PSGLDMoves, PSGLD(num_chains=128, num_warmup=100, num_draws=50, thin=4), 0.1, 128, 300, x, y
    )
    scale = states[0].scale
    assert (
        all(torch.equal(state.scale, scale) for state in states)
        and abs(float(scale.mean()) - 1) < 1e-12
    )
    assert int(scale.argmax()) == 2 and float(scale.max() / scale.min()) > 2
    draws = torch.stack([state.position for state in states], 1)
    wanted = overdamped_cov(torch.linalg.inv(cov), 0.1 / NUM, 1.0, scale)
    assert score(*with_sum(draws, mean, wanted)) < Z < score(*with_sum(draws, mean, 1.3 * wanted))


class Constant(nn.Module):
    """One unknown number, the same at every input: all data have the same curvature, so that batch
    noise does not depend on it.
    """

    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.zeros(1, dtype=DOUBLE))

    def forward(self, x):
        return self.level.expand(len(x), 1)


def test_batches_add_the_predicted_variance():
    """K batches of an epoch share all data, so their errors sum to zero: correlation -1 / (K - 1)
    between any two of them.

    With u the distance from the mean, r = 1 - eta A and e_k the error of batch k's slope, an epoch
    takes u to r^K u - eta sum_k r^(K-1-k) e_k + noise, whose variance at the ends of epochs is in
    closed form. V(e) = N^2 / B (1 - B / N) s^2 for data slopes of variance s^2.
    """
    num, batch, std, lr = 24, 4, 0.5, 0.15
    y = torch.randn(num, 1, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    bnn = BNN(Constant(), Gaussian(std=std), prior=Normal(0.0, 1.0))
    epochs = num // batch
    fitted = bnn.fit(
        (torch.zeros(num, 1, dtype=DOUBLE), y),
        "sgld",
        lr=lr,
        batch_size=batch,
        num_chains=256,
        num_warmup=6 * epochs,
        num_draws=40,
        thin=epochs,
        progress=False,
    )
    precision, eta = num / std**2 + 1.0, lr / num
    mean = y.sum() / std**2 / precision
    powers = (1 - eta * precision) ** torch.arange(epochs - 1, -1, -1, dtype=DOUBLE)
    slopes = (y - mean) / std**2
    error = num**2 / batch * (1 - batch / num) * slopes.var()
    own, crossed = powers.square().sum(), powers.sum() ** 2 - powers.square().sum()
    gained = eta**2 * error * (own - crossed / (epochs - 1)) + 2 * eta * own
    variance = gained / (1 - (1 - eta * precision) ** (2 * epochs))
    plain = 1 / (precision * (1 - eta * precision / 2))  # without the batches' noise
    draws = chains(fitted)
    assert (
        score(draws, mean.reshape(1), variance.reshape(1))
        < Z
        < score(draws, mean.reshape(1), torch.tensor([plain], dtype=DOUBLE))
    )
    independent = (eta**2 * error + 2 * eta) / (
        1 - (1 - eta * precision) ** 2
    )  # batches drawn anew at every step would give another
    assert score(draws, mean.reshape(1), independent.reshape(1)) > Z


def test_at_temperature_zero_chains_descend_to_the_mode():
    x, y, mean, _ = exact()
    for method in ("sgld", "psgld", "sghmc"):
        fitted = regression.bnn().fit(
            (x, y),
            method,
            lr=0.1,
            temperature=0.0,
            num_chains=2,
            num_warmup=300,
            num_draws=1,
            batch_size=NUM,
            progress=False,
        )
        assert torch.allclose(chains(fitted)[:, -1], mean.expand(2, 4), atol=1e-5)


def test_cycles_explore_without_noise_and_sample_with_it():
    """At the end of an exploration all chains are at the mode; draws have the posterior's moments
    up to the lag of a falling step.
    """
    x, y, mean, cov = exact()
    seen = []
    fitted = regression.bnn().fit(
        (x, y),
        "csgmcmc",
        lr=0.25,
        num_warmup=0,
        num_draws=100,
        num_cycles=2,
        exploration=0.5,
        thin=5,
        num_chains=48,
        batch_size=NUM,
        progress=False,
        callbacks=[lambda row: seen.append((row["epoch"], row["lr"]))],
    )
    draws = chains(fitted)
    ratio = draws.flatten(0, 1).var(0) / cov.diagonal()
    assert (ratio > 0.8).all() and (ratio < 1.2).all()
    assert ((draws.mean((0, 1)) - mean).abs() < 0.2 * cov.diagonal().sqrt()).all()
    steps = [lr for _, lr in seen]
    tops = [i for i in range(1, len(steps)) if steps[i] > steps[i - 1]]
    assert len(tops) == 1 and max(steps) <= 0.25 and min(steps) > 0  # two cycles


def test_the_step_is_lr_over_the_number_of_data():
    x, y, *_ = exact()
    method = SGLD(num_chains=1, num_warmup=0, num_draws=1, thin=1, temperature=0.0)
    model = regression.bnn().model
    slope = FullBatch(Density(model, model.values()), [(x, y)])(torch.zeros(1, 4, dtype=DOUBLE))[1]
    assert torch.allclose(moved(SGLDMoves, method, 0.3, 1, 1, x, y)[0].position, 0.3 / NUM * slope)


def test_learned_noise_goes_near_the_maximum_of_the_evidence_and_is_held():
    from scipy.optimize import minimize_scalar

    x, y, design = regression.problem(n=NUM)
    bnn, seen = regression.bnn(likelihood=Gaussian()), []
    bnn.fit(
        (x, y),
        "sghmc",
        lr=0.05,
        num_chains=32,
        num_warmup=600,
        num_draws=2,
        thin=10,
        batch_size=NUM,
        point_lr=0.02,
        progress=False,
        callbacks=[lambda row: seen.append(float(bnn.likelihood.log_std.detach()))],
    )
    best = minimize_scalar(
        lambda s: -regression.exact(design, y[:, 0].numpy(), math.exp(s))[2],
        bounds=(-3, 1),
        method="bounded",
    ).x
    assert abs(seen[-1] - best) < 0.06 < abs(best)
    until = int(0.6 * 600) // 10
    assert len(set(seen[:until])) > until / 2 and len(set(seen[until:])) == 1
