import pytest
import torch
from zoo import regression

from credo.data.intake import intake
from credo.engine.fit_job import FitJob
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.step_size import HEAT, TIMES, StepSearch

DOUBLE = torch.float64
NUM = 400


def search(batch_size=None, given=False, until=100, steepest=0.2, heating=0.5):
    x, y, design = regression.problem(n=NUM)
    model = regression.bnn().model
    job = FitJob(intake((x, y)), 1, batch_size, 0.01, 0, lr_given=given)
    density = Density(model, model.values())
    _, cov, _ = (torch.as_tensor(part) for part in regression.exact(design, y[:, 0].numpy()))
    top = float(torch.linalg.eigvalsh(torch.linalg.inv(cov))[-1])
    return StepSearch(density, job, until, steepest, heating), top


POSITION = torch.zeros(3, 4, dtype=DOUBLE)


def test_on_all_data_the_step_is_a_share_of_that_of_the_steepest_direction():
    """The Hessian is constant, so differences of slopes are exact; eight rounds leave a few
    percent.
    """
    steps, top = search()
    found = steps.at(steps.start(POSITION), 0, POSITION)
    assert float(found.lr) / NUM * top == pytest.approx(0.2, rel=0.1)
    assert float(found.noise) == 0.0 and steps.told(found) is None


def test_a_preconditioner_changes_the_curvature():
    steps, _ = search()
    scale = torch.full((4,), 4.0, dtype=DOUBLE)
    plain, scaled = (steps.at(steps.start(POSITION), 0, POSITION, s) for s in (1.0, scale))
    assert float(scaled.lr) == pytest.approx(float(plain.lr) / 4, rel=1e-6)


def test_small_batches_shorten_the_step_until_their_heat_is_a_tenth():
    all_data, batches = search()[0], search(batch_size=4)[0]
    wide, found = (s.at(s.start(POSITION), 100, POSITION) for s in (all_data, batches))
    assert float(found.noise) == pytest.approx(HEAT) and float(found.lr) < float(wide.lr) / 5
    assert batches.told(found) is found.noise
    early = batches.at(batches.start(POSITION), 0, POSITION)
    assert float(early.lr) == pytest.approx(float(wide.lr), rel=0.5)  # on their way there


def test_a_given_lr_stays():
    steps, _ = search(given=True, batch_size=4)
    start = steps.start(POSITION)
    assert steps.at(start, 0, POSITION) is start and float(start.lr) == 0.01
    assert steps.told(start) is None


def test_the_step_is_held_once_the_warm_up_is_over():
    steps, _ = search(until=2000)
    start = steps.start(POSITION)
    changed = [i for i in range(2050) if steps.at(start, i, POSITION) is not start]
    assert len(changed) == TIMES + 1 and changed[0] == 0 and changed[-1] == 2000


def test_the_same_step_is_found_again():
    steps, again = search(batch_size=16)[0], search(batch_size=16)[0]
    one, two = (s.at(s.start(POSITION), 5, POSITION) for s in (steps, again))
    assert torch.equal(one.lr, two.lr) and torch.equal(one.noise, two.noise)
