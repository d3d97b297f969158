"""Tests of the recurrent language model."""

import pytest
import torch

import credo
from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.estimators import estimators, make_plan
from credo.likelihoods import Pixels
from credo.nets import char_lstm


@pytest.fixture
def words():
    return torch.randint(0, 7, (6, 10), generator=torch.Generator().manual_seed(0))


def make(layers=1):
    with isolated(0):
        return char_lstm(7, hidden=5, width=4, layers=layers)


@pytest.mark.parametrize("layers", [1, 2])
def test_scores_of_every_position_and_their_order_in_the_output(words, layers):
    net = make(layers)
    assert net(words).shape == (6, 70) and net(words[:, :3]).shape == (6, 21)
    torch.testing.assert_close(net(words).reshape(6, 7, 10)[2, 3, 4], net.scores(words)[2, 4, 3])


def test_a_score_knows_nothing_of_later_characters(words):
    net, other = make(), words.clone()
    other[:, 6:] = (other[:, 6:] + 1) % 7
    torch.testing.assert_close(net.scores(words)[:, :6], net.scores(other)[:, :6])
    assert not torch.allclose(net.scores(words)[:, 6:], net.scores(other)[:, 6:])


def test_the_likelihood_is_the_sum_over_all_targets_of_an_example(words):
    net, x, y = make(), words[:, :-1], words[:, 1:]
    by_hand = torch.nn.functional.cross_entropy(
        net.scores(x).transpose(1, 2), y, reduction="none"
    ).sum(1)
    torch.testing.assert_close(Pixels(7).log_prob(net(x), y), -by_hand)


def test_sizes():
    assert (
        sum(p.numel() for p in char_lstm(65).parameters())
        == 65 * 64 + 4 * 256 * (64 + 256 + 2) + 65 * 257
    )
    with pytest.raises(SettingError, match="char_lstm: hidden=0 is not valid"):
        char_lstm(5, hidden=0)


def test_recurrent_weights_are_drawn_and_the_rest_meets_its_noise_where_it_acts(words):
    data = words[:, :-1], words[:, 1:]
    bnn = credo.BNN(make(), Pixels(7)).fit(data, "sparse_vd", epochs=1, progress=False)
    assert set(bnn.model.random) == {
        "embed.weight",
        "lstm.weight_ih_l0",
        "lstm.weight_hh_l0",
        "head.weight",
    }
    plan = make_plan(
        bnn.model.shell(),
        bnn.posterior,
        bnn.model.random,
        estimators["local"],
        data[0],
        {},
        words.device,
    )
    assert plan.slots == {"embed.weight", "head.weight"}
    groups = credo.BNN(make(), Pixels(7)).fit(
        data, "group_normal_jeffreys", epochs=1, progress=False
    )
    plan = make_plan(
        groups.model.shell(),
        groups.posterior,
        groups.model.random,
        estimators["local"],
        data[0],
        {},
        words.device,
    )
    assert plan.slots == {"head.weight"}
    assert (
        groups.posterior.factors[0].scales.counts["lstm.weight_hh_l0"] == 20
    )  # a scale for each of four gates of five units
