import pytest
import torch
from zoo.models import make_model
from zoo.networks import make

from credo.core.errors import SettingError
from credo.posteriors import Delta, Discrete, Full, Kron, LowRank, MeanField, Start


def start(kind, name="mlp", random="all", **kwargs):
    net, _ = make(name)
    model = make_model(net, random)
    return model, model.posterior(kind, model.values(), Start(0.1, rank=2, **kwargs))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("mean_field", MeanField), ("low_rank", LowRank), ("full", Full), ("kron", Kron)],
)
def test_every_kind_starts_at_the_values_and_covers_all(kind, expected):
    model, posterior = start(kind)
    assert all(isinstance(member, expected) for member in posterior.factors) and set(
        posterior.names
    ) == set(model.random)
    assert all(torch.allclose(posterior.mean()[n], v) for n, v in model.values().items())


def test_points_are_their_own_family():
    _, posterior = start("mean_field", random="weights")
    assert [type(m) for m in posterior.factors] == [MeanField, Delta] and posterior.factors[
        1
    ].names == ("0.bias", "2.bias")


def test_kron_takes_matrices_layer_by_layer_and_the_rest_independently():
    _, posterior = start("kron", "transformer")
    kinds = {member.names: type(member) for member in posterior.factors}
    assert kinds[("head.weight", "head.bias")] is Kron
    rest = [names for names, kind in kinds.items() if kind is MeanField]
    assert len(rest) == 1 and all("norm" in n or "bias" in n for n in rest[0])
    _, posterior = start("kron", "transposed")
    assert ("6.weight", "6.bias") in [m.names for m in posterior.factors]


def test_mixed_types_get_a_family_each():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2).double(), torch.nn.Linear(2, 2))
    model = make_model(net)
    posterior = model.posterior("mean_field", model.values(), Start(0.1, "log", 2, seed=0))
    assert [m.flat_mean.dtype for m in posterior.factors] == [torch.float64, torch.float32]


def test_initial_values():
    net, _ = make("mlp")
    model = make_model(net)
    assert torch.equal(model.start_values("pretrained", 0)["0.weight"], net[0].weight)
    assert not torch.equal(model.start_values("random", 5)["0.weight"], net[0].weight)
    other, _ = make("mlp", seed=1)
    assert torch.equal(model.start_values(other.state_dict(), 0)["0.weight"], other[0].weight)
    with pytest.raises(
        SettingError, match="init=3: expected 'pretrained', 'random' or a state dict"
    ):
        model.start_values(3, 0)


def test_a_point_posterior_keeps_random_and_point_apart():
    net, _ = make("mlp")
    model = make_model(net, "weights")
    assert [m.names for m in model.point_posterior(model.values()).factors] == [
        ("0.weight", "2.weight"),
        ("0.bias", "2.bias"),
    ]


def test_discrete_weights_and_points():
    net, _ = make("mlp")
    model = make_model(net, "weights")
    posterior = model.posterior("discrete", model.values(), Start(levels=(-1.0, 0.0, 1.0)))
    assert [type(m) for m in posterior.factors] == [Discrete, Delta] and posterior.factors[
        0
    ].names == ("0.weight", "2.weight")
    assert (
        posterior.factors[0].levels.tolist() == [-1.0, 0.0, 1.0]
        and posterior.factors[0].logits.dtype == torch.float64
    )


def test_points_are_added_only_where_there_are_any():
    net, _ = make("mlp")
    model = make_model(net)
    member = MeanField.start(model.values(), 0.1)
    assert model.with_points([member], model.values()).factors == [member]


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_gaussian_of_given_deviations_and_directions(rank):
    generator = torch.Generator().manual_seed(0)

    def make_like(lead):
        return {
            n: torch.randn((*lead, *shape), generator=generator).double()
            for n, shape in (("w", (2, 3)), ("b", ()))
        }

    values, std, factor = (
        make_like(()),
        {n: v.abs() for n, v in make_like(()).items()},
        make_like((rank,)),
    )
    family = LowRank.of_moments(values, std, factor if rank else None)
    assert type(family) is (LowRank if rank else MeanField)
    mean, var = family.marginals()
    for name in values:
        assert torch.allclose(mean[name], values[name])
        assert torch.allclose(var[name], std[name].square() + factor[name].square().sum(0))
    again = type(family).from_config(family.config())
    again.load_state_dict(family.state_dict())
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.mean().values(), family.mean().values(), strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weight_that_never_moved_has_a_density_still(dtype):
    family = LowRank.of_moments(
        {"w": torch.ones(2, dtype=dtype)},
        {"w": torch.tensor([0.0, 1.0], dtype=dtype)},
        {"w": torch.zeros(2, 2, dtype=dtype)},
    )
    draws = family.distribution().sample((4,))
    assert torch.isfinite(family.log_prob({"w": torch.ones(2, dtype=dtype)})) and torch.allclose(
        draws[:, 0], torch.ones(4, dtype=dtype)
    )
    assert torch.isfinite(family.entropy())
