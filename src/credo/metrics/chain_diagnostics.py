"""Have the chains mixed, and how many independent draws are they worth? Diagnostics of Markov
chains.

Everywhere ``draws`` is ``(C, D, ...)``: C chains of D draws each, of any number of scalars on the
trailing axes, each scalar judged by itself. Results are float64 of the trailing shape. Chains are
halved first (an odd D loses its middle draw), so that a drift within a chain shows as a difference
between chains. A scalar that never moves, or that holds a NaN or an infinity, has no diagnostics:
they are NaN for it, and for it alone.

Vehtari, Gelman, Simpson, Carpenter and Buerkner, "Rank-normalization, folding, and localization: an
improved R-hat for assessing convergence of MCMC", Bayesian Analysis 16(2), 2021; Betancourt,
"Diagnosing suboptimal cotangent disintegrations in Hamiltonian Monte Carlo", 2016.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from credo.core.errors import DataError, SettingError

MIN_DRAWS = 4  #: two per half chain, the fewest that have a variance
_CHUNK = (
    2**19
)  # draws worked on together: each costs up to 128 bytes in copies, ranks and a padded transform


class Summary(NamedTuple):
    """One number per scalar and column, ``(...)`` each; the Monte Carlo standard errors are of
    ``mean`` and of ``sd``.
    """

    mean: Tensor
    sd: Tensor
    mcse_mean: Tensor
    mcse_sd: Tensor
    rhat: Tensor
    ess_bulk: Tensor
    ess_tail: Tensor


def rhat(draws: Tensor) -> Tensor:
    """Rank-normalised split R-hat ``(...)``: the larger of bulk and tail, near 1 for mixed chains,
    doubtful above 1.01.

    Bulk: ``rhat_plain`` of z = ndtri((rank - 3/8) / (CD + 1/4)), ranks over all chains, ties at
    their average. Tail: the same of abs(x - median), which sees chains that agree in location and
    differ in spread. Infinite where each half chain stands still at a place of its own. Blind to a
    mode that no chain has visited.
    """
    return _per_scalar(draws, lambda x: _rhat_ranked(half := _halves(x), *_scores(half)))


def rhat_plain(draws: Tensor) -> Tensor:
    """Split R-hat without ranks ``(...)``: sqrt((W (H - 1) / H + B) / W) for half chains of H
    draws.

    W is the mean variance within half chains, B the variance of their means. Meaningless for a law
    without a variance.
    """
    return _per_scalar(draws, lambda x: _rhat(_halves(x)))


def ess_mean(draws: Tensor) -> Tensor:
    """Effective number of draws for the mean ``(...)``: CD / tau with tau = 1 + 2 sum of
    autocorrelations.

    Autocorrelations are pooled over half chains and include their disagreement. The sum stops by
    Geyer's rule: sums of neighbours rho_2m + rho_(2m+1) up to the first negative one, made
    monotone. Antithetic chains give more than CD; the estimate is capped at CD log10(CD).
    """
    return _per_scalar(draws, lambda x: _ess(_halves(x)))


def ess_bulk(draws: Tensor) -> Tensor:
    """``ess_mean`` of the normal scores of the ranks ``(...)``: defined whatever the moments;
    distrust it below 100 per chain.
    """
    return _per_scalar(draws, lambda x: _ess(_scores(_halves(x))[0]))


def ess_tail(draws: Tensor) -> Tensor:
    """The smaller of the effective numbers for P(x <= q), q the 5 % and the 95 % quantile
    ``(...)``.

    A quantile tied with the largest draw says nothing and is left out; NaN where both are (above 95
    % of draws at the maximum).
    """
    return _per_scalar(draws, _ess_tail)


def mcse_mean(draws: Tensor) -> Tensor:
    """Monte Carlo standard error of the mean ``(...)``: sd / sqrt(ess_mean)."""
    return _per_scalar(draws, lambda x: x.flatten(1).std(-1) / _ess(_halves(x)).sqrt())


def mcse_sd(draws: Tensor) -> Tensor:
    """Monte Carlo standard error of the standard deviation ``(...)``, by the delta method through
    the variance.

    With s = (x - mean)^2: sqrt((mean(s^2) - mean(s)^2) / ess_mean(s) / (4 mean(s))). Needs a fourth
    moment; NaN where s is constant.
    """
    return _per_scalar(draws, _mcse_sd)


def mcse_quantile(draws: Tensor, q: float) -> Tensor:
    """Monte Carlo standard error of the q-quantile ``(...)``, 0 < q < 1: half the width of a
    central 68.27 % interval.

    With n the effective number of draws for P(x <= quantile), the rank is Beta(n q + 1, n (1 - q) +
    1); its 15.87 % and 84.13 % points are carried back to draws by their order. No density is
    estimated. NaN where the quantile ties with the largest draw.
    """
    if isinstance(q, bool) or not isinstance(q, (int, float)) or not 0.0 < q < 1.0:
        raise SettingError(
            f"q={q!r} is not valid; expected a number between 0 and 1, both excluded."
        )
    from scipy.special import betaincinv, ndtr

    def statistic(x: Tensor) -> Tensor:
        values = x.flatten(1).sort(-1).values
        ess = _ess_below(x, values, q)
        n = ess.cpu().numpy()
        shares = betaincinv(n * q + 1.0, n * (1.0 - q) + 1.0, [[ndtr(-1.0)], [ndtr(1.0)]])
        # The k-th smallest of N draws stands for the share k / N; rounded outwards, so that few
        # draws are not flattered.
        low, high = torch.from_numpy(shares).to(x.device).nan_to_num() * values.shape[-1] - 1.0
        ends = values.gather(-1, torch.stack([low.floor(), high.ceil()], -1).clamp_min(0.0).long())
        return torch.where(ess.isnan(), math.nan, ends.diff(dim=-1).squeeze(-1) / 2.0)

    return _per_scalar(draws, statistic)


def bfmi(energy: Tensor) -> Tensor:
    """E-BFMI per chain ``(C,)`` from energies ``(C, D)``: sum (E_t - E_(t-1))^2 / sum (E_t -
    mean)^2.

    Below 0.3, refreshing the momentum changes the energy too little to reach the tails. NaN for a
    constant energy.
    """
    if energy.dim() != 2:
        raise DataError(
            f"Got energies of shape {tuple(energy.shape)}; expected (C, D): one energy per chain "
            "and draw."
        )
    _check(energy)
    energy = energy.detach().double()
    ratio = energy.diff(dim=-1).square().mean(-1) / energy.var(-1)  # both divide their sum by D - 1
    return torch.where(_moves(energy.unsqueeze(1)), ratio, math.nan)


def summarise(draws: Tensor) -> Summary:
    """All columns of :class:`Summary` in one pass; sd divides by CD - 1.

    A scalar that never moves has a mean, and sd 0.
    """
    return Summary(*_per_scalar(draws, _summary))


def _check(draws: Tensor) -> None:
    if draws.dim() < 2 or 0 in (draws.shape[0], *draws.shape[2:]) or draws.is_complex():
        given = f"draws of shape {tuple(draws.shape)} and type {draws.dtype}"
        raise DataError(
            f"Got {given}; expected real numbers (C, D, ...), not empty. One chain: "
            "draws.unsqueeze(0)."
        )
    if draws.shape[1] < MIN_DRAWS:
        raise SettingError(
            f"Got D = {draws.shape[1]} draws per chain; expected at least {MIN_DRAWS}: draw "
            "longer chains."
        )


def _per_scalar(draws: Tensor, statistic: Callable[[Tensor], Tensor]) -> Tensor:
    """``statistic`` maps chunks ``(K, C, D)`` to ``(K,)`` or ``(M, K)``; the trailing axes of
    ``draws`` take the place of K.
    """
    _check(draws)
    chains, length, *trailing = draws.shape
    flat = draws.detach().reshape(chains, length, math.prod(trailing))
    size = max(1, _CHUNK // (chains * length))
    result = torch.cat([statistic(_chunk(part)) for part in flat.split(size, dim=2)], -1)
    return result.reshape((*result.shape[:-1], *trailing))


def _chunk(part: Tensor) -> Tensor:
    """``(C, D, K)`` to float64 ``(K, C, D)``; one bad draw makes its whole scalar NaN, which no
    statistic below survives.
    """
    x = part.permute(2, 0, 1).to(torch.float64, memory_format=torch.contiguous_format, copy=True)
    return x.masked_fill_(~x.isfinite().flatten(1).all(-1)[:, None, None], math.nan)


def _halves(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat([x[..., :half], x[..., -half:]], -2)


def _moves(x: Tensor) -> Tensor:
    """Per scalar ``(K,)``: are there two different values? False for NaN."""
    return x.amax((-2, -1)) > x.amin((-2, -1))


def _scores(x: Tensor) -> tuple[Tensor, Tensor]:
    """Normal scores of the ranks, shaped like ``x``, and the median ``(K, 1, 1)``."""
    values, order = x.flatten(1).sort(-1)
    count = values.shape[-1]
    # Runs of equal values, in sorted order: where each begins and ends. (NaN is larger than
    # nothing: a row of them is one run.)
    place = torch.arange(count, device=x.device)
    begins = pad(values[:, 1:] > values[:, :-1], (1, 0), value=True)
    first = place.where(begins, 0).cummax(-1).values
    last = place.where(begins.roll(-1, -1), count).flip(-1).cummin(-1).values.flip(-1)
    # Average ranks are multiples of 1/2, so a table of 2 CD - 1 scores serves all scalars: entry i
    # is rank 1 + i / 2.
    ranks = 1.0 + torch.arange(2 * count - 1, dtype=x.dtype, device=x.device) / 2.0
    table = torch.special.ndtri((ranks - 0.375) / (count + 0.25))
    scores = torch.empty_like(values).scatter_(-1, order, table[first.add_(last)])
    return scores.view_as(x), ((values[:, (count - 1) // 2] + values[:, count // 2]) / 2.0)[
        :, None, None
    ]


def _rhat(x: Tensor) -> Tensor:
    within, means = torch.var_mean(x, -1)
    ratio = 1.0 - 1.0 / x.shape[-1] + means.var(-1) / within.mean(-1)
    return torch.where(_moves(x), ratio.sqrt(), math.nan)


def _rhat_ranked(x: Tensor, bulk: Tensor, median: Tensor) -> Tensor:
    # fmax: two values at equal distance from the median have no tail, and the bulk alone decides.
    return torch.fmax(_rhat(bulk), _rhat(_scores((x - median).abs_())[0]))


def _ess(x: Tensor) -> Tensor:
    """Effective number of draws of half chains ``(K, C, H)``."""
    length, total = x.shape[-1], x.shape[-1] * x.shape[-2]
    within, means = torch.var_mean(x, -1)
    # The mean over chains commutes with the inverse transform; zeros to twice the length keep the
    # correlation from wrapping.
    padded = 1 << (2 * length - 1).bit_length()
    spectrum = torch.fft.rfft(x - means.unsqueeze(-1), padded)
    power = torch.view_as_real(spectrum).square_().sum(-1).mean(-2)
    covariance = torch.fft.irfft(power, padded)[:, :length] / length
    within = within.mean(-1, keepdim=True)
    pooled = within * ((length - 1) / length) + means.var(-1, keepdim=True)
    rho = 1.0 - (within - covariance) / pooled
    rho[:, 0] = 1.0
    return torch.where(_moves(x), total / _geyer(rho).clamp_min(1.0 / math.log10(total)), math.nan)


def _geyer(rho: Tensor) -> Tensor:
    """1 + 2 sum of autocorrelations ``(K, H)`` along lags, stopped where they are noise."""
    pairs = rho[:, : rho.shape[1] // 2 * 2].unflatten(-1, (-1, 2)).sum(-1)
    counted = (pairs > 0).cumprod(-1)
    counted[:, max(1, (rho.shape[1] - 3) // 2) :] = (
        0  # the last lags rest on a handful of products each
    )
    total = (pairs.cummin(-1).values * counted).sum(-1)
    # Half of the pair that stopped the sum: its first lag, if positive, lowers the bias of
    # stopping.
    stop = 2 * counted.sum(-1, keepdim=True)
    beyond = rho.gather(-1, stop.clamp_max(rho.shape[1] - 1)).clamp_min(0.0) * (stop < rho.shape[1])
    return 2.0 * total - 1.0 + beyond.squeeze(-1)


def _ess_below(x: Tensor, values: Tensor, q: float) -> Tensor:
    """Effective number of draws for P(x <= q-quantile), the quantile linear between neighbours in
    the sorted ``values`` (K, n).
    """
    place = round(q * (values.shape[-1] - 1), 9)  # 0.29 * 100 comes out below 29
    low = min(int(place), values.shape[-1] - 2)
    quantile = torch.lerp(values[:, low], values[:, low + 1], place - low)
    return _ess(_halves((x <= quantile[:, None, None]).to(x.dtype)))


def _ess_tail(x: Tensor) -> Tensor:
    values = x.flatten(1).sort(-1).values
    return torch.fmin(_ess_below(x, values, 0.05), _ess_below(x, values, 0.95))


def _mcse_sd(x: Tensor) -> Tensor:
    squares = (x - x.mean((-2, -1), keepdim=True)).square_()
    variance, mean = torch.var_mean(squares.flatten(1), -1, correction=0)
    return (variance / _ess(_halves(squares)) / (4.0 * mean)).sqrt()


def _summary(x: Tensor) -> Tensor:
    sd, mean = torch.std_mean(x.flatten(1), -1)
    half = _halves(x)
    bulk, median = _scores(half)
    convergence = (_rhat_ranked(half, bulk, median), _ess(bulk), _ess_tail(x))
    return torch.stack((mean, sd, sd / _ess(half).sqrt(), _mcse_sd(x), *convergence))
