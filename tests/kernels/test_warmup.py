from itertools import pairwise

import pytest
import torch

from credo.core.errors import SettingError
from credo.kernels.log_density import normal
from credo.kernels.metric import MAX_DENSE, no_moments, observe, scale_of
from credo.kernels.warmup import WarmUp, first_stretch, per_chain, windows
from credo.methods.sampling.parts.run_moves import named_tensors

DOUBLE = torch.float64
LENGTHS = (0, 1, 5, 10, 19, 20, 21, 100, 149, 150, 151, 175, 200, 250, 500, 1000, 5000)


@pytest.mark.parametrize("num", LENGTHS)
def test_windows_increase_cover_the_middle_and_end_before_the_warm_up(num):
    ends = windows(num)
    assert all(a < b for a, b in zip([first_stretch(num), *ends], ends, strict=False))
    assert all(0 < end < num for end in ends)
    assert (not ends) == (num < 40)
    assert 0 <= first_stretch(num) < max(num, 1)
    if num >= 150:
        sizes = [b - a for a, b in zip([first_stretch(num), *ends], ends, strict=False)]
        assert all(later >= earlier for earlier, later in pairwise(sizes)), (
            "a window shorter than the last"
        )
        assert all(later == 2 * earlier for earlier, later in pairwise(sizes[:-1]))
        assert ends[-1] == num - 50
    elif ends:
        assert ends == [num - max(15, num // 4)]


def positions(index, chains=4, size=3):
    generator = torch.Generator().manual_seed(index)
    return (
        normal(torch.empty(chains, size, dtype=DOUBLE), generator)
        * torch.tensor([1.0, 5.0, 0.1], dtype=DOUBLE)
        + 2
    )


def states(warmup, count, rate=0.7):
    state = warmup.start(positions(0), torch.tensor(0.3, dtype=DOUBLE))
    out = [state]
    for index in range(count):
        state = warmup.adapt(state, index, positions(index), torch.full((4,), rate, dtype=DOUBLE))
        if warmup.new_metric_after(index):
            state = warmup.restart(state, torch.tensor(0.5, dtype=DOUBLE))
        out.append(state)
    return out


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("num", [20, 60, 150, 400])
def test_each_metric_is_that_of_its_windows_draws(num, dense):
    warmup = WarmUp(num, 0.8, dense)
    history = states(warmup, num)
    begin = first_stretch(num)
    for end in windows(num):
        moments = no_moments(positions(0), dense)
        for index in range(begin, end):
            moments = observe(moments, positions(index))
        assert torch.allclose(history[end].scale, scale_of(moments, positions(0)), rtol=1e-10)
        assert warmup.new_metric_after(end - 1) and float(history[end].moments.seen) == 0
        begin = end
    changes = [
        i for i in range(1, num + 1) if not torch.equal(history[i].scale, history[i - 1].scale)
    ]
    assert changes == windows(num) == [i + 1 for i in range(num) if warmup.new_metric_after(i)]


@pytest.mark.parametrize("num", LENGTHS[:12])
def test_nothing_adapts_after_the_warm_up(num):
    warmup = WarmUp(num, 0.8)
    last = states(warmup, num)[-1]
    after = last
    for index in range(num, num + 60):
        assert not warmup.new_metric_after(index)
        after = warmup.adapt(after, index, positions(index), torch.zeros(4, dtype=DOUBLE))
        assert torch.equal(warmup.step(after, index), last.step_size.log_step_mean.exp())
    before, after = named_tensors(last), named_tensors(after)
    assert after.keys() == before.keys() and all(torch.equal(after[n], before[n]) for n in before)


def test_without_warm_up_the_first_step_is_the_step():
    warmup = WarmUp(0, 0.8)
    state = warmup.start(positions(0), torch.tensor(0.3, dtype=DOUBLE))
    assert torch.allclose(warmup.step(state, 0), torch.tensor(0.3, dtype=DOUBLE))
    assert torch.equal(state.scale, torch.ones(3, dtype=DOUBLE))


def test_trial_steps_are_used_while_adapting_and_their_average_afterwards():
    warmup = WarmUp(30, 0.8)
    history = states(warmup, 30, rate=0.4)
    for index in (0, 7, 29):
        assert torch.equal(
            warmup.step(history[index], index), history[index].step_size.log_step.exp()
        )
    assert torch.equal(warmup.step(history[30], 30), history[30].step_size.log_step_mean.exp())
    low, high = states(warmup, 26, rate=0.1)[-1], states(warmup, 26, rate=1.0)[-1]
    assert low.step_size.log_step < high.step_size.log_step  # few acceptances shorten the step


def test_a_restart_forgets_the_steps_before():
    warmup = WarmUp(100, 0.8)
    state = warmup.restart(states(warmup, 50)[-1], torch.tensor(0.7, dtype=DOUBLE))
    assert (
        torch.allclose(state.step_size.log_step.exp(), torch.tensor(0.7, dtype=DOUBLE))
        and float(state.step_size.tries) == 0
    )
    assert float(state.moments.seen) > 0  # but not the draws


def test_in_the_first_stretch_a_stuck_chain_shortens_the_step_for_all():
    """Harmonic mean at first, arithmetic later."""
    warmup = WarmUp(200, 0.8)
    rates = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=DOUBLE)
    start = warmup.start(positions(0), torch.tensor(0.3, dtype=DOUBLE))
    early = warmup.adapt(start, 0, positions(0), rates)
    late = warmup.adapt(start, first_stretch(200), positions(0), rates)
    assert early.step_size.log_step < late.step_size.log_step


def test_a_row_of_steps_one_for_each_group_of_chains():
    """Rates (K, C) adapt K steps, as for a ladder of temperatures."""
    warmup = WarmUp(40, 0.8)
    state = warmup.start(positions(0), torch.tensor([0.3, 0.3], dtype=DOUBLE))
    for index in range(40):
        rates = torch.stack(
            [torch.full((4,), 0.2, dtype=DOUBLE), torch.full((4,), 0.95, dtype=DOUBLE)]
        )
        state = warmup.adapt(state, index, positions(index), rates)
    steps = warmup.step(state, 40)
    assert steps.shape == (2,) and steps[0] < steps[1]


def test_adapting_changes_no_tensor_in_place():
    warmup = WarmUp(20, 0.8)
    for index in (0, 5, 17, 25):
        state = states(warmup, min(index, 20))[-1]
        before = {name: value.clone() for name, value in named_tensors(state).items()}
        warmup.adapt(state, index, positions(index), torch.full((4,), 0.5, dtype=DOUBLE))
        assert all(torch.equal(now, before[name]) for name, now in named_tensors(state).items())


def test_every_chain_has_a_step_with_jitter_within_its_share():
    position = torch.zeros(5000, 2, dtype=torch.float32)
    step = torch.tensor(0.4, dtype=DOUBLE)
    plain = per_chain(step, position)
    assert plain.shape == (5000, 1) and plain.dtype == torch.float32 and (plain == 0.4).all()
    assert torch.equal(per_chain(step, position, torch.Generator().manual_seed(0), 0.0), plain)
    wide = per_chain(step, position, torch.Generator().manual_seed(0), 0.2)
    assert 0.4 * 0.8 <= float(wide.min()) < 0.33 and 0.47 < float(wide.max()) <= 0.4 * 1.2 * (
        1 + 1e-6
    )
    assert len(wide.unique()) > 4000  # each chain its own
    assert (
        abs(float(wide.mean()) - 0.4) < 5 * 0.4 * 0.2 / (3 * 5000) ** 0.5
    )  # five standard errors of a uniform mean


def test_a_dense_metric_of_too_many_parameters_is_refused():
    wide = torch.zeros(2, MAX_DENSE + 1)
    with pytest.raises(SettingError, match="mass='dense' over"):
        WarmUp(10, 0.8, dense=True).start(wide, torch.tensor(0.1))
    WarmUp(10, 0.8).start(wide, torch.tensor(0.1))
