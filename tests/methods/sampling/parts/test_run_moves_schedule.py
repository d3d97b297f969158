import pytest

from credo.methods.sampling.parts.run_moves import CyclicalSchedule, EpochSchedule, SteadySchedule

SCHEDULES = {
    "steady": SteadySchedule(7, 3, 4),
    "no warm-up": SteadySchedule(0, 4),
    "cyclical": CyclicalSchedule(5, 6, 2, 3, 0.5),
    "epochs": EpochSchedule(11, 1, 4),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_last_move_gives_the_last_draw_and_every_draw_has_a_row(name):
    schedule = SCHEDULES[name]
    draws = [schedule.draw_after(index) for index in range(schedule.num_moves())]
    assert draws[-1] == schedule.num_draws - 1
    assert all(schedule.row_after(index) for index, draw in enumerate(draws) if draw is not None)
    numbers = [
        schedule.row_number(index)
        for index in range(schedule.num_moves())
        if schedule.row_after(index)
    ]
    assert numbers == sorted(set(numbers))


def test_draws_of_a_steady_schedule_are_thin_moves_apart():
    schedule = SteadySchedule(7, 3, 4)
    taken = {i: schedule.draw_after(i) for i in range(19) if schedule.draw_after(i) is not None}
    assert schedule.num_moves() == 19 and taken == {10: 0, 14: 1, 18: 2}
    assert [i for i in range(19) if schedule.row_after(i)] == [2, 6, 10, 14, 18]


def test_draws_of_a_cyclical_schedule_end_every_cycle():
    schedule = CyclicalSchedule(num_warmup=5, num_draws=4, thin=2, num_cycles=2, exploration=0.5)
    assert (schedule.sampling, schedule.period, schedule.num_moves()) == (4, 8, 21)
    taken = {i: schedule.draw_after(i) for i in range(21) if schedule.draw_after(i) is not None}
    assert taken == {10: 0, 12: 1, 18: 2, 20: 3}
    assert [i for i in range(21) if schedule.samples(i)] == [9, 10, 11, 12, 17, 18, 19, 20]


def test_rows_of_an_epoch_schedule_are_numbered_by_epochs():
    schedule = EpochSchedule(11, 1, 4)
    rows = [i for i in range(12) if schedule.row_after(i)]
    assert rows == [3, 7, 11] and [schedule.row_number(i) for i in rows] == [0, 1, 2]
    assert schedule.num_moves() == 12
