from __future__ import annotations

import numpy as np
import pytest
import torch

from credo.core.errors import DataError, SettingError
from credo.likelihoods import Bernoulli, Categorical
from credo.likelihoods.quadrature import SOBOL_POINTS


def test_expected_log_prob_against_a_product_rule():
    """The Sobol default on three classes against a 24^3 Gauss-Hermite grid: within the standard
    error of as many plain draws.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    grid = torch.tensor(
        np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), -1).reshape(-1, 1, 3)
    )
    mass = torch.tensor(
        np.einsum("i,j,k->ijk", weights, weights, weights).ravel() / weights.sum() ** 3
    )
    mean = torch.tensor([[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    var = torch.tensor([[1.0, 0.5, 2.0], [0.1, 3.0, 1.0]], dtype=torch.float64)
    y = torch.tensor([2, 1])
    values = Categorical().log_prob(mean + var.sqrt() * grid, y)
    exact = (mass[:, None] * values).sum(0)
    error = ((mass[:, None] * values.square()).sum(0) - exact.square()).div(2 * SOBOL_POINTS).sqrt()
    assert bool(((Categorical().expected_log_prob(mean, var, y) - exact).abs() < error).all())


def test_sample_frequencies():
    """Counts of 20000 draws against softmax, each a z-test; failure rate below 4e-4 in all, with a
    fixed seed.
    """
    f = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
    draws = Categorical().sample(f.expand(20000, 1, 3), 0)
    p = f.softmax(-1)[0]
    share = torch.bincount(draws[:, 0], minlength=3) / 20000
    assert ((share - p) / (p * (1 - p) / 20000).sqrt()).abs().max() < 4.0


def test_number_of_classes():
    y = torch.tensor([0, 3, 1])
    assert Categorical().num_outputs(y) == 4
    assert Categorical(6).num_outputs(y) == 6
    assert Categorical().accepts(9, y) and not Categorical().accepts(3, y)
    assert not Categorical(6).accepts(4, y)
    with pytest.raises(SettingError, match="num_classes=1"):
        Categorical(1)


def test_targets():
    checked = Categorical().check_targets(torch.tensor([[0.0], [2.0]]))
    assert checked.dtype == torch.int64 and checked.tolist() == [0, 2]
    with pytest.raises(DataError, match=r"row 1 is 3; expected a class index 0, 1, \.\.\. below 3"):
        Categorical(3).check_targets(torch.tensor([0, 3]))
    with pytest.raises(DataError, match="row 0 is -1"):
        Categorical().check_targets(torch.tensor([-1, 0]))
    with pytest.raises(DataError, match="one-hot"):
        Categorical().check_targets(torch.eye(3))
    with pytest.raises(DataError, match="at least two classes"):
        Categorical().check_training_targets(torch.tensor([1, 1]))
    with pytest.raises(DataError, match="gives 2 outputs per datum"):
        Categorical().check_pair(torch.zeros(1, 2, 2), torch.tensor([0, 2]))


def test_entropy_of_certain_and_uniform():
    f = torch.tensor([[[1000.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]], dtype=torch.float64)
    assert Categorical().entropy(f).flatten().tolist() == pytest.approx([0.0, np.log(3)])


def test_one_of_classes_says_that_probabilities_of_labels_sum_to_one():
    outputs = torch.randn(4, 3)
    assert Categorical.one_of_classes and not Bernoulli.one_of_classes
    assert torch.allclose(Categorical().probs(outputs).sum(-1), torch.ones(4))


def test_arrays_are_accepted_and_fractions_are_not():
    y = np.array([0, 1], dtype=np.int32)
    assert Categorical().check_targets(y).dtype == torch.int64
    with pytest.raises(DataError, match=r"row 1 is 0\.5"):
        Categorical().check_targets(torch.tensor([0.0, 0.5]))
    with pytest.raises(DataError, match="row 0 is nan"):
        Categorical(3).check_targets(torch.tensor([float("nan"), 0.0]))
