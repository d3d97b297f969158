from __future__ import annotations

import itertools
import json

import pytest
import torch

from credo.core.errors import DataError, SettingError
from credo.likelihoods import Bernoulli, likelihoods
from credo.likelihoods.mixtures import entropy_by_draws


def test_joint_entropy_of_labels_is_exact():
    """Two draws that disagree on both labels: the labels are dependent in the mixture, so the joint
    entropy is below the sum.
    """
    f = torch.tensor([[[4.0, 4.0]], [[-4.0, -4.0]]], dtype=torch.float64)
    p = f.sigmoid()[:, 0]
    joint = [
        sum(0.5 * float(torch.where(torch.tensor(y) == 1, p[s], 1 - p[s]).prod()) for s in range(2))
        for y in itertools.product((0, 1), repeat=2)
    ]
    expected = torch.special.entr(torch.tensor(joint, dtype=torch.float64)).sum()
    likelihood = Bernoulli()
    torch.testing.assert_close(likelihood.mixture_entropy(f)[0], expected)
    assert likelihood.mixture_entropy(f)[0] < likelihood.marginal_entropy(f).sum()


def test_drawn_entropy_agrees_with_enumeration():
    """200 data, independent errors: a z-test with failure rate 6e-5."""
    f = 2 * torch.randn(8, 200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    error = entropy_by_draws(Bernoulli(), f) - Bernoulli().mixture_entropy(f)
    assert (error.mean() / (error.std() / len(error) ** 0.5)).abs() < 4.0


def test_many_labels_are_drawn():
    f = torch.randn(4, 3, 12, generator=torch.Generator().manual_seed(0))
    total = Bernoulli().mixture_entropy(f)
    assert total.shape == (3,)
    assert bool((total <= Bernoulli().marginal_entropy(f).sum(-1) + 0.2).all())


def test_extreme_logits():
    f = torch.tensor([[200.0], [-200.0]])
    torch.testing.assert_close(
        Bernoulli().log_prob(f, torch.tensor([0.0, 1.0])), torch.tensor([-200.0, -200.0])
    )
    assert bool(Bernoulli().entropy(f).eq(0).all())


def test_targets_and_tables():
    likelihood = Bernoulli()
    assert likelihood.check_targets(torch.tensor([[True], [False]])).shape == (2,)
    with pytest.raises(
        DataError, match=r"row 1 is 0\.5; expected 0 or 1|row 1, column 0 is 0\.5; expected 0 or 1"
    ):
        likelihood.check_targets(torch.tensor([0.0, 0.5]))
    probs, labels = likelihood.label_table(torch.tensor([[0.2], [0.9]]), torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(probs, torch.tensor([[0.8, 0.2], [0.1, 0.9]]))
    assert labels.tolist() == [0, 1]
    assert likelihood.label(torch.tensor([[0.2], [0.9]])).tolist() == [0, 1]
    assert likelihood.label(torch.tensor([[0.2, 0.7]])).tolist() == [[0, 1]]


def test_grey_values_are_refused_with_both_ways_out():
    with pytest.raises(
        DataError,
        match=r"row 1, column 1 is 0\.25; expected 0 or "
        r"1.*ContinuousBernoulli\(\).*Bernoulli\(grey=True\)",
    ):
        Bernoulli().check_targets(torch.tensor([[0.0, 1.0], [1.0, 0.25]]))
    with pytest.raises(DataError, match=r"row 1, column 0 is 2\.0; expected 0 or 1\.$"):
        Bernoulli().check_targets(torch.tensor([0.0, 2.0]))
    with pytest.raises(DataError, match="all 2 targets in column 0 are 0; expected both 0 and 1"):
        Bernoulli().check_training_targets(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))


def test_grey_targets_give_the_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    f = torch.randn(4, 5, 3, generator=generator, dtype=torch.float64)
    y = torch.rand(5, 3, generator=generator, dtype=torch.float64)
    likelihood = Bernoulli(grey=True)
    assert torch.equal(likelihood.check_targets(y), y)
    cross = torch.nn.functional.binary_cross_entropy_with_logits(
        f, y.expand_as(f), reduction="none"
    ).sum(-1)
    torch.testing.assert_close(likelihood.log_prob(f, y), -cross)
    torch.testing.assert_close(likelihood(f).log_prob(y), -cross)
    labels = y.round()
    assert torch.equal(likelihood.log_prob(f, labels), Bernoulli().log_prob(f, labels))
    assert likelihood.check_targets(y[:, :1]).shape == (5,)


def test_grey_targets_are_checked():
    likelihood = Bernoulli(grey=True)
    y = torch.tensor([[0.0, 0.3], [0.0, 0.6]])
    assert torch.equal(likelihood.check_training_targets(y), y)  # the border of images is constant
    with pytest.raises(
        DataError, match=r"bernoulli: all 2 targets in column 0 are 0; expected values that vary"
    ):
        likelihood.check_training_targets(y[:1].expand(2, -1))
    with pytest.raises(DataError, match="all 2 targets are 0.5"):
        likelihood.check_training_targets(torch.tensor([0.5, 0.5]))
    for bad in (-0.1, 1.5, float("nan")):
        with pytest.raises(DataError, match="row 1, column 0"):
            likelihood.check_targets(torch.tensor([0.0, bad]))


def test_grey_is_stored_and_must_be_a_bool():
    config = json.loads(json.dumps(Bernoulli(grey=True).config()))
    assert config == {"grey": True}
    restored = likelihoods["bernoulli"].from_config(config)
    assert restored.check_targets(torch.tensor([0.0, 0.5])).tolist() == [0.0, 0.5]
    assert Bernoulli().config() == {"grey": False}
    assert Bernoulli.from_config({}).config() == {
        "grey": False
    }  # as stored before the argument existed
    with pytest.raises(SettingError, match="grey='yes'"):
        Bernoulli(grey="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("grey", [False, True])
def test_gradients_at_extreme_logits(grey):
    """|f| = 80 in single precision: the gradient is y - sigmoid(f)."""
    f = torch.tensor([[80.0, -80.0], [-80.0, 80.0]], requires_grad=True)
    y = (
        torch.tensor([[0.0, 1.0], [0.0, 1.0]])
        if not grey
        else torch.tensor([[0.25, 0.5], [0.0, 0.75]])
    )
    value = Bernoulli(grey=grey).log_prob(f, y)
    value.sum().backward()
    assert bool(value.isfinite().all())
    torch.testing.assert_close(f.grad, y - f.detach().sigmoid())
