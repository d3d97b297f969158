"""Places, rates and priors of the dropout methods, and what they refuse."""

import pytest
import torch
from torch import nn
from zoo.dropout import METHODS, make
from zoo.fits import begun
from zoo.models import make_model
from zoo.networks import make as make_plain

from credo import BNN
from credo.core.errors import CredoError, SettingError
from credo.engine.noise_places import RATE, noise_places
from credo.methods import methods


def places(name_or_net, x=None, method="mc_dropout", random="all", **settings):
    net, example = make(name_or_net) if isinstance(name_or_net, str) else (name_or_net, x)
    chosen = methods[method](**settings)
    model = chosen.adapt(make_model(net, random))
    return noise_places(model, example, chosen, method, as_it_is=method == "mc_dropout")


def plain():
    net, x = make("dense", p=0.0)
    return nn.Sequential(nn.Linear(5, 5), *net).double(), x


def test_a_network_with_dropout_is_used_as_it_is():
    for layers in ("auto", "modules"):
        where, rates = places("image", layers=layers)
        assert (
            where.axes == {}
            and where.noisy_modules == ()
            and rates == {"2.mask0": 0.3, "5.mask0": 0.3}
        )
        assert where.feeds == {"3.weight": "2.mask0", "7.weight": "5.mask0"}


def test_without_any_it_is_put_before_all_layers_but_the_first():
    for layers in ("auto", "hidden"):
        where, rates = places(*plain(), layers=layers)
        assert where.axes == {"1.weight": (1, 1), "4.weight": (1, 1)} and rates == {
            "1.weight": RATE,
            "4.weight": RATE,
        }
        assert where.masks == where.feeds == {}
    assert list(places(*plain(), layers="all")[0].axes) == ["0.weight", "1.weight", "4.weight"]
    assert list(places(*plain(), layers=("0.*", "4.weight"))[0].axes) == ["0.weight", "4.weight"]
    assert list(places(*plain(), layers="last")[0].axes) == ["4.weight"]


def test_a_network_of_one_layer_has_its_inputs_dropped():
    assert places(nn.Linear(5, 2).double(), torch.randn(2, 5).double())[0].axes == {
        "weight": (1, 1)
    }


def test_axes_and_groups_of_every_kind_of_layer():
    net, x = make_plain("grouped")
    assert places(net, x, layers="all")[0].axes == {
        "0.weight": (1, 2),
        "2.weight": (1, 2),
        "6.weight": (1, 1),
    }
    net, x = make_plain("transposed")
    assert places(net, x, layers="all")[0].axes == {
        "0.weight": (0, 2),
        "2.weight": (0, 1),
        "6.weight": (1, 1),
    }
    net, x = make_plain("embedding")
    assert places(net, x, layers="all")[0].axes == {"embed.weight": (0, 1), "head.weight": (1, 1)}
    net, x = make_plain("lstm")
    axes = places(net, x, layers="all")[0].axes
    assert set(axes) == {
        "head.weight",
        *(f"rnn.weight_{kind}_l{layer}" for kind in ("ih", "hh") for layer in (0, 1)),
    }
    assert list(places(net, x)[0].axes) == ["head.weight"]


def test_weights_that_are_not_random_are_points():
    where, _ = places(*plain(), random="last")
    assert list(where.axes) == ["4.weight"]
    net, x = make("image")
    assert places(net, x, random="last")[0].feeds == {"7.weight": "5.mask0"}
    with pytest.raises(
        SettingError, match=r"layers='0\.weight' selects no random weight with input units"
    ):
        places(*plain(), random="last", layers="0.weight")


def test_rates_by_number_and_by_pattern():
    assert places("image", p=0.25)[1] == {"2.mask0": 0.25, "5.mask0": 0.25}
    assert places("image", p={"2.mask0": 0.1})[1] == {"2.mask0": 0.1, "5.mask0": 0.3}
    assert places("image", p={"5": 0.1})[1] == {"2.mask0": 0.3, "5.mask0": 0.1}
    assert places("image", p={"*": 0.1, "5.*": 0.4})[1] == {"2.mask0": 0.1, "5.mask0": 0.4}
    assert places(*plain(), p={"1.weight": 0.4})[1] == {"1.weight": 0.4, "4.weight": RATE}
    assert places(*plain(), p={"4": 0.4})[1] == {"1.weight": RATE, "4.weight": 0.4}


def test_noise_beside_the_modules_goes_on():
    where, rates = places("recurrent")
    assert rates == {"drop.mask0": 0.3} and "lstm" in where.noisy_modules
    where, rates = places("sequence", shared=False)
    assert where.masks == {} and where.axes == {} and "drop" in where.noisy_modules and rates == {}


