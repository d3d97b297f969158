import pytest
import torch
from zoo.stats import has_mean

from credo.core.errors import CredoError
from credo.core.seeds import Streams
from credo.posteriors import Posterior, Samples


def test_every_draw_is_picked_equally_often():
    family = Samples.of({"w": torch.arange(4.0).reshape(4, 1)})
    draws = family.draw(Streams(0, range(20_000)))["w"].double()
    for i in range(4):
        has_mean((draws == i).double(), 0.25)


def test_parameters_of_one_draw_belong_together():
    family = Samples.of({"a": torch.arange(5.0), "b": torch.arange(5.0).reshape(5, 1) * 10})
    draws = family.draw(Streams(1, range(50)))
    assert torch.equal(draws["a"] * 10, draws["b"].squeeze(-1))


def test_prediction_visits_each_atom_once_or_evenly():
    posterior = Posterior([Samples.of({"w": torch.arange(6.0)})])
    assert (
        posterior.numbers(100) == list(range(6))
        and posterior.numbers(3) == [0, 2, 4]
        and posterior.numbers(1) == [0]
    )
    assert posterior.realise([4, 1], seed=0)["w"].tolist() == [4.0, 1.0]


def test_errors():
    with pytest.raises(CredoError, match=r"same positive number of draws.*\[2, 3\]"):
        Samples.of({"a": torch.zeros(2, 1), "b": torch.zeros(3, 1)})
    with pytest.raises(CredoError, match="no density"):
        Samples.of({"a": torch.zeros(2, 1)}).log_prob({"a": torch.zeros(1)})


def test_draws_of_chains_are_views_chain_after_chain():
    shapes = {"a": (2,), "b": ()}
    family = Samples.hold(torch.arange(18.0).reshape(6, 3), shapes, chains=2)
    draws = family.chain_draws()
    assert family.chains == 2 and draws["a"].shape == (2, 3, 2) and draws["b"].shape == (2, 3)
    assert draws["b"].tolist() == [[2.0, 5.0, 8.0], [11.0, 14.0, 17.0]]
    assert draws["a"].untyped_storage().data_ptr() == family.flat.untyped_storage().data_ptr()
