"""What is read off a network and its prior, and each refusal."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Laplace, Normal
from zoo.models import make_model

from credo.core.errors import NetworkError, SettingError
from credo.methods.exact.parts.wide_limit import wide_limit
from credo.nets import Erf, mlp, small_cnn
from credo.posteriors import MeanField, Posterior, PosteriorPrior
from credo.priors import FanIn, Prior


def limit(net, prior=None, **more):
    return wide_limit(make_model(net, prior=FanIn(1.5) if prior is None else prior, **more))


def test_depth_activation_and_variances_are_read():
    found = limit(mlp(3, (7, 5), 2, activation="erf"))
    assert (found.features, found.activations) == (3, ["erf", "erf"])
    assert (
        found.weight_variances == pytest.approx([2.25] * 3, rel=1e-14)
        and found.bias_variances == [2.25] * 3
    )


def test_widths_do_not_matter():
    narrow, wide = limit(mlp(3, (2, 9), 1)), limit(mlp(3, (400, 30), 1))
    assert narrow.activations == wide.activations
    assert narrow.weight_variances == pytest.approx(wide.weight_variances, rel=1e-14)


def test_layers_may_have_priors_of_their_own():
    prior = {
        "0.weight": Normal(0.0, 0.5),
        "*.bias": Normal(0.0, 0.25),
        "2.weight": FanIn(1.0),
        "*": FanIn(3.0),
    }
    found = limit(mlp(4, (5, 6), 1), prior)
    assert found.weight_variances == pytest.approx([4 * 0.25, 1.0, 9.0], rel=1e-14)
    assert found.bias_variances == [0.0625] * 3


def test_networks_without_biases_or_hidden_layers():
    assert limit(
        nn.Sequential(nn.Linear(2, 5, bias=False), nn.ReLU(), nn.Linear(5, 1, bias=False))
    ).bias_variances == [0.0, 0.0]
    single = limit(nn.Linear(3, 2), Normal(0.0, 2.0))
    assert single == (3, [12.0], [4.0], [])


def test_what_comes_first_may_flatten_or_drop_and_sequences_are_opened():
    inner = nn.Sequential(nn.Linear(6, 4), nn.Identity(), Erf())
    found = limit(
        nn.Sequential(
            nn.Flatten(), nn.Dropout(0.2), nn.Identity(), inner, nn.Linear(4, 4), nn.Linear(4, 1)
        )
    )
    assert found.activations == ["erf", "identity"] and found.features == 6


class Glorot(Prior):
    """A variance that sees the outputs, too."""

    def at(self, site):
        fans = sum(site.shape) if len(site.shape) == 2 else 1
        return Normal(torch.zeros(()), torch.tensor(math.sqrt(2 / fans)))

    def describe(self):
        return "Glorot"


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (
            Normal(0.0, 1.0),
            r"gives '2.weight' the variance 1 at 5 inputs and 1 at 20: .* use "
            r"prior=credo.priors.FanIn",
        ),
        (Glorot(), r"'Glorot' gives '2.weight' the variance 0.3333 at 5 inputs and 0.09524 at 20"),
        (
            Laplace(0.0, 1.0),
            "normal prior with mean 0 and one deviation for all of '0.weight', which has Laplace",
        ),
        ({"*.bias": Normal(0.1, 1.0), "*": FanIn()}, "all of '0.bias', which has Normal"),
        ("learned", "nngp needs a fixed prior; 'learned scale per layer"),
    ],
)
def test_priors_without_a_limit_are_refused(prior, message):
    net = mlp(3, (5,), 1)
    model = make_model(net, prior=prior)
    model.prior = model.prior.fresh(model.random)
    with pytest.raises(SettingError, match=message):
        wide_limit(model)


def test_an_earlier_posterior_is_no_such_prior():
    net = mlp(3, (5,), 1)
    earlier = PosteriorPrior(
        Posterior([MeanField.start({n: p.detach() for n, p in net.named_parameters()}, 0.1)])
    )
    with pytest.raises(SettingError, match="one deviation for all of '0.weight'"):
        limit(net, earlier)


def twice():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


def tied_biases():
    net = mlp(3, (3,), 3)
    net[2].bias = net[0].bias  # type: ignore[assignment]
    return net


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            lambda: mlp(3, (5,), 1, activation="tanh"),
            r"one of ReLU, Erf between them.* 1 is a Tanh",
        ),
        (
            lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Dropout(0.1), nn.Linear(5, 1)),
            "2 is a Dropout",
        ),
        (lambda: nn.Sequential(nn.ReLU(), nn.Linear(3, 1)), "0 is a ReLU"),
        (
            lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.ReLU(), nn.Linear(5, 1)),
            "2 is a ReLU",
        ),
        (
            lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU()),
            "this one has 'relu' after its last layer",
        ),
        (
            lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)),
            "1 is a BatchNorm1d",
        ),
        (lambda: small_cnn(1, 3), "knows no limit here"),
        (twice, "2 is a Linear whose weight is used twice"),
        (tied_biases, "'0.bias' is also 2.bias"),
    ],
)
def test_networks_without_a_closed_form_are_refused_by_name(net, message):
    with pytest.raises(NetworkError, match=message):
        limit(net())


def test_parameters_that_are_no_part_of_the_posterior_are_refused():
    with pytest.raises(SettingError, match="all random, and '0.weight' is not: use random='all'"):
        limit(mlp(3, (5,), 1), random="last")
    frozen = mlp(3, (5,), 1)
    frozen[2].bias.requires_grad_(False)
    with pytest.raises(SettingError, match="'2.bias' is not"):
        limit(frozen)
