import math
import warnings

import pytest
import torch
from torch import nn
from torch.distributions import (
    Categorical,
    Exponential,
    Laplace,
    MultivariateNormal,
    Normal,
    Poisson,
    Uniform,
)
from torch.func import functional_call
from zoo.chains import density, split, weights
from zoo.models import make_model, make_posterior
from zoo.networks import make

from credo.core.errors import SettingError
from credo.data import intake
from credo.kernels.log_density import differentiable
from credo.likelihoods import Gaussian
from credo.methods.sampling.parts.full_batch import FullBatch
from credo.posteriors import PosteriorPrior
from credo.priors import Optimal

DOUBLE = torch.float64


def naive(model, w, x, log_likelihood, log_prior):
    """log p(D, w) and its slope, chain by chain, by functional_call."""
    values, slopes = [], []
    net = model.net.eval()
    for row in w:
        row = row.clone().requires_grad_()
        params = split(model, row)
        args = (x,) if isinstance(x, torch.Tensor) else x
        value = log_likelihood(
            functional_call(net, params, *(((), args) if isinstance(args, dict) else (args,)))
        ) + log_prior(params)
        values.append(value.detach())
        slopes.append(torch.autograd.grad(value, row)[0])
    return torch.stack(values), torch.stack(slopes)


def plain(loc, scale, kind=Normal):
    """A distribution in double precision; torch makes numbers float32."""
    return kind(torch.tensor(loc, dtype=DOUBLE), torch.tensor(scale, dtype=DOUBLE))


def noise(f):
    return Normal(f, torch.tensor(0.5, dtype=DOUBLE))


def normal_prior(params):
    return sum(plain(0.0, 1.25).log_prob(p).sum() for p in params.values())


def same(got, wanted, rtol=1e-9):
    assert all(
        a.shape == b.shape and torch.allclose(a, b, rtol=rtol, atol=1e-9)
        for a, b in zip(got, wanted, strict=True)
    )