@pytest.mark.parametrize("p", [0.0, -0.1, 1.0, "half"])
def test_rates_that_are_none(p):
    with pytest.raises(SettingError, match="mc_dropout: p="):
        methods["mc_dropout"](p=p)


@pytest.mark.parametrize(
    ("net", "settings", "words"),
    [
        (
            "image",
            {"p": {"2.*": 1.5}},
            r"mc_dropout: p\['2\.\*'\]=1\.5 is not valid; expected a rate between 0 and 1",
        ),
        ("image", {"p": {"2.*": "big"}}, r"p\['2\.\*'\]='big' is not valid"),
        (
            "image",
            {"p": {"9.*": 0.5}},
            r"p\['9\.\*'\] matches no place of noise; they are 2\.mask0, 5\.mask0",
        ),
        (
            "plain",
            {"layers": "modules"},
            "layers='modules', but the network has no dropout module with p > 0; use 'hidden'",
        ),
        (
            "functional",
            {"layers": "modules"},
            "layers='modules', but the network has no dropout module",
        ),
        (
            "image",
            {"layers": "hidden"},
            r"layers='hidden' on a network that is random by itself \(its dropout modules are 2, "
            r"5\)",
        ),
        ("functional", {"layers": "all"}, r"its dropout modules are none\); use layers='auto'"),
        (
            "plain",
            {"layers": "0.bias"},
            r"layers='0\.bias' selects no random weight with input units",
        ),
        ("plain", {"layers": "9.weight"}, r"pattern '9\.weight' matches no parameter"),
        ("scales", {}, "none of the network's parameters has input units that could be dropped"),
    ],
)
def test_refusals(net, settings, words):
    nets = {
        "plain": plain,
        "scales": lambda: (nn.LayerNorm(5).double(), torch.randn(2, 5).double()),
    }
    with pytest.raises(SettingError, match=words):
        places(*(nets[net]() if net in nets else make(net)), **settings)


@pytest.mark.parametrize("method", METHODS)
def test_a_rate_that_is_given_is_never_ignored(method):
    """Dropout by the function has a rate of its own that no setting reaches."""
    with pytest.raises(SettingError, match="p="):
        places("functional", method=method, p=0.2)


@pytest.mark.parametrize("method", ["concrete_dropout", "variational_dropout"])
def test_methods_that_learn_rates_refuse_a_network_without_any_they_could_learn(method):
    with pytest.raises(CredoError):
        places("functional", method=method)


def test_rates_that_variational_dropout_cannot_start_from_are_refused_by_name():
    """alpha = p / (1 - p) below one: nn.Dropout's default of one half is beyond."""
    x, y = torch.randn(6, 5), torch.arange(6) % 2
    for net_rate, p in ((0.5, None), (0.2, {"2": 0.6})):
        net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(net_rate), nn.Linear(6, 2))
        with pytest.raises(
            SettingError, match=r"variational_dropout: .*2\.mask0.*expected p < 0\.5"
        ):
            BNN(net).fit((x, y), "variational_dropout", p=p, epochs=1, progress=False)


def test_a_length_scale_is_a_prior_for_all_random_parameters():
    chosen = methods["mc_dropout"](length_scale=2.0)
    model = make_model(plain()[0])
    adapted = chosen.adapt(model)
    assert all(float(adapted.prior.at(site).scale) == 0.5 for site in model.sites.values())
    assert methods["mc_dropout"]().adapt(model) is model
    with pytest.raises(SettingError, match="length_scale"):
        methods["mc_dropout"](length_scale=0.0)


def test_what_is_learned_of_the_noise_learns_faster():
    """The optimizer's second group holds the rates, at ``rate_lr`` times the learning rate."""
    net, x = make("dense")
    for method, count in (
        ("concrete_dropout", 1),
        ("variational_dropout", 1),
        ("mc_dropout", 0),
        ("gaussian_dropout", 0),
    ):
        chosen = methods[method]()
        model = chosen.adapt(make_model(net))
        elbo, make_optimizer = begun(chosen, model, x)
        groups, posterior = make_optimizer(elbo, 0.1, 10).param_groups, elbo.posterior
        assert (
            len(groups) == 1 + count
            and [g.get("factor", 1.0) for g in groups] == [1.0, 3.0][: 1 + count]
        )
        assert sum(len(g["params"]) for g in groups) == sum(
            p.requires_grad for p in posterior.parameters()
        ) + len(list(model.likelihood.parameters()))
