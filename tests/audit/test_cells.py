"""Cells, unions of them, and what is computed from leaving some out."""

import math

import pytest
import torch
from zoo.stats import Z

from credo.audit.cells import DrawSet, cell_means, cells, halvings, jackknife


def side(draws, chains=1):
    """A side that shows draws ``(S, R)`` and scores them as log densities."""
    cut = cells(len(draws), chains)
    column = draws.unsqueeze(-1)
    scores = {"log_prob": cell_means(draws.exp(), cut.of_draw).log()}
    return DrawSet(cut, column, column, column, cell_means(draws, cut.of_draw), scores)


@pytest.mark.parametrize(
    ("draws", "chains", "number"),
    [(400, 4, 12), (30, 3, 12), (160, 16, 16), (100, 1, 12), (5, 1, 5), (1, 1, 1)],
)
def test_cells_are_stretches_of_one_chain_of_nearly_equal_length(draws, chains, number):
    cut = cells(draws, chains)
    count = torch.bincount(cut.of_draw)
    assert len(count) == len(cut.chain) == number
    assert count.min() >= 1 and count.max() - count.min() <= 1
    assert (cut.of_draw.diff() >= 0).all()
    if chains > 1:
        assert torch.equal(cut.chain[cut.of_draw], torch.arange(draws) // (draws // chains))


def test_a_single_chain_is_halved_as_if_it_were_four():
    assert cells(100, 1).chain.unique().tolist() == [0, 1, 2, 3]


def test_a_union_of_cells_is_as_if_its_draws_were_alone():
    draws = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = side(draws, 2)
    for part in [
        whole.subset(),
        *whole.without_each(),
        *(half for pair in whole.halves() for half in pair),
    ]:
        own = draws[part.keep[whole.cells.of_draw]]
        mean, var = part.moments(whole.compared)
        torch.testing.assert_close(mean.squeeze(-1), own.mean(0))
        torch.testing.assert_close(var.squeeze(-1), own.var(0, correction=0))
        torch.testing.assert_close(part.average(whole.table), own.mean(0))
        torch.testing.assert_close(part.sorted(), own.mT.sort(-1).values)
        torch.testing.assert_close(part.log_prob(), torch.logsumexp(own, 0) - math.log(len(own)))


def test_one_draw_has_one_cell_and_nothing_to_leave_out():
    point = side(torch.randn(1, 3, dtype=torch.float64))
    assert point.without_each() == [] and not point.varies and jackknife([]) == {}


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = torch.randn(20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    left = [{"mean": float((values.sum() - v) / 19)} for v in values]
    assert math.isclose(jackknife(left)["mean"], float(values.std()) / math.sqrt(20), rel_tol=1e-9)


def test_cells_see_the_memory_of_chains():
    """Error of the mean of AR(1) chains, whose variance is (1 + rho) / (1 - rho) times that of
    independent draws.
    """
    source, rho, repeats = torch.Generator().manual_seed(2), 0.8, 60
    noise = torch.randn(400, 4, repeats, dtype=torch.float64, generator=source)
    chain = [noise[0]]
    for step in noise[1:]:
        chain.append(rho * chain[-1] + math.sqrt(1 - rho**2) * step)
    draws = torch.stack(chain, 1).flatten(0, 1)  # (1600, repeats), chain after chain
    cut = cells(1600, 4)
    means, size = cell_means(draws, cut.of_draw), torch.bincount(cut.of_draw).double()
    left = (draws.sum(0) - means * size.unsqueeze(1)) / (1600 - size).unsqueeze(1)
    found = torch.tensor(
        [jackknife([{"m": float(v)} for v in column])["m"] for column in left.mT],
        dtype=torch.float64,
    )
    true = math.sqrt((1 + rho) / (1 - rho) / 1600)
    # Variances of 12 cells have a relative deviation of sqrt(2 / 11), their mean over repeats less
    # by sqrt(repeats); and cells of 133 draws miss correlations across their ends, a share of about
    # 2 rho / (1 - rho^2) / 133 of the variance.
    assert (
        abs(float((found**2).mean()) / true**2 - 1)
        < Z * math.sqrt(2 / 11 / repeats) + 2 * rho / (1 - rho**2) / 133
    )


@pytest.mark.parametrize(
    ("chains", "ways"), [(2, 1), (3, 3), (4, 3), (5, 10), (6, 10), (7, 10), (64, 10)]
)
def test_halvings_are_halves_and_each_comes_once(chains, ways):
    found = halvings(chains)
    everyone = frozenset(range(chains))
    pairs = {frozenset([frozenset(way), everyone - frozenset(way)]) for way in found}
    assert len(found) == len(pairs) == ways and all(len(way) == chains // 2 for way in found)
