from __future__ import annotations

import itertools

import pytest
import torch

from credo.core.errors import DataError
from credo.likelihoods import Bernoulli
from credo.likelihoods.mixtures import entropy_by_draws


def test_joint_entropy_of_labels_is_exact():
    """Two draws that disagree on both labels: the labels are dependent in the mixture, so the joint entropy is below the sum."""
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
    torch.testing.assert_close(Bernoulli().log_prob(f, torch.tensor([0.0, 1.0])), torch.tensor([-200.0, -200.0]))
    assert bool(Bernoulli().entropy(f).eq(0).all())


def test_targets_and_tables():
    likelihood = Bernoulli()
    assert likelihood.check_targets(torch.tensor([[True], [False]])).shape == (2,)
    with pytest.raises(DataError, match=r"row 1 is 0\.5; expected 0 or 1|row 1, column 0 is 0\.5; expected 0 or 1"):
        likelihood.check_targets(torch.tensor([0.0, 0.5]))
    probs, labels = likelihood.label_table(torch.tensor([[0.2], [0.9]]), torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(probs, torch.tensor([[0.8, 0.2], [0.1, 0.9]]))
    assert labels.tolist() == [0, 1]
    assert likelihood.label(torch.tensor([[0.2], [0.9]])).tolist() == [0, 1]
    assert likelihood.label(torch.tensor([[0.2, 0.7]])).tolist() == [[0, 1]]
