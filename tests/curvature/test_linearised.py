"""Predictions of the linearised network against brute-force Jacobians: J C J^T, its points, its
functions.
"""

import math

import pytest
import torch
from torch import nn
from zoo.curvature import ALL, OUTPUT, dense, make, make_sweep, some, targets
from zoo.families import MAKERS
from zoo.models import make_model, make_posterior
from zoo.regression import bnn as regression
from zoo.regression import problem
from zoo.stats import has_covariance, has_mean

from credo.core.errors import CredoError, SettingError
from credo.curvature import linearised as module
from credo.curvature.linearised import (
    linear_functions,
    linear_moments,
    linear_outputs,
    probit_outputs,
)
from credo.curvature.log_evidence import elementwise_prior
from credo.curvature.structures import STRUCTURES, Measured
from credo.engine.outputs import Draws
from credo.methods.laplace.parts.single_weights import subnetwork
from credo.posteriors import Gaussian, Posterior

pytestmark = pytest.mark.filterwarnings(
    "ignore:Using padding='same'",
    "ignore:There is a performance drop",
    "ignore:Derivatives of .* example by example",
)
NO_FORWARD = {"weight_norm_old", "weight_norm_new", "weight_normed_conv", "custom_function"}
STRUCTURED = ("diagonal", "kfac", "low_rank", "structured_full")


def fitted(name, kind="mean_field", random="all", dtype=torch.float64):
    """A model whose network holds a posterior's means, the posterior, and inputs."""
    net, x = make(name, dtype)
    model = make_model(net, random, "categorical", output=OUTPUT.get(name))
    if kind in STRUCTURED:
        sweep = make_sweep(net, x, targets(), random=random, output=OUTPUT.get(name))
        values = sweep.values
        blocks = STRUCTURES[kind.removeprefix("structured_")].measure(sweep, 2).blocks
        precision = elementwise_prior(model, values).precision
        posterior = Measured(blocks, 0.0).posterior(model, values, precision)
    elif kind == "subnetwork":
        chosen = some(model)
        sweep = make_sweep(net, x, targets(), random=random, output=OUTPUT.get(name))
        precision = elementwise_prior(model, sweep.values, places=chosen).precision
        posterior = subnetwork(sweep, chosen).posterior(model, sweep.values, precision)
    else:
        posterior = make_posterior(kind, model)
    mean = posterior.mean()
    with torch.no_grad():
        for parameter, value in net.named_parameters():
            if parameter in mean:
                value.copy_(mean[parameter])
    return net, model, posterior, x


@torch.no_grad()
def covariance(model, posterior):
    """Dense, over the random parameters in the model's order."""
    sizes = {n: s.numel for n, s in model.random.items()}
    starts, total = {}, 0
    for name, size in sizes.items():
        starts[name], total = total, total + size
    out = torch.zeros(total, total).double()
    for family in posterior.factors:
        if isinstance(family, Gaussian):
            index = torch.cat([torch.arange(starts[n], starts[n] + sizes[n]) for n in family.names])
            root = family.times_root(
                torch.eye(len(index), dtype=next(family.parameters()).dtype)
            ).double()
            out[index.unsqueeze(-1), index] = root @ root.mT
    return out


def truth(net, model, posterior, x, output=None):
    rows, out = dense(net, x, model, output)
    return out, rows @ covariance(model, posterior) @ rows.mT