CASES = {
    "gaussian": (
        Gaussian(std=0.5),
        lambda y: lambda f: noise(f).log_prob(y).sum(),
        lambda n: torch.randn(n, 2).double(),
    ),
    "categorical": (
        "categorical",
        lambda y: lambda f: Categorical(logits=f).log_prob(y).sum(),
        lambda n: torch.arange(n) % 2,
    ),
    "poisson": (
        "poisson",
        lambda y: lambda f: Poisson(f.exp()).log_prob(y).sum(),
        lambda n: (torch.arange(2 * n) % 5).reshape(n, 2).double(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_value_and_slope_are_those_of_a_naive_loop(case):
    likelihood, log_prob, targets = CASES[case]
    net, x = make("mlp")
    y = targets(len(x))
    model = make_model(net, likelihood=likelihood, prior=Normal(0.0, 1.25))
    model.likelihood.check_training_targets(y)
    w = weights(model)
    got = FullBatch(density(model), [(x, model.likelihood.check_targets(y))])(w)
    same(got, naive(model, w, x, log_prob(y), normal_prior))
    assert got[0].dtype == DOUBLE


NETWORKS = (
    "mlp",
    "inplace",
    "tied",
    "shared_layer",
    "batchnorm",
    "conv",
    "grouped",
    "embedding",
    "attention",
    "transformer",
    "lstm",
    "weight_norm_new",
    "matmul",
    "custom_function",
    "cross_bias",
    "sequence",
)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.filterwarnings("ignore:Running chain by chain", "ignore:There is a performance drop")
def test_every_kind_of_network(name):
    net, x = make(name)
    y = torch.arange(len(x)) % 2
    model = make_model(net, likelihood="categorical", prior=Normal(0.0, 1.25))
    w = weights(model)
    got = FullBatch(density(model), [(x, y)])(w)
    same(
        got,
        naive(model, w, x, lambda f: Categorical(logits=f).log_prob(y).sum(), normal_prior),
        1e-7,
    )


def test_a_checkpointed_network():
    """What is recomputed on the way back must be recomputed with the chain's own weights."""
    net, x = make("checkpointed")
    y = torch.arange(len(x)) % 2
    model = make_model(net, likelihood="categorical", prior=Normal(0.0, 1.25))
    w = weights(model)
    got = FullBatch(density(model), [(x, y)])(w)
    # functional_call puts the parameters back before the backward pass, and then recomputes with
    # them
    model.net.use = False
    same(got, naive(model, w, x, lambda f: Categorical(logits=f).log_prob(y).sum(), normal_prior))


class Decides(nn.Module):
    """Checkpointed, and with a decision on numbers that vmap cannot make."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.use = nn.Linear(5, 3), nn.Linear(3, 2), True

    def forward(self, x):
        inner = lambda x: torch.tanh(self.a(x))  # noqa: E731
        h = (
            torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)
            if self.use
            else inner(x)
        )
        return self.b(h if float(h.detach().sum()) < 1e9 else 2 * h)


@pytest.mark.filterwarnings("ignore:Running chain by chain")
def test_a_checkpointed_network_that_is_looped_over():
    torch.manual_seed(0)
    net, x = Decides().double(), torch.randn(6, 5).double()
    y = torch.arange(6) % 2
    model = make_model(net, likelihood="categorical", prior=Normal(0.0, 1.25))
    w = weights(model)
    got = FullBatch(density(model), [(x, y)])(w)
    model.net.use = False
    same(got, naive(model, w, x, lambda f: Categorical(logits=f).log_prob(y).sum(), normal_prior))


def test_dictionaries_as_inputs_and_outputs():
    net, x = make("dicts")
    y = torch.arange(len(x["left"])) % 2
    model = make_model(net, likelihood="categorical", prior=Normal(0.0, 1.25), output="logits")
    w = weights(model)
    wanted = naive(
        model, w, x, lambda f: Categorical(logits=f["logits"]).log_prob(y).sum(), normal_prior
    )
    same(FullBatch(density(model), [(x, y)])(w), wanted)
    batch = (
        {k: torch.stack([v, v.flip(0), v]) for k, v in x.items()},
        torch.stack([y, y.flip(0), y]),
    )
    same(
        density(model).slope(w, [batch], 1.0, own=True), wanted
    )  # the order of the rows does not matter


class Scalar(nn.Module):
    """A parameter without axes, as a learned gain or temperature is."""

    def __init__(self):
        super().__init__()
        self.layer, self.gain = nn.Linear(5, 2), nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return self.gain * self.layer(x)


def test_a_parameter_without_axes():
    torch.manual_seed(0)
    net, x = Scalar().double(), torch.randn(4, 5).double()
    y = torch.randn(4, 2).double()
    model = make_model(net, likelihood=Gaussian(std=0.5), prior=Normal(0.0, 1.25))
    w = weights(model)
    same(
        FullBatch(density(model), [(x, y)])(w),
        naive(model, w, x, lambda f: noise(f).log_prob(y).sum(), normal_prior),
    )


def test_priors_by_pattern():
    net, x = make("mlp")
    y = torch.arange(len(x)) % 2
    table = {"0.weight": Laplace(0.25, 0.75), "*.bias": Normal(-1.0, 2.0), "*": Normal(0.0, 1.25)}
    model = make_model(net, likelihood="categorical", prior=table)
    w = weights(model)

    def log_prior(p):
        own = (
            plain(0.25, 0.75, Laplace).log_prob(p["0.weight"]).sum()
            + plain(0.0, 1.25).log_prob(p["2.weight"]).sum()
        )
        return own + sum(plain(-1.0, 2.0).log_prob(p[n]).sum() for n in ("0.bias", "2.bias"))

    same(
        FullBatch(density(model), [(x, y)])(w),
        naive(model, w, x, lambda f: Categorical(logits=f).log_prob(y).sum(), log_prior),
    )


def test_a_prior_with_a_value_for_every_element():
    net, x = make("mlp")
    loc = torch.arange(30.0, dtype=DOUBLE).reshape(6, 5) / 10
    model = make_model(net, prior={"0.weight": Normal(loc, 0.5), "*": Normal(0.0, 1.25)})
    w = weights(model)
    wanted = [
        Normal(loc, 0.5).log_prob(p["0.weight"]).sum()
        + sum(Normal(0.0, 1.25).log_prob(p[n]).sum() for n in p if n != "0.weight")
        for p in (split(model, row) for row in w)
    ]
    assert torch.allclose(density(model).log_prior(w), torch.stack(wanted))


@pytest.mark.parametrize("prior", [Uniform(-1.0, 1.0), Exponential(2.0)])
def test_outside_a_priors_support_the_density_is_zero(prior):
    """torch does not look at the support where validation is off: an exponential would go on
    growing below zero.
    """
    net = nn.Linear(1, 1, bias=False).double()
    model = make_model(net, likelihood=Gaussian(std=1.0), prior=prior)
    w = torch.tensor([[-0.5], [0.5], [-3.0]], dtype=DOUBLE)
    value = density(model).log_prior(w)
    inside = prior.support.check(w.squeeze(-1))
    assert torch.equal(value.isfinite(), inside) and (value[~inside] == -math.inf).all()
    assert torch.allclose(value[inside], prior.log_prob(w.squeeze(-1)[inside]).double())


@pytest.mark.parametrize("kind", ["mean_field", "full", "kron", "low_rank"])
def test_an_earlier_posterior_as_prior(kind):
    net, x = make("mlp")
    model = make_model(net, likelihood="categorical")
    earlier = make_posterior(kind, model)
    model = make_model(net, likelihood="categorical", prior=PosteriorPrior(earlier))
    w = weights(model)
    got = density(model).log_prior(w)
    assert got.shape == (3,) and got.dtype == DOUBLE
    draws = earlier.sample(4000)
    flat = torch.cat([draws[n].flatten(1) for n in model.random], 1)
    if kind == "mean_field":
        family = earlier.factors[0]
        wanted = [
            sum(
                Normal(family.mean()[n], family.std()[n]).log_prob(p).sum()
                for n, p in split(model, row).items()
            )
            for row in w
        ]
        assert torch.allclose(got, torch.stack(wanted).detach())
    if kind == "full":
        family = earlier.factors[0]
        joint = MultivariateNormal(family.flat_mean, scale_tril=family.scale_tril())
        assert torch.allclose(got, joint.log_prob(w).detach())
    # for all of them: E[slope] = 0 and E[slope w^T] = -I under the density itself, by its draws
    _, slope = differentiable(density(model).log_prior)(flat)
    error = slope.std(0) / math.sqrt(len(slope))
    assert float((slope.mean(0).abs() / error).max()) < 5.0


def test_a_posterior_without_a_density_is_refused():
    net, _ = make("mlp")
    model = make_model(net)
    for kind in ("samples", "delta"):
        prior = PosteriorPrior(make_posterior(kind, model))
        with pytest.raises(
            SettingError,
            match="earlier posterior .* has no density over the same parameters; fit with 'vi'",
        ):
            density(make_model(net, prior=prior))


def test_batches_one_at_a_time_are_one_batch():
    net, x = make("mlp")
    y = torch.arange(len(x)) % 2
    model = make_model(net, likelihood="categorical")
    w = weights(model)
    whole = FullBatch.of(density(model), intake((x, y)), None)
    parts = FullBatch.of(density(model), intake((x, y)), 2)
    assert len(whole.batches) == 1 and len(parts.batches) > 1
    same(parts(w), whole(w))
    power = torch.tensor([0.0, 0.5, 1.0], dtype=DOUBLE)
    same(parts.tempered(power)(w), whole.tempered(power)(w))
    assert all(torch.allclose(a, b) for a, b in zip(parts.parts(w), whole.parts(w), strict=True))


def test_parts_powers_and_the_joint_agree():
    net, x = make("mlp")
    y = torch.arange(len(x)) % 2
    model = make_model(net, likelihood="categorical", prior=Normal(0.0, 1.25))
    target, w = FullBatch(density(model), [(x, y)]), weights(model)
    prior, fit = target.parts(w)
    assert torch.allclose(prior + fit, target(w)[0]) and torch.allclose(
        target.density.joint(w, target.batches), target(w)[0]
    )
    power = torch.tensor([0.0, 0.5, 1.0], dtype=DOUBLE)
    tempered = target.tempered(power)
    value, slope = tempered(w)
    assert torch.allclose(value, prior + power * fit)
    alone = differentiable(target.density.log_prior)(w)[1]
    assert torch.allclose(slope, alone + power.unsqueeze(-1) * (target(w)[1] - alone))
    power.fill_(1.0)  # it may be changed in place
    assert torch.allclose(tempered(w)[0], prior + fit)


def test_chains_have_batches_of_their_own():
    net, x = make("mlp")
    y = torch.arange(len(x)) % 2
    model = make_model(net, likelihood="categorical", prior=Normal(0.0, 1.25))
    rows = torch.tensor([[0, 1], [2, 0], [1, 1]])
    w, factor = weights(model), 3.5
    got = density(model).slope(w, [(x[rows], y[rows])], factor, own=True)
    for c in range(3):
        one = naive(
            model,
            w[c : c + 1],
            x[rows[c]],
            lambda f, c=c: factor * Categorical(logits=f).log_prob(y[rows[c]]).sum(),
            normal_prior,
        )
        same([part[c : c + 1] for part in got], one)


def test_what_vmap_cannot_run_is_looped_over_with_the_same_numbers_and_one_warning():
    net, x = make("lstm")
    y = torch.arange(len(x)) % 2
    model = make_model(net, likelihood="categorical")
    target, w = FullBatch(density(model), [(x, y)]), weights(model)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        target(w)
        target(w)
        target.parts(w)
    assert sum("Running chain by chain" in str(item.message) for item in seen) == 1
    rows = torch.tensor([[0, 1], [2, 0], [1, 1]])
    own = density(model)
    own.vectorised.looped = True
    got = own.slope(w, [(x[rows], y[rows])], 2.0, own=True)
    one = own.slope(w[1:2], [(x[rows[1:2]], y[rows[1:2]])], 2.0, own=True)
    same([part[1:2] for part in got], one)


def test_looped_and_vmapped_numbers_are_the_same():
    net, x = make("conv")
    y = torch.arange(len(x)) % 2
    model = make_model(net, likelihood="categorical")
    one, two = density(model), density(model)
    two.vectorised.looped = True
    w = weights(model)
    same(FullBatch(one, [(x, y)])(w), FullBatch(two, [(x, y)])(w))
    assert not one.vectorised.looped


def test_a_network_that_cannot_take_the_inputs_shows_its_own_error():
    net, _ = make("mlp")
    model = make_model(net)
    with (
        pytest.raises(RuntimeError, match="shapes cannot be multiplied|size mismatch"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        FullBatch(density(model), [(torch.zeros(3, 4).double(), torch.zeros(3, 2).double())])(
            weights(model)
        )


def test_frozen_parameters_and_buffers_are_the_networks():
    net, x = make("batchnorm")
    net[1].running_mean.copy_(torch.linspace(-1, 1, 6))
    net[1].running_var.copy_(torch.linspace(0.5, 2, 6))
    net[0].weight.requires_grad_(False)
    y = torch.arange(len(x)) % 2
    model = make_model(net, likelihood="categorical", prior=Normal(0.0, 1.25))
    assert "0.weight" not in model.random
    w = weights(model)
    before = {n: t.clone() for n, t in net.state_dict().items()}
    net.train()
    own = density(model)
    got = FullBatch(own, [(x, y)])(w)
    assert net.training and all(torch.equal(before[n], t) for n, t in net.state_dict().items())
    assert all(torch.equal(own.buffers[n], before[n]) for n in own.buffers)
    same(got, naive(model, w, x, lambda f: Categorical(logits=f).log_prob(y).sum(), normal_prior))


def test_single_precision_networks_have_double_precision_sums():
    """log p of 20,000 data is of the order of 1e4, at which float32 can no longer tell differences
    of 1e-3; acceptance needs them.
    """
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    x, y = torch.randn(20_000, 2), torch.randn(20_000, 1)
    single = make_model(net, likelihood=Gaussian(std=0.5), prior=Normal(0.0, 1.25))
    w = weights(single).float()
    value, slope = FullBatch(density(single), [(x, y)])(w)
    assert value.dtype == DOUBLE and slope.dtype == torch.float32
    twin = make_model(
        nn.Linear(2, 1).double(), likelihood=Gaussian(std=0.5), prior=Normal(0.0, 1.25)
    )
    exact, steep = FullBatch(density(twin), [(x.double(), y.double())])(w.double())
    assert float((value - exact).abs().max()) < 1e-2 and float(exact.abs().max()) > 1e4
    assert torch.allclose(slope.double(), steep, rtol=1e-4)


def test_refusals():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1).double())
    with pytest.raises(SettingError, match="one type, got .*float32.*float64"):
        density(make_model(net))
    net, _ = make("mlp")
    model = make_model(net)
    model.prior = Optimal().fresh(model.sites)
    with pytest.raises(SettingError, match="optimal prior .* use Learned"):
        density(model)
