import math

import pytest

from credo.core.errors import SettingError
from credo.engine.training_loop import schedules


@pytest.mark.parametrize("batches", [1, 2, 10, 469, 2000])
def test_blundell_averages_one_over_an_epoch(batches):
    weights = [schedules["blundell"](1.0, i, batches) for i in range(batches)]
    assert math.isclose(sum(weights) / batches, 1.0, rel_tol=1e-12)
    assert all(math.isfinite(w) and w >= 0 for w in weights) and weights == sorted(
        weights, reverse=True
    )


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_warm_ups_rise_from_zero_to_one_and_stay(name):
    values = [schedules[name](p / 10, 0, 1) for p in range(15)]
    assert values[0] == 0.0 and values[10:] == [1.0] * 5 and values == sorted(values)
    assert math.isclose(schedules[name](0.5, 0, 1), 0.5)


def test_constant_is_one():
    assert schedules["constant"](0.0, 3, 7) == 1.0


def test_unknown_schedules_name_the_nearest():
    with pytest.raises(SettingError, match="Did you mean 'cosine'"):
        schedules["cosin"]
