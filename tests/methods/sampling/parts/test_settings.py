from dataclasses import fields

import pytest

from credo.core.errors import SettingError
from credo.kernels.metric import MAX_DENSE
from credo.methods import methods
from credo.methods.sampling.parts import settings
from credo.methods.sampling.parts.settings import FullBatchSettings

SHARED = (
    settings.ChainSettings,
    settings.FullBatchSettings,
    settings.CompileSettings,
    settings.StochasticGradientSettings,
)


def test_mixed_in_settings_do_not_overlap_and_are_flat_in_every_sampler():
    for kind in (kind for _, kind in methods.items() if kind.is_sampler):
        names = [f.name for mixin in kind.__bases__ if mixin in SHARED for f in fields(mixin)]
        assert len(names) == len(set(names))
        assert set(names) <= {f.name for f in fields(kind)}


@pytest.mark.parametrize("mass", ["diagonal", "dense"])
def test_a_warm_up_is_as_its_settings_say(mass):
    warmup = FullBatchSettings(num_warmup=70, target_rate=0.7, mass=mass).make_warmup(10)
    assert (warmup.num_warmup, warmup.wanted, warmup.dense) == (70, 0.7, mass == "dense")


def test_a_dense_metric_of_too_many_parameters_is_refused():
    with pytest.raises(SettingError, match="mass='dense' over"):
        FullBatchSettings(mass="dense").make_warmup(MAX_DENSE + 1)
    FullBatchSettings().make_warmup(MAX_DENSE + 1)
