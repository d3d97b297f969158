"""The study of width: its measures on cases with known answers, and a quick run of all of it."""

import math

import pytest
import torch
from zoo.stats import Z

from credo.posteriors.wide_kernel import wide_kernel
from credo_reproduce.base import make_experiment, perform
from credo_reproduce.wide import STD, Distance, Wide, _posterior_checks, distance, slope, toy


def test_draws_of_the_limit_are_at_no_distance_but_monte_carlo():
    """Independent draws: errors of the mean sd / sqrt(S), of the log sd 1 / sqrt(2 S); 10 %: the
    errors are themselves estimated.
    """
    source = torch.Generator().manual_seed(0)
    mean, sd = torch.tensor([1.0, -2.0, 0.0]).double(), torch.tensor([0.1, 2.0, 5.0]).double()
    draws = mean + sd * torch.randn(8, 2000, 3, generator=source, dtype=torch.float64)
    found = distance(draws, mean, sd)
    assert found.mean_error == pytest.approx(1 / math.sqrt(16_000), rel=0.1)
    assert found.sd_error == pytest.approx(1 / math.sqrt(32_000), rel=0.1)
    assert found.mean < Z * found.mean_error and found.sd < Z * found.sd_error and found.rhat < 1.01


def test_distances_are_in_deviations_of_the_limit():
    draws = torch.randn(4, 500, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    draws = (draws - draws.mean((0, 1))) / draws.flatten(0, 1).std(0)
    found = distance(
        3.0 + 2.0 * draws, torch.full((2,), 2.0).double(), torch.full((2,), 4.0).double(), 7.0
    )
    assert (
        found.mean == pytest.approx(0.25)
        and found.sd == pytest.approx(math.log(2.0))
        and found.seconds == 7.0
    )


def test_slopes_of_power_laws():
    assert slope({8: 4.0, 32: 2.0, 128: 1.0}) == pytest.approx(-0.5)
    assert slope({4: 3.0, 16: 3.0 / 4}) == pytest.approx(-1.0)


def test_kurtosis_of_rectifiers_is_known():
    """At x = 2, sigma^2 = 2: Var K^1 = 5 q0^2 / h about q0 + 2 with q0 = 10, and K^2 adds 5 (K^1)^2
    / h, since V[2 max(z, 0)^2] = 5 for normal z.

    A variance from S draws has relative error sqrt((2 + kurtosis) / S); at these widths K^ is a
    mean over hundreds of units and its excess kurtosis below 1.
    """
    x, _ = toy()
    found = Wide(networks=400).prior("relu", x[-1:], torch.device("cpu"), 0, lambda _: None)
    for width in (128, 512):
        expected = 3 * (500 + 5 * (144 + 500 / width)) / (14**2 * width)
        assert found[width]["excess kurtosis"] == pytest.approx(
            expected, rel=Z * math.sqrt(3 / 400)
        )
    errors = [row["kernel error"] for row in found.values()]
    assert errors == sorted(errors, reverse=True)


def test_the_kernel_error_of_one_input_is_the_scatter_of_its_variance():
    x, _ = toy()
    found = Wide(networks=300).prior("erf", x[-1:], torch.device("cpu"), 3, lambda _: None)
    for row in found.values():
        # K^ has mean K up to 1 / width; its estimate is off by Z / sqrt(300) of the scatter at
        # most, which adds its square to the error's
        assert math.sqrt(row["excess kurtosis"] / 3) == pytest.approx(
            row["kernel error"], rel=0.5 * Z**2 / 300 + 0.05
        )


def test_the_toy_is_fixed_and_likely_under_the_limit():
    x, y = toy()
    assert (
        torch.equal(y, toy()[1])
        and x.shape == y.shape == (12, 1)
        and not bool((x.abs() < 0.5).any())
    )
    cover = wide_kernel(x, x, [STD**2] * 2, [STD**2] * 2, ["relu"]) + 0.09 * torch.eye(
        12, dtype=torch.float64
    )
    squared = float((y.mT @ torch.linalg.solve(cover, y)).squeeze())
    # chi-squared with 12 degrees of freedom, were it drawn from the prior
    assert squared < 12 + Z * math.sqrt(24)


def test_checks_see_an_error_that_rises_and_forgive_what_is_chance():
    def names(*means):
        found = {
            width: Distance(mean, 0.02, 0.01, 0.02, 1.0, 0.0)
            for width, mean in zip((4, 16, 64), means, strict=True)
        }
        return {check.name.partition(": ")[2]: check.holds for check in _posterior_checks(1, found)}

    assert all(names(0.3, 0.1, 0.03).values()) and all(names(0.3, 0.02, 0.03).values())
    assert not names(0.1, 0.3, 0.03)["the mean's error falls with the width"]
    assert not names(0.3, 0.2, 0.1)["mean within Monte Carlo error"]


def test_quick_run_has_both_parts():
    result = perform(make_experiment("wide", {"quick": True}))
    assert [table.title[:3] for table in result.outcome.tables] == ["(a)", "(b)", "(b)"]
    assert [len(table.rows) for table in result.outcome.tables] == [2, 2, 2]
    assert len(result.outcome.checks) == 12 and len(result.outcome.figures) == 6
    assert "wide" in result.page()["record"]["experiment"]
