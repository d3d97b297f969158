import torch
from torch.distributions import Normal

from credo.experiments import gap
from credo.experiments.li_regression import clusters


def test_total_variation_of_two_normals():
    """Two unit normals a distance d apart have total variation 2 Phi(d / 2) - 1; 1e-3 is the error of the grid."""
    ours, theirs = torch.zeros(1, 3, dtype=torch.float64), torch.tensor([[0.0, 1.0, 10.0]], dtype=torch.float64)
    expected = 2 * Normal(0.0, 1.0).cdf(torch.tensor([0.0, 0.5, 5.0], dtype=torch.float64)) - 1
    torch.testing.assert_close(gap.total_variation(ours, theirs, 1.0), expected, atol=1e-3, rtol=0.0)


def test_draws_in_parts_give_the_mixture():
    values, y = torch.randn(450, 2, dtype=torch.float64), torch.linspace(-2, 2, 5, dtype=torch.float64)
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
    assert {check.name for check in found.checks} >= {"HMC chains agree", "mean-field too sure in the gap"}
