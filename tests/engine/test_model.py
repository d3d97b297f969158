import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.models import make_model
from zoo.networks import make

from credo.core.errors import NetworkError, SettingError
from credo.likelihoods import Gaussian


def test_values_are_copies():
    net, _ = make("mlp")
    model = make_model(net)
    values = model.values()
    values["0.weight"] += 1
    assert not torch.equal(values["0.weight"], net[0].weight) and set(values) == set(model.sites)


def test_values_from_a_state_dict():
    net, _ = make("batchnorm")
    other, _ = make("batchnorm", seed=1)
    model = make_model(net)
    assert torch.equal(model.values(other.state_dict())["0.weight"], other[0].weight)
    assert torch.equal(model.values({"0.weight": other[0].weight})["3.weight"], net[3].weight)
    with pytest.raises(NetworkError, match="init holds 'nope', which the network does not have"):
        model.values({"nope": torch.ones(1)})
    with pytest.raises(
        NetworkError, match=r"init gives '0\.weight' the shape \(2,\); the network has \(6, 5\)"
    ):
        model.values({"0.weight": torch.ones(2)})


def test_a_tied_networks_own_state_dict_is_accepted():
    """A state dict lists tied parameters under every name."""
    net, _ = make("tied")
    other, _ = make("tied", seed=1)
    assert torch.equal(
        make_model(net).values(other.state_dict())["embed.weight"], other.embed.weight
    )


def test_random_values_are_fresh_seeded_and_leave_the_network():
    net, _ = make("attention")
    model = make_model(net)
    before, state = {n: p.clone() for n, p in net.named_parameters()}, torch.get_rng_state()
    one, same, other = model.random_values(1), model.random_values(1), model.random_values(2)
    assert torch.equal(one["head.weight"], same["head.weight"]) and not torch.equal(
        one["head.weight"], other["head.weight"]
    )
    assert not torch.equal(one["attention.in_proj_weight"], net.attention.in_proj_weight)
    assert all(torch.equal(p, before[n]) for n, p in net.named_parameters()) and torch.equal(
        state, torch.get_rng_state()
    )


def test_frozen_and_buffers():
    net, _ = make("batchnorm")
    net[3].bias.requires_grad_(False)
    model = make_model(net)
    assert set(model.frozen()) == {"3.bias"} and not model.frozen()["3.bias"].requires_grad
    buffers = model.buffers()
    assert (
        set(buffers) == {n for n, _ in net.named_buffers()}
        and buffers["1.running_mean"] is not net[1].running_mean
    )


def test_a_named_prior_makes_a_point_parameter_map():
    net, _ = make("mlp")
    assert make_model(
        net, "weights", prior={"0.bias": Normal(0.0, 1.0), "*.weight": Normal(0.0, 1.0)}
    ).prior_for_point("0.bias")
    assert not make_model(net, "weights", prior=Normal(0.0, 1.0)).prior_for_point("0.bias")


def test_one_shell_per_thread():
    import threading

    model = make_model(nn.Linear(2, 2))
    seen = [model.shell()]
    thread = threading.Thread(target=lambda: seen.append(model.shell()))
    thread.start()
    thread.join()
    assert model.shell() is seen[0] and seen[1] is not seen[0]


def test_moving_keeps_the_tree():
    tree = {"a": torch.ones(2), "b": (1, "x")}
    moved = make_model(nn.Linear(2, 2)).move(tree)
    assert moved["b"] == (1, "x") and torch.equal(moved["a"], tree["a"])


def test_narrowing_makes_points_of_the_rest():
    net, _ = make("mlp")
    model = make_model(net)
    last = model.narrow("last")
    assert set(last.random) == {"2.weight", "2.bias"} and set(last.point) == {"0.weight", "0.bias"}
    assert set(model.random) == set(last.sites), "the model itself stays"
    assert set(last.narrow("last").random) == set(last.random), (
        "however the parameters were split before"
    )
    assert set(last.narrow(["0.*"]).random) == {"0.weight", "0.bias"}
    some = last.only(["2.bias", "0.weight"])
    assert list(some.random) == ["0.weight", "2.bias"] and list(some.point) == [
        "0.bias",
        "2.weight",
    ], "in the network's order"
    with pytest.raises(
        SettingError,
        match="subset: the pattern 'lost' matches no parameter. Known: 0.bias, 0.weight",
    ):
        model.narrow("lost", "subset")


def test_the_flat_model_has_a_flat_prior():
    from credo.priors import Flat

    net, _ = make("mlp")
    model = make_model(net)
    flat = model.flat()
    assert isinstance(flat.prior.at(flat.sites["0.weight"]), Flat) and not isinstance(
        model.prior.at(model.sites["0.weight"]), Flat
    )
    assert flat.shell() is not model.shell()


def test_the_digest_of_what_is_given():
    """Buffers and fixed noise count, trainable values only where a method says so."""
    net, _ = make("batchnorm")
    model = make_model(net, likelihood=Gaussian(std=0.5))
    plain = model.digest()
    values = model.values()
    with torch.no_grad():
        net[0].weight.add_(1.0)
    assert model.digest() == plain and model.digest(values) != plain
    assert model.digest(values) != model.digest(model.values())
    net[1].running_mean.add_(1.0)
    assert model.digest() != plain
