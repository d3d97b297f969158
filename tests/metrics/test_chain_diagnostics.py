from __future__ import annotations

import math
from statistics import fmean, median, variance

import pytest
import torch
from zoo.stats import Z

from credo.core.errors import DataError, SettingError
from credo.metrics import chains

NAMES = ("rhat", "rhat_plain", "ess_mean", "ess_bulk", "ess_tail", "mcse_mean", "mcse_sd")
STATISTICS = {name: getattr(chains, name) for name in NAMES}
STATISTICS["mcse_quantile"] = lambda draws: chains.mcse_quantile(draws, 0.3)
each_statistic = pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)


def autoregressive(phi: float, *shape: int, seed: int) -> torch.Tensor:
    """Stationary chains (C, D, K) x_t = phi x_(t-1) + noise with variance 1: the mean has ESS = CD
    (1 - phi) / (1 + phi).
    """
    noise = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = [noise[:, 0]]
    for t in range(1, shape[1]):
        rows.append(phi * rows[-1] + math.sqrt(1 - phi * phi) * noise[:, t])
    return torch.stack(rows, 1)


def halves(draws):
    size = draws.shape[1] // 2
    return [part.tolist() for chain in draws for part in (chain[:size], chain[-size:])]


def slow_rhat(parts):
    within, size = fmean([variance(p) for p in parts]), len(parts[0])
    return math.sqrt((within * (size - 1) / size + variance([fmean(p) for p in parts])) / within)


def slow_scores(parts):
    """Normal scores by counting: a rank is the number below plus half the number tied, itself and
    one more included.
    """
    from scipy.stats import norm

    pool = [v for p in parts for v in p]
    ranks = [
        [sum(w < v for w in pool) + (sum(w == v for w in pool) + 1) / 2 for v in p] for p in parts
    ]
    return [[norm.ppf((r - 3 / 8) / (len(pool) + 1 / 4)) for r in p] for p in ranks]


def slow_ess(parts):
    """The definition, lag by lag."""
    size, total = len(parts[0]), len(parts) * len(parts[0])
    within = fmean([variance(p) for p in parts])
    pooled = within * (size - 1) / size + variance([fmean(p) for p in parts])

    def rho(lag):
        covariances = [
            sum((a - fmean(p)) * (b - fmean(p)) for a, b in zip(p, p[lag:], strict=False)) / size
            for p in parts
        ]
        return 1 - (within - fmean(covariances)) / pooled if lag else 1.0

    tau, lag, smallest = -1.0, 0, math.inf
    while lag + 4 < size and rho(lag) + rho(lag + 1) > 0:
        smallest = min(smallest, rho(lag) + rho(lag + 1))
        tau, lag = tau + 2 * smallest, lag + 2
    return total / max(tau + max(rho(lag), 0.0), 1 / math.log10(total))


@pytest.mark.parametrize("phi", [-0.7, 0.0, 0.8])
@pytest.mark.parametrize("length", [40, 41])
def test_definitions_written_out(phi, length):
    x = autoregressive(phi, 3, length, 1, seed=3).squeeze(-1)
    for draws in (
        x,
        (2 * x).round(),
        x + torch.tensor([[0.0], [1.0], [3.0]]),
    ):  # with ties; with chains that disagree
        parts = halves(draws)
        scores = slow_scores(parts)
        assert chains.rhat_plain(draws).item() == pytest.approx(slow_rhat(parts), rel=1e-10)
        folded = halves((draws - median(value for part in parts for value in part)).abs())
        expected = max(slow_rhat(scores), slow_rhat(slow_scores(folded)))
        assert chains.rhat(draws).item() == pytest.approx(expected, rel=1e-10)
        assert chains.ess_mean(draws).item() == pytest.approx(slow_ess(parts), rel=1e-9)
        assert chains.ess_bulk(draws).item() == pytest.approx(slow_ess(scores), rel=1e-9)
        below = [
            slow_ess(halves((draws <= draws.flatten().quantile(q)).double())) for q in (0.05, 0.95)
        ]
        assert chains.ess_tail(draws).item() == pytest.approx(min(below), rel=1e-9)


def test_rhat_of_shifted_chains_by_hand():
    """Half chains (0, 1) twice and (2, 3) twice: W = 1/2, the means .5, .5, 2.5, 2.5 have variance
    4/3, H = 2.
    """
    draws = torch.tensor([[0, 1, 0, 1], [2, 3, 2, 3]])  # whole numbers are welcome
    result = chains.rhat_plain(draws)
    assert result.shape == () and result.dtype == torch.float64
    assert result.item() == pytest.approx(math.sqrt(1 / 2 + (4 / 3) / (1 / 2)))


