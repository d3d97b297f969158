from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from credo.core.errors import CredoError
from credo.engine.fit_job import FitJob
from credo.engine.run import Run
from credo.methods.sampling.parts.run_moves import DrawSchedule, Moves, SteadySchedule, run_moves

DOUBLE = torch.float64


def rows(history):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


class WalkState(NamedTuple):
    position: Tensor
    first: Tensor


class WalkInfo(NamedTuple):
    log_density: Tensor
    extra: Tensor


class Outside:
    """Something outside the state that counts moves, where samplers have what is fitted
    alongside.
    """

    def __init__(self):
        self.count = torch.zeros(1, dtype=DOUBLE)

    def named_tensors(self):
        return {"outside": self.count}

    def restore(self, tensors):
        self.count.copy_(tensors["outside"])


class WalkMoves(Moves[WalkState]):
    """A walk whose every number is known: position after move t is start + t + 1 + noise(t)."""

    state_type = WalkState

    def __init__(self):
        self.fitted_alongside = Outside()

    def start(self, position, source):
        return WalkState(position, torch.rand(1, generator=source, dtype=DOUBLE))

    def move(self, state, index, source):
        count = self.fitted_alongside.count
        count += 1
        noise = torch.randn(state.position.shape, generator=source, dtype=DOUBLE)
        moved = state.position + 1 + noise
        return WalkState(moved, state.first), WalkInfo(moved[:, 0], count.clone())

    def drawn(self, state):
        return state.position


def fit_job(**how):
    return FitJob(**({"source": None, "epochs": 1, "batch_size": None, "lr": 1.0, "seed": 5} | how))


START = torch.tensor([[0.0, 10.0], [100.0, 200.0]], dtype=DOUBLE)


@pytest.mark.parametrize(
    ("warmup", "draws", "thin"), [(0, 1, 1), (0, 4, 1), (7, 3, 1), (7, 3, 4), (0, 3, 5), (1, 2, 3)]
)
def test_draws_are_the_positions_after_every_thin_moves(warmup, draws, thin):
    schedule = SteadySchedule(warmup, draws, thin)
    work = fit_job()
    drawn = run_moves("walk", WalkMoves(), schedule, START, work)
    whole = SteadySchedule(0, schedule.num_moves())
    everything = run_moves("walk", WalkMoves(), whole, START, fit_job())
    assert drawn.shape == (2, draws, 2)
    assert torch.equal(drawn, everything[:, warmup + thin - 1 :: thin])
    numbers = [schedule.draw_after(index) for index in range(schedule.num_moves())]
    assert [n for n in numbers if n is not None] == list(range(draws)) and numbers[-1] == draws - 1
    rows_ = [row for row in work.history if not row["warmup"]]
    assert (
        len(rows_) == draws and [row["log_density"] for row in rows_] == drawn[:, :, 0].T.tolist()
    )
    assert [row["warmup"] for row in work.history] == sorted(
        (row["warmup"] for row in work.history), reverse=True
    )
    assert all(isinstance(row["extra"], float) and row["seconds"] >= 0 for row in work.history)


def test_a_run_interrupted_anywhere_goes_on_with_the_same_numbers(tmp_path, monkeypatch):
    """Checkpoints at moves 2 and 5 only; interrupted after moves 1, 3, 6 and 8.

    Draws since the last checkpoint are made again.
    """

    class Stop(Exception):
        pass

    whole, work = WalkMoves(), fit_job()
    wanted = run_moves("walk", whole, SteadySchedule(3, 4, 2), START, work)
    for last in (1, 3, 6, 8):
        run = Run(tmp_path / str(last))
        run.begin({})
        write = run.checkpoint
        monkeypatch.setattr(
            run,
            "checkpoint",
            lambda tensors, index, write=write: write(tensors, index) if index in (2, 5) else None,
        )

        class Dying(WalkMoves):
            def move(self, state, index, source, last=last):
                if index > last:
                    raise Stop
                return super().move(state, index, source)

        with pytest.raises(Stop):
            work_until = fit_job(run=run, checkpoint_seconds=0.0)
            run_moves("walk", Dying(), SteadySchedule(3, 4, 2), START, work_until)
        again, rest = WalkMoves(), fit_job(run=run, checkpoint_seconds=1e9)
        drawn = run_moves("walk", again, SteadySchedule(3, 4, 2), START, rest)
        assert torch.equal(drawn, wanted) and torch.equal(
            again.fitted_alongside.count, whole.fitted_alongside.count
        )
        assert rows(rest.history) == rows(work.history) == rows(run.history())


def test_a_callback_ends_the_run_with_the_draws_made_so_far():
    wanted = run_moves("walk", WalkMoves(), SteadySchedule(2, 6), START, fit_job())
    work = fit_job(callbacks=[lambda row: row["epoch"] == 4])
    assert torch.equal(
        run_moves("walk", WalkMoves(), SteadySchedule(2, 6), START, work), wanted[:, :3]
    )
    assert len(work.history) == 5
    with pytest.raises(CredoError, match="stopped walk at move 1, before the first draw"):
        work = fit_job(callbacks=[lambda row: row["epoch"] == 1])
        run_moves("walk", WalkMoves(), SteadySchedule(2, 6), START, work)


def test_stopping_between_draws_keeps_the_earlier_ones():
    """A cyclical schedule pauses its draws while it explores; a stop then must not lose what there
    is.
    """

    class Pausing(DrawSchedule):
        def draw_after(self, index):
            return {2: 0, 3: 1, 8: 2}.get(index)

        def num_moves(self):
            return 9

        def row_after(self, index):
            return True

        def row_number(self, index):
            return index

    wanted = run_moves("walk", WalkMoves(), Pausing(0, 3), START, fit_job())
    work = fit_job(callbacks=[lambda row: row["epoch"] == 5])
    drawn = run_moves("walk", WalkMoves(), Pausing(0, 3), START, work)
    assert torch.equal(drawn, wanted[:, :2])


class Broken(WalkMoves):
    """Some chains leave the numbers at move 3."""

    def __init__(self, chains):
        super().__init__()
        self.chains = chains

    def move(self, state, index, source):
        state, info = super().move(state, index, source)
        if index >= 3:
            state.position[self.chains] = torch.nan
        return state, info._replace(log_density=state.position[:, 0])


@pytest.mark.parametrize("chains", [[0, 1], [1]], ids=["all", "one"])
def test_chains_that_leave_the_numbers_are_reported_and_never_kept(chains):
    with pytest.raises(
        CredoError, match="walk: the log density of chains .* is not finite at move 3"
    ):
        run_moves("walk", Broken(chains), SteadySchedule(2, 6), START.clone(), fit_job())
