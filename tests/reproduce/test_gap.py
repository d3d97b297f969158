import math

import pytest
import torch
from torch.distributions import Normal
from zoo.stats import Z

from credo_reproduce import gap
from credo_reproduce.li_regression import clusters


def test_total_variation_of_two_normals():
    """Two unit normals a distance d apart have total variation 2 Phi(d / 2) - 1; 1e-3 is the error
    of the grid.
    """
    ours, theirs = (
        torch.zeros(1, 3, dtype=torch.float64),
        torch.tensor([[0.0, 1.0, 10.0]], dtype=torch.float64),
    )
    expected = 2 * Normal(0.0, 1.0).cdf(torch.tensor([0.0, 0.5, 5.0], dtype=torch.float64)) - 1
    torch.testing.assert_close(
        gap.total_variation(ours, theirs, 1.0), expected, atol=1e-3, rtol=0.0
    )


def test_draws_in_parts_give_the_mixture():
    values, y = (
        torch.randn(450, 2, dtype=torch.float64),
        torch.linspace(-2, 2, 5, dtype=torch.float64),
    )
    expected = Normal(values, 0.5).log_prob(y[:, None, None]).exp().mean(1)
    torch.testing.assert_close(gap._density(values, y, 0.5), expected)


def test_the_reference_gives_function_values_of_every_draw():
    data, sizes = clusters(10, 0), gap.QUICK._replace(warmup=40, draws=20, leapfrog=10)
    values, worst, rate = gap.reference(data, torch.linspace(-4, 4, 9), sizes, 0)
    assert values.shape == (40, 9) and worst > 0 and 0 < rate <= 1


def test_quick_comparison_has_a_row_and_a_panel_for_everyone():
    found = gap.compare(gap.QUICK, torch.device("cpu"), 0, lambda _: None)
    assert [row.label for row in found.tables[0].rows] == ["HMC", *gap.KINDS]
    assert len(found.figures) == len(gap.KINDS)
    assert {check.name for check in found.checks} >= {
        "HMC chains agree",
        "mean-field too sure in the gap",
    }


def test_the_wide_network_has_the_prior_of_the_finite_one():
    """Variances of outputs under both priors, from 4,000 draws each: relative error sqrt(2 / S),
    and 6 % for erf in place of tanh.

    erf(z sqrt(pi) / 2) is at most 0.035 above tanh(z), where that is 0.9: its mean square is 3 to 6
    % larger.
    """
    data, sizes = clusters(10, 0), gap.FULL
    grid = data.inputs(torch.linspace(-4, 4, 5))
    finite, wide = (
        build(data, sizes, 0).functions(grid, 4000, source="prior").var(0)
        for build in (gap.network, gap.wide_network)
    )
    assert bool(((wide / finite).log().abs() < 0.06 + Z * math.sqrt(2) * math.sqrt(2 / 4000)).all())


def test_the_wide_network_is_the_limit_and_needs_no_steps():
    data = clusters(40, 0)
    bnn = gap._fit(gap.KINDS["infinitely wide"], data, gap.QUICK, None, torch.device("cpu"), 0)
    assert len(bnn.history) == 1 and bnn.functions(data.x, 3).shape == (3, 40, 1)
    # the slopes at 0: that of erf is 2 / sqrt(pi)
    assert gap.SLOPE * 2 / math.sqrt(math.pi) == pytest.approx(1.0)


def test_a_contrast_is_judged_against_that_of_mean_field():
    assert gap._better("it", 2.0, 1.5).holds and not gap._better("it", 1.4, 1.5).holds


def test_the_process_is_where_its_evidence_is_largest():
    """Over a grid of lengths and scales: no other pair explains the data by more than half a
    nat.
    """
    data = clusters(gap.FULL.num_data, 0)
    x, y, noise = data.x.double(), data.y[:, 0].double(), (gap.NOISE / data.y_std) ** 2

    def evidence(length, scale):
        cover = (
            scale**2 * torch.exp(-0.5 * torch.cdist(x, x).square() / length**2)
            + noise * torch.eye(len(x)).double()
        )
        return float(torch.distributions.MultivariateNormal(torch.zeros_like(y), cover).log_prob(y))

    best = max(
        evidence(length, scale)
        for length in (0.25, 0.5, 1.0, 2.0)
        for scale in (0.5, 1.0, 2.0, 4.0)
    )
    assert evidence(gap.PROCESS["length_scale"], gap.PROCESS["output_scale"]) > best - 0.5
