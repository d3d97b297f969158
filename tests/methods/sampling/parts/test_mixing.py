import math
from itertools import pairwise

import torch
from torch import nn
from zoo import regression

from credo import BNN
from credo.core.errors import CredoError
from credo.data.intake import intake
from credo.likelihoods import Categorical, Gaussian
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.mixing import (
    ESS,
    LOOKS,
    R_HAT,
    Mixing,
    predicted_mixing,
    spread_inputs,
)

DOUBLE = torch.float64


def watch(budget=1e9, early=True, net=None, likelihood=None):
    x, y, _ = regression.problem(n=30)
    if likelihood is None:
        model = regression.bnn().model
    else:
        x, y, model = x.float(), (x[:, 0] > 0).long(), BNN(net, likelihood).model
    return Mixing(Density(model, model.values()), intake((x, y)), budget, early), model, x


def draws_of(count, apart=0.0, seed=0):
    """Independent draws ``(C, D, P)``, one chain of four ``apart`` from the others."""
    source = torch.Generator().manual_seed(seed)
    draws = torch.randn(4, count, 4, generator=source, dtype=DOUBLE)
    draws[3] += apart
    return draws


def test_chains_are_looked_at_after_numbers_of_draws_that_grow_by_a_quarter():
    looks = sorted(LOOKS)
    assert looks[:4] == [100, 125, 156, 195]
    ratios = [b / a for a, b in pairwise(looks)]
    assert all(1.2 < ratio < 1.3 for ratio in ratios)


def test_mixed_chains_end_at_a_look_and_only_there():
    mixing, *_ = watch()
    size = next(n for n in sorted(LOOKS) if n > 300)
    ended = mixing.end(draws_of(size), 10.0, False)
    assert ended is not None and ended["ended"] == "converged"
    assert ended["r_hat"] < R_HAT and ended["ess"] >= ESS
    assert mixing.end(draws_of(size + 1), 10.0, False) is None


def test_chains_apart_go_on_until_the_budget_is_spent():
    mixing, *_ = watch(budget=500.0)
    size = next(n for n in sorted(LOOKS) if n > 300)
    assert mixing.end(draws_of(size, apart=5.0), 499.0, False) is None
    ended = mixing.end(draws_of(size, apart=5.0), 500.0, False)
    assert ended is not None and ended["ended"] == "budget" and ended["r_hat"] > 1.3
    assert mixing.end(draws_of(9), 500.0, False) is None  # never with fewer than ten draws
    last = mixing.end(draws_of(33, apart=5.0), 0.0, True)
    assert last is not None and last["ended"] == "budget"


def test_cycles_run_to_their_end():
    mixing, *_ = watch(budget=1.0, early=False)
    size = next(n for n in sorted(LOOKS) if n > 300)
    assert mixing.end(draws_of(size), 10.0, False) is None
    ended = mixing.end(draws_of(size), 10.0, True)
    assert ended is not None and ended["ended"] == "converged"


def test_too_few_draws_have_no_figures_and_chains_that_stand_still_have_bad_ones():
    mixing, *_ = watch()
    assert mixing.measured(draws_of(3)) == {}
    assert mixing.end(draws_of(3), 0.0, True) == {"ended": "budget"}
    still = torch.zeros(4, 50, 4, dtype=DOUBLE)
    found = mixing.measured(still)
    assert found["r_hat"] == math.inf and found["ess"] == found["ess_y"] == 0.0


def test_of_labels_the_log_probabilities_are_looked_at():
    """A constant added to all logits changes no prediction: chains that differ in it have mixed."""
    mixing, *_ = watch(net=nn.Linear(3, 2), likelihood="categorical")
    source = torch.Generator().manual_seed(1)
    draws = torch.randn(4, 400, 8, generator=source)
    draws[3, :, 6:] += 50.0  # both biases of one chain
    assert mixing.measured(draws)["r_hat"] < R_HAT


def test_inputs_are_spread_over_the_data():
    x = torch.arange(100.0).reshape(100, 1)
    rows_ = spread_inputs(intake((x, x)), 5)
    assert rows_.flatten().tolist() == [0.0, 25.0, 50.0, 74.0, 99.0]
    assert len(spread_inputs(intake((x[:3], x[:3])), 5)) == 3


def test_outputs_that_differ_may_predict_the_same():
    """Chains whose outputs differ by a tenth of the noise of y predict alike, those that differ by
    ten times it do not; labels likewise, by their probabilities.
    """
    means = torch.linspace(-1.0, 1.0, 4)[:, None, None, None]
    draws = torch.randn(4, 200, 5, 1, generator=torch.Generator().manual_seed(0))
    for size, known in ((0.1, True), (10.0, False)):
        found = predicted_mixing(Gaussian(std=1.0), size * (means + 0.1 * draws))
        assert (found["r_hat_y"] < 1.05) == known
        assert (found["ess_y"] > 100) == known
    logits = torch.cat([5 + means + draws, -5 - means - draws], -1)
    assert predicted_mixing(Categorical(), logits)["r_hat_y"] < 1.05
    assert predicted_mixing(Categorical(), 8 * logits * means.sign())["r_hat_y"] > 1.5


def test_y_without_moments_is_not_judged():
    assert predicted_mixing(NoMoments(), torch.zeros(2, 8, 3, 1)) == {}


class NoMoments(Gaussian):
    def moments(self, outputs):
        raise CredoError("no moments")
