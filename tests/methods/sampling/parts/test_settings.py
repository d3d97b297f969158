from dataclasses import fields

from credo.methods import methods
from credo.methods.sampling.parts import settings

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
