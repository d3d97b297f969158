import pytest
import torch

from credo.core.errors import DataError, SettingError
from credo.likelihoods import Categorical, Gaussian, Poisson
from credo.likelihoods.from_teacher import drawn_targets, outputs_for_teacher


def test_one_y_from_each_draw_of_the_teacher():
    f = torch.randn(5, 7, 1, generator=torch.Generator().manual_seed(0))
    drawn = drawn_targets(Gaussian(), f, Gaussian(std=1e-6), 0)
    assert drawn.shape == (7, 5, 1)
    torch.testing.assert_close(drawn.squeeze(-1), f.squeeze(-1).T, atol=1e-4, rtol=0)


def test_what_the_student_cannot_state_is_refused():
    assert outputs_for_teacher(Gaussian(), Gaussian(), 3) == 3
    with pytest.raises(SettingError, match="describes discrete labels, but the teacher's"):
        outputs_for_teacher(Categorical(), Gaussian(), 1)
    with pytest.raises(DataError, match="predicts y that the student's cannot take"):
        drawn_targets(Poisson(), torch.full((2, 3, 1), -5.0), Gaussian(), 0)