@pytest.mark.parametrize("name", ALL)
def test_every_network_by_brute_force(name):
    net, model, posterior, x = fitted(name)
    mean, cover = truth(net, model, posterior, x, OUTPUT.get(name))
    found, spread = linear_moments(model, posterior, x, model.buffers(), None, covariance=True)
    torch.testing.assert_close(found, mean)
    torch.testing.assert_close(spread, cover)
    _, variance = linear_moments(model, posterior, x, model.buffers(), 2, covariance=False)
    torch.testing.assert_close(variance, cover.diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize("name", ["mlp", "conv", "transformer", "tied"])
@pytest.mark.parametrize(
    "kind", ["mean_field_softplus", "low_rank", "full", "kron", "subnetwork", *STRUCTURED]
)
def test_every_gaussian_family(name, kind):
    net, model, posterior, x = fitted(name, kind)
    _, cover = truth(net, model, posterior, x)
    torch.testing.assert_close(
        linear_moments(model, posterior, x, model.buffers(), None, True)[1], cover
    )
    variance = linear_moments(model, posterior, x, model.buffers(), None, False)[1]
    torch.testing.assert_close(variance, cover.diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize("random", ["last", "2.weight", ["2.bias", "2.weight"], "0.*", "weights"])
@pytest.mark.parametrize(
    "kind", ["full", "mean_field", "kron", "structured_full", "kfac", "subnetwork"]
)
def test_only_some_parameters(kind, random):
    """Variances of a last layer with a full covariance need only each output's own weights, which
    are kept from call to call.
    """
    net, model, posterior, x = fitted("mlp", kind, random)
    _, cover = truth(net, model, posterior, x)
    for _ in range(2):
        torch.testing.assert_close(linear_moments(model, posterior, x, {}, None, True)[1], cover)
        variance = linear_moments(model, posterior, x, {}, None, False)[1]
        torch.testing.assert_close(variance, cover.diagonal(dim1=1, dim2=2))


def test_kept_blocks_of_a_last_layer_follow_the_covariance():
    net, model, posterior, x = fitted("mlp", "full", "last")
    linear_moments(model, posterior, x, {}, None, False)
    with torch.no_grad():
        posterior.factors[0].raw_tril.mul_(0.5)
    _, cover = truth(net, model, posterior, x)
    torch.testing.assert_close(
        linear_moments(model, posterior, x, {}, None, False)[1], cover.diagonal(dim1=1, dim2=2)
    )


@pytest.mark.parametrize("name", ["conv", "layer_norm", "lstm"])
@pytest.mark.parametrize("kind", ["mean_field", "kfac", "structured_full", "subnetwork"])
def test_batches_and_little_memory_give_the_same(name, kind, monkeypatch):
    _, model, posterior, x = fitted(name, kind)
    whole = linear_moments(model, posterior, x, model.buffers(), None, True)
    for size, budget in ((2, module.BUDGET), (1, module.BUDGET), (None, 1)):
        monkeypatch.setattr(module, "BUDGET", budget)
        for one, other in zip(
            linear_moments(model, posterior, x, model.buffers(), size, True), whole, strict=True
        ):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("samples", [5, 6, 100, 101])
def test_points_have_exactly_these_moments(samples):
    _, model, posterior, x = fitted("mlp")
    mean, cover = linear_moments(model, posterior, x, {}, None, True)
    points = linear_outputs(model, posterior, x, {}, samples, None)
    assert points.shape == (samples, 3, 2)
    torch.testing.assert_close(points.mean(0), mean)
    gap = points - mean
    torch.testing.assert_close(torch.einsum("snf,sng->nfg", gap, gap) / samples, cover)


def test_one_point_has_no_variance_to_show():
    _, model, posterior, x = fitted("mlp")
    with pytest.raises(
        SettingError,
        match="samples=1: a linearised prediction is shown by points with its variance, of at "
        "least 2",
    ):
        linear_outputs(model, posterior, x, {}, 1, None)


def test_the_probit_approximation_of_the_mean_probability():
    """softmax(m / sqrt(1 + pi v / 8)); for two labels near the mean over the Gaussian, by 20,000
    points.
    """
    _, model, posterior, x = fitted("mlp")
    mean, cover = linear_moments(model, posterior, x, {}, None, True)
    var = cover.diagonal(dim1=1, dim2=2)
    found = probit_outputs(model, posterior, x, {}, 7, None)
    assert found.shape == (1, 3, 2)
    torch.testing.assert_close(found[0], mean / (1 + math.pi / 8 * var).sqrt())
    logits, spread = torch.tensor([-3.0, -0.5, 1.0, 4.0]).double(), torch.tensor(2.0).double()
    nodes = torch.linspace(-8, 8, 20_001).double()
    weights = torch.exp(-0.5 * nodes**2) / torch.exp(-0.5 * nodes**2).sum()
    exact = torch.sigmoid(logits.unsqueeze(-1) + spread.sqrt() * nodes) @ weights
    softened = model.likelihood.softened(logits, spread.expand(4)).sigmoid()
    assert (
        float((softened - exact).abs().max()) < 0.02
    )  # at a deviation of 1.4 it is off by at most 0.011


@pytest.mark.parametrize("name", ALL)
def test_functions_are_linear_in_the_drawn_weights(name):
    net, model, posterior, x = fitted(name)
    rows, out = dense(net, x, model, OUTPUT.get(name))
    draws = Draws.of(posterior, 4, 3)
    if name in NO_FORWARD:
        with pytest.warns(
            UserWarning,
            match="Functions from the derivatives of every output: forward derivatives cannot run",
        ):
            found = linear_functions(model, posterior, draws, x, model.buffers(), None)
    else:
        found = linear_functions(model, posterior, draws, x, model.buffers(), 2)
    drawn, mean = posterior.sample(4, 3), posterior.mean()
    delta = torch.cat([(drawn[n] - mean[n]).reshape(4, -1) for n in model.random], -1).detach()
    torch.testing.assert_close(found, out + torch.einsum("nfp,sp->snf", rows, delta))


@pytest.mark.parametrize("kind", ["kfac", "low_rank", "structured_full", "subnetwork"])
def test_functions_covary_across_inputs(kind):
    """z-tests of the covariance of every pair of outputs of every pair of inputs: J C J^T with all
    inputs at once.
    """
    net, model, posterior, x = fitted("mlp", kind)
    rows, out = dense(net, x, model)
    draws = linear_functions(model, posterior, Draws.of(posterior, 3000, 1), x, {}, None).flatten(1)
    has_mean(draws, out.reshape(-1))
    flat = rows.flatten(0, 1)
    has_covariance(draws, flat @ covariance(model, posterior) @ flat.mT)


@pytest.mark.parametrize("name", ["mlp", "weight_norm_new", "lstm"])
@pytest.mark.filterwarnings("ignore:Functions from the derivatives")
def test_functions_of_single_weights_move_nothing_else(name):
    """Also where an operation has no forward derivative, by the parameters that vary alone."""
    net, model, posterior, x = fitted(name, "subnetwork")
    rows, out = dense(net, x, model)
    drawn, mean = posterior.sample(4, 3), posterior.mean()
    delta = torch.cat([(drawn[n] - mean[n]).reshape(4, -1) for n in model.random], -1).detach()
    found = linear_functions(model, posterior, Draws.of(posterior, 4, 3), x, model.buffers(), 2)
    torch.testing.assert_close(found, out + torch.einsum("nfp,sp->snf", rows, delta))


@pytest.mark.parametrize("kind", ["delta", "mixture", "samples", "flow"])
def test_what_is_not_gaussian_says_what_to_do(kind):
    _, model, posterior, x = fitted("mlp", kind) if kind == "delta" else (None, *_other(kind))
    named = "a point estimate" if kind == "delta" else kind
    for act in (
        lambda: linear_moments(model, posterior, x, {}, None, True),
        lambda: linear_functions(model, posterior, Draws.of(posterior, 2, 0), x, {}, None),
    ):
        with pytest.raises(
            CredoError,
            match=f"needs a Gaussian posterior, and this is {named}; .* fit with 'laplace' or 'vi'",
        ):
            act()


def _other(kind):
    net, x = make("mlp")
    model = make_model(net)
    return model, make_posterior(kind, model), x


def test_families_of_dropout_are_refused():
    net, x = make("mlp")
    model = make_model(net)
    with pytest.raises(CredoError, match="needs a Gaussian posterior, and this is dropout"):
        linear_moments(model, Posterior([MAKERS["dropout"]()]), x, {}, None, True)


def test_a_posterior_in_another_precision_than_the_network():
    """The exact posterior is kept in double precision whatever the network is."""
    x, y, _ = problem()
    single = regression(dtype=torch.float32).fit((x.float(), y.float()), "exact")
    double = regression().fit((x, y), "exact")
    ours, theirs = (
        b.predict(inputs, shortcut="linear") for b, inputs in ((single, x.float()), (double, x))
    )
    assert ours.outputs.dtype == torch.float32
    torch.testing.assert_close(ours.std.double(), theirs.std, rtol=1e-4, atol=1e-5)
    model = single.model
    functions = linear_functions(
        model, single.posterior, Draws.of(single.posterior, 3, 0), x.float(), {}, None
    )
    torch.testing.assert_close(
        functions, single.functions(x.float(), 3), rtol=1e-4, atol=1e-4
    )  # linear already


def test_on_a_linear_network_draws_and_points_have_the_same_moments():
    x, y, _ = problem()
    fit = regression().fit((x, y), "exact")
    drawn = fit.predict(x, samples=4000, shortcut="weights").outputs[..., 0]
    mean, cover = linear_moments(fit.model, fit.posterior, x, {}, None, True)
    has_mean(drawn, mean[:, 0])
    has_mean((drawn - mean[:, 0]).square(), cover[:, 0, 0])


def test_frozen_and_point_parameters_have_no_spread():
    net, x = make("mlp")
    net[0].weight.requires_grad_(False)
    model = make_model(net, "2.*")
    posterior = make_posterior("mean_field", model)
    with torch.no_grad():
        for name, value in posterior.mean().items():
            net.get_parameter(name).copy_(value)
    assert isinstance(net, nn.Module) and list(model.point) == ["0.bias"]
    _, cover = truth(net, model, posterior, x)
    torch.testing.assert_close(linear_moments(model, posterior, x, {}, None, True)[1], cover)
