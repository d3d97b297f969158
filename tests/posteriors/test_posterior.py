import json

import pytest
import torch
from zoo.families import MAKERS, values

from credo.core.errors import CredoError
from credo.posteriors import Delta, MeanField, Posterior, Samples


def both():
    return Posterior([MAKERS["mean_field"](), Delta.start({"p": torch.ones(2).double()})])


def test_it_is_the_product_of_its_families():
    posterior = both()
    assert posterior.names == ("w", "b", "p") and posterior.atoms is None
    assert set(posterior.mean()) == {"w", "b", "p"}
    point = values(3)
    assert torch.allclose(
        posterior.log_prob(point | {"p": torch.zeros(2)}), posterior.factors[0].log_prob(point)
    )
    other = {"x": torch.randn(4).double()}
    two = Posterior([MAKERS["mean_field"](), MeanField.start(other, 0.3)])
    expected = two.factors[0].log_prob(point) + two.factors[1].log_prob(other)
    assert torch.allclose(two.log_prob(point | other), expected)


def test_sampling_is_seeded_and_without_gradients():
    posterior = both()
    state = torch.get_rng_state()
    one, same, other = (
        posterior.sample(4, seed=1),
        posterior.sample(4, seed=1),
        posterior.sample(4, seed=2),
    )
    assert torch.equal(one["w"], same["w"]) and not torch.equal(one["w"], other["w"])
    assert one["w"].shape == (4, 3, 4) and one["p"].shape == (4, 2) and not one["w"].requires_grad
    assert torch.equal(state, torch.get_rng_state())
    assert torch.allclose(posterior.sample(2, seed=1)["w"], one["w"][:2])


def test_realise_gives_any_draw_again():
    posterior = both()
    whole = posterior.sample(6, seed=3)
    assert torch.allclose(posterior.realise([5, 2], 3)["w"], whole["w"][[5, 2]])


def test_atoms():
    point = Posterior([Delta.start({"a": torch.ones(1)}), Delta.start({"b": torch.ones(1)})])
    assert point.atoms == 1 and point.numbers(100) == [0]
    mixed = Posterior([Samples.of({"a": torch.arange(3.0)}), Delta.start({"b": torch.ones(1)})])
    assert mixed.atoms == 3 and mixed.realise([0, 2], 0)["b"].shape == (2, 1)
    with pytest.raises(CredoError, match="point estimate and has no density"):
        point.log_prob({"a": torch.ones(1), "b": torch.ones(1)})


def test_config_and_state_rebuild_it():
    posterior = both()
    other = Posterior.from_config(json.loads(json.dumps(posterior.config())))
    other.load_state_dict(posterior.state_dict())
    assert all(
        torch.equal(a, b)
        for a, b in zip(posterior.sample(2).values(), other.sample(2).values(), strict=True)
    )


def test_components_are_the_mixtures_or_itself():
    from credo.posteriors import Mixture

    single = both()
    assert single.components() == [single]
    parts = [both(), both()]
    assert Posterior([Mixture.of(parts)]).components() == parts


def test_draws_know_their_family():
    from credo.core.seeds import Ambient

    posterior = both()
    assert [draw.owner for draw in posterior.begin(Ambient())] == posterior.factors