def test_rhat_sees_location_spread_and_drift():
    x = autoregressive(0.0, 4, 500, 4, seed=0)
    x[0, :, 1] += 1.0  # location
    x[0, :, 2] *= 4.0  # spread: folding sees it, the plain form does not
    x[..., 3] += torch.linspace(0, 2, 500)  # all chains drift alike: only halving sees it
    ranked, plain = chains.rhat(x), chains.rhat_plain(x)
    assert ranked[0] < 1.01 and (ranked[1:] > 1.05).all()
    assert plain[2] < 1.01 and plain[3] > 1.05


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9, -0.5])
def test_ess_of_an_autoregression(phi):
    """The average of 300 estimates against CD (1 - phi)/(1 + phi), failure rate 5.7e-7 (Z standard
    errors) beyond the known bias.

    The stopping rule is off by about one stray lag, an autocorrelation of size 1/sqrt(CD), counted
    twice in tau.
    """
    x = autoregressive(phi, 4, 1000, 300, seed=11)
    tau = (1 + phi) / (1 - phi)
    for statistic in (chains.ess_mean, chains.ess_bulk):
        ratio = statistic(x) * tau / 4000
        assert abs(ratio.mean() - 1) < 2 / math.sqrt(4000) / tau + Z * ratio.std() / math.sqrt(300)


def test_ess_of_antithetic_chains_is_above_the_draws_and_capped():
    total = 4 * 1000
    x = autoregressive(-0.5, 4, 1000, 1, seed=1)
    assert total < chains.ess_mean(x).item() < total * math.log10(total)
    x = autoregressive(-0.99, 4, 1000, 1, seed=1)  # worth 199 CD in truth
    assert chains.ess_mean(x).item() == pytest.approx(total * math.log10(total))


def test_monte_carlo_errors_cover():
    """2000 replicates: the truth lies within one (two) standard errors as often as a normal says.

    A binomial z-test at Z per comparison, failure rate 5.7e-7 each; the estimated error itself adds
    a deficit that at 600 effective draws is below 0.02, within the threshold of 5 x 0.0104 at one
    sd and of 5 x 0.0047 at two.
    """
    x = autoregressive(0.5, 4, 500, 2000, seed=5)
    pooled = x.flatten(0, 1)
    low = torch.special.ndtri(torch.tensor(0.2, dtype=torch.float64))
    scores = {
        "mean": pooled.mean(0) / chains.mcse_mean(x),
        "sd": (pooled.std(0) - 1.0) / chains.mcse_sd(x),
        "median": pooled.quantile(0.5, 0) / chains.mcse_quantile(x, 0.5),
        "quantile": (pooled.quantile(0.2, 0) - low) / chains.mcse_quantile(x, 0.2),
    }
    for name, score in scores.items():
        for width in (1.0, 2.0):
            expected = math.erf(width / math.sqrt(2))
            share = (score.abs() < width).double().mean().item()
            assert abs(share - expected) < Z * math.sqrt(expected * (1 - expected) / 2000), (
                name,
                width,
                share,
            )


