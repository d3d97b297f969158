"""Priors by name: what ``prior="..."`` and ``credo fit --prior`` accept."""

from __future__ import annotations

from torch.distributions import Laplace, Normal, StudentT

from credo.priors.by_pattern import presets
from credo.priors.fan_in import FanIn
from credo.priors.flat import Flat
from credo.priors.gaussian_mixture import scale_mixture, spike_and_slab
from credo.priors.learned import Learned, learned_mixture
from credo.priors.optimal import Optimal
from credo.priors.scale_mixtures import horseshoe, log_uniform

presets.register("normal")(lambda: Normal(0.0, 1.0))
presets.register("laplace")(lambda: Laplace(0.0, 0.5))
presets.register("student_t")(lambda: StudentT(3.0, 0.0, 0.5))
presets.register("flat")(Flat)
presets.register("fan_in")(FanIn)
presets.register("scale_mixture")(scale_mixture)
presets.register("spike_and_slab")(spike_and_slab)
presets.register("horseshoe")(horseshoe)
presets.register("log_uniform")(log_uniform)
presets.register("learned")(lambda: Learned(Normal(0.0, 1.0), learn=("scale",), per="layer"))
presets.register("learned_mixture")(learned_mixture)
presets.register("optimal")(lambda: Optimal(per="layer"))
presets.register("ard")(lambda: Learned(Normal(0.0, 1.0), learn=("scale",), per="input"))
