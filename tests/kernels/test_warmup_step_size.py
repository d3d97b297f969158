import math

import pytest
import torch
from zoo.stats import Z

from credo.kernels.log_density import accepted, rate_of
from credo.kernels.warmup import average, overall, start_averaging

DOUBLE = torch.float64


def test_rates_are_one_uphill_the_ratio_downhill_and_zero_beyond_the_numbers():
    gain = torch.tensor([3.0, 0.0, -1.0, -2000.0, math.nan, -math.inf, math.inf], dtype=DOUBLE)
    assert torch.allclose(
        rate_of(gain), torch.tensor([1.0, 1.0, math.exp(-1), 0.0, 0.0, 0.0, 1.0], dtype=DOUBLE)
    )


def test_proposals_are_taken_with_their_rate():
    """A z-test per rate over 100,000 chains; rates 0 and 1 leave nothing to chance."""
    generator, count = torch.Generator().manual_seed(0), 100_000
    for rate in (0.0, 0.1, 0.5, 0.93, 1.0):
        share = float(accepted(torch.full((count,), rate, dtype=DOUBLE), generator).double().mean())
        assert abs(share - rate) <= Z * math.sqrt(rate * (1 - rate) / count)


def test_the_strict_mean_is_harmonic_over_the_last_axis_and_survives_zeros():
    rate = torch.tensor([[0.5, 1.0], [0.0, 1.0]])
    assert torch.allclose(overall(rate, strict=False), torch.tensor([0.75, 0.5], dtype=DOUBLE))
    assert torch.allclose(overall(rate, strict=True), torch.tensor([2 / 3, 2 / 1001], dtype=DOUBLE))
    assert overall(rate[0], strict=False).shape == ()


def climb(start, rate_at, wanted, rounds):
    state = start_averaging(torch.tensor(start))
    for _ in range(rounds):
        state = average(state, rate_at(state.log_step.exp()), wanted)
    return state


@pytest.mark.parametrize("wanted", [0.65, 0.8, 0.95])
@pytest.mark.parametrize("start", [1e-3, 0.3, 50.0])
def test_steps_converge_to_the_wanted_rate(start, wanted):
    """On rate(step) = exp(-step) the answer is -log(wanted).

    The gain of dual averaging falls like tries^-1/2, which leaves 2 % after 500.
    """
    state = climb(start, lambda step: (-step).exp(), wanted, 500)
    assert abs(math.exp(-float(state.log_step_mean.exp())) - wanted) < 0.02
    assert float(state.tries) == 500


def test_steps_converge_under_noise():
    """Rates as seen from four chains, which either accept or do not; what is left is a few per
    cent, shrinking with the rounds.
    """
    generator = torch.Generator().manual_seed(0)

    def seen(step):
        return (torch.rand(4, generator=generator, dtype=DOUBLE) < (-step).exp()).double().mean()

    state = climb(1.0, seen, 0.8, 2000)
    assert abs(math.exp(-float(state.log_step_mean.exp())) - 0.8) < 0.03


def test_a_row_of_steps_is_so_many_single_ones():
    wide = torch.tensor([1.0, 2.0, 0.5], dtype=DOUBLE)  # how steep each target is
    many = climb([0.1, 0.1, 3.0], lambda step: (-step * wide).exp(), 0.8, 200)
    for k, start in enumerate((0.1, 0.1, 3.0)):
        one = climb(start, lambda step, k=k: (-step * wide[k]).exp(), 0.8, 200)
        assert torch.allclose(
            many.log_step_mean[k], one.log_step_mean, rtol=1e-6
        )  # starts are given in float32
    assert many.log_step.shape == (3,) and many.log_step.dtype == DOUBLE
    steps = many.log_step_mean.exp()
    assert torch.allclose((-steps * wide).exp(), torch.tensor(0.8, dtype=DOUBLE), atol=0.03)


def test_the_first_trials_are_ten_times_the_start_and_nothing_is_changed_in_place():
    """Nesterov's anchor: too large a step is cheap and soon found out."""
    state = start_averaging(torch.tensor(0.2, dtype=DOUBLE))
    before = [value.clone() for value in state]
    after = average(state, torch.tensor(0.8, dtype=DOUBLE), 0.8)  # nothing to correct
    assert torch.allclose(after.log_step.exp(), torch.tensor(2.0, dtype=DOUBLE))
    assert torch.allclose(
        after.log_step_mean, after.log_step
    )  # the first average is the first trial
    assert all(torch.equal(now, then) for now, then in zip(state, before, strict=True))
    lower = average(state, torch.tensor(0.1, dtype=DOUBLE), 0.8)
    assert (
        lower.log_step
        < after.log_step
        < average(state, torch.tensor(1.0, dtype=DOUBLE), 0.8).log_step
    )