def test_bfmi():
    """Exact on a small chain; for independent energies E (E_t - E_(t-1))^2 is twice the variance,
    so E-BFMI is near 2.
    """
    energy = torch.tensor([[0.0, 1.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [1.0, math.nan, 2.0, 3.0]])
    result = chains.bfmi(energy)
    assert result.shape == (3,) and result[0].item() == pytest.approx(
        (1 + 4 + 1) / (2.25 + 0.25 + 2.25 + 0.25)
    )
    assert result[1].isnan() and result[2].isnan()
    independent = autoregressive(0.0, 50, 400, 1, seed=2).squeeze(-1) + 1e6
    values = chains.bfmi(independent)
    assert abs(values.mean() - 2.0) < 2.0 / 400 + Z * values.std() / math.sqrt(
        50
    )  # the ends weigh 1/D
    for bad in (torch.zeros(5), torch.zeros(2, 5, 1)):
        with pytest.raises(DataError, match=r"expected \(C, D\)"):
            chains.bfmi(bad)


def test_summary_gathers_the_single_statistics():
    x = autoregressive(0.3, 3, 101, 6, seed=8).reshape(3, 101, 2, 3)
    summary = chains.summarise(x)
    torch.testing.assert_close(summary.mean, x.mean((0, 1)))
    torch.testing.assert_close(summary.sd, x.flatten(0, 1).std(0))
    for name in ("mcse_mean", "mcse_sd", "rhat", "ess_bulk", "ess_tail"):
        torch.testing.assert_close(getattr(summary, name), STATISTICS[name](x))
    assert all(column.shape == (2, 3) for column in summary)
    still = chains.summarise(torch.full((2, 10), 0.1))
    assert (
        still.mean.item() == pytest.approx(0.1)
        and still.sd == 0.0
        and torch.stack(still[2:]).isnan().all()
    )


@each_statistic
def test_scalars_are_judged_alone(statistic, monkeypatch):
    """Any layout of scalars, chunk size, or bad neighbour leaves a scalar's number as it is, to the
    rounding of the transform.
    """
    x = autoregressive(0.5, 3, 51, 6, seed=4)
    alone = torch.stack([statistic(x[..., i]) for i in range(6)])
    assert alone.shape == (6,) and alone.isfinite().all()
    torch.testing.assert_close(statistic(x), alone)
    torch.testing.assert_close(statistic(x.reshape(3, 51, 2, 3)), alone.reshape(2, 3))
    torch.testing.assert_close(statistic(x.transpose(0, 1).contiguous().transpose(0, 1)), alone)
    monkeypatch.setattr(chains, "_CHUNK", 2 * 3 * 51)
    torch.testing.assert_close(statistic(x), alone)
    spoilt = x.clone()
    spoilt[1, 7, 2], spoilt[0, 0, 4], spoilt[..., 5] = (
        math.nan,
        math.inf,
        0.1,
    )  # the last one never moves
    result = statistic(spoilt)
    assert result[[2, 4, 5]].isnan().all()
    torch.testing.assert_close(result[[0, 1, 3]], alone[[0, 1, 3]])


@each_statistic
def test_shapes_types_and_short_chains(statistic):
    x = autoregressive(0.0, 2, 9, 3, seed=6)
    for draws in (x, x[:1], x[:, :5], x[:, :4], x.float(), (10 * x).long()):
        assert statistic(draws).shape == (3,) and statistic(draws).dtype == torch.float64
    assert statistic(x[..., 0]).shape == ()
    assert not statistic(x.clone().requires_grad_()).requires_grad
    with pytest.raises(SettingError, match="D = 3 draws per chain; expected at least 4"):
        statistic(x[:, :3])
    for bad in (
        torch.zeros(9),
        torch.zeros(0, 9),
        torch.zeros(2, 9, 0),
        torch.zeros(2, 9, dtype=torch.complex64),
    ):
        with pytest.raises(DataError, match=r"expected real numbers \(C, D, ...\)"):
            statistic(bad)


def test_stuck_chains():
    """Each chain at a place of its own: R-hat is infinite, and the draws are worth fewer than there
    are half chains.
    """
    draws = torch.tensor([0.1, 0.2, 0.7]).unsqueeze(-1).expand(3, 100)
    assert chains.rhat(draws).item() == math.inf and chains.rhat_plain(draws).item() == math.inf
    assert 0.0 < chains.ess_mean(draws).item() < 6.0


def test_two_valued_draws():
    """0 and 1: folding around the median 1/2 leaves nothing, and the 95 % quantile is the maximum;
    the rest decides.
    """
    draws = torch.randperm(2000, generator=torch.Generator().manual_seed(9)).reshape(4, 500) % 2
    assert chains.rhat(draws).item() < 1.02
    assert chains.ess_tail(draws).item() == pytest.approx(
        slow_ess(halves((draws <= 0).double())), rel=1e-9
    )
    rare = torch.ones(4, 500)
    rare[0, :10] = 0.0  # both tail quantiles are the maximum
    assert (
        chains.ess_tail(rare).isnan()
        and chains.mcse_quantile(rare, 0.5).isnan()
        and chains.ess_bulk(rare).isfinite()
    )


def test_large_offset_in_single_precision():
    """Mean 1e4, sd 1e-3 is a single-precision grid of step 2^-10: the numbers are those of the
    grid, computed without cancellation.
    """
    grid = (autoregressive(0.5, 4, 500, 1, seed=7).squeeze(-1) * 4).round()
    draws = (1e4 + grid / 1024).float()
    assert (draws.double() == 1e4 + grid / 1024).all()
    for name, statistic in STATISTICS.items():
        unit = 1 / 1024 if name.startswith("mcse") else 1.0
        assert statistic(draws).item() == pytest.approx(statistic(grid).item() * unit, rel=1e-9), (
            name
        )


def test_quantile_bounds_are_named():
    x = autoregressive(0.0, 2, 50, 1, seed=0)
    for bad in (0.0, 1.0, -0.1, math.nan, True):
        with pytest.raises(SettingError, match="q="):
            chains.mcse_quantile(x, bad)
    assert (
        chains.mcse_quantile(x, 1e-12).isfinite().all()
        and chains.mcse_quantile(x, 1 - 1e-12).isnan().all()
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(6))
def test_against_arviz(seed):
    """Chains of 60 draws and more: for fewer than 10 its autocorrelation sum is empty."""
    arviz = pytest.importorskip("arviz")
    phi = (-0.6, 0.0, 0.3, 0.8, 0.95, 0.99)[seed]
    x = autoregressive(phi, 2 + seed % 4, 60 + 37 * seed, 1, seed=seed).squeeze(-1)
    for draws in (x, x.exp(), x + torch.arange(len(x)).unsqueeze(-1), (4 * x).round()):
        values = draws.numpy()
        for name, statistic in STATISTICS.items():
            kind, _, method = name.partition("_")
            settings = {"method": {"": "rank", "plain": "split"}.get(method, method)}
            settings |= {"prob": 0.3} if method == "quantile" else {}
            assert statistic(draws).item() == pytest.approx(
                float(getattr(arviz, kind)(values, **settings)), rel=1e-6
            ), name
        assert chains.bfmi(draws).tolist() == pytest.approx(list(arviz.bfmi(values)), rel=1e-6)
