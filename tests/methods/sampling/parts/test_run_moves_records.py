from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from credo.methods.sampling import (
    csgmcmc,
    hmc,
    metropolis,
    nuts,
    psgld,
    sghmc,
    sgld,
    svgd,
    tempering,
)
from credo.methods.sampling.parts.run_moves import from_tensors, named_tensors


class Inner(NamedTuple):
    mean: Tensor
    tries: Tensor


class Outer(NamedTuple):
    position: Tensor
    inner: Inner


class Twice(NamedTuple):
    mean: Tensor
    inner: Inner


class Info(NamedTuple):
    rate: Tensor
    swap: Tensor | None


def outer():
    return Outer(torch.zeros(3), Inner(torch.ones(2), torch.tensor(4.0)))


def test_a_record_is_flat_by_its_innermost_names_and_back():
    tensors = named_tensors(outer())
    assert list(tensors) == ["position", "mean", "tries"]
    again = from_tensors(Outer, tensors | {"another": torch.zeros(1)})
    assert type(again) is Outer and type(again.inner) is Inner
    assert again.position is tensors["position"] and again.inner.tries is tensors["tries"]


def test_a_field_that_is_none_has_no_tensor():
    assert list(named_tensors(Info(torch.zeros(1), None))) == ["rate"]
    assert list(named_tensors(Info(torch.zeros(1), torch.zeros(1)))) == ["rate", "swap"]


def test_two_fields_of_one_name_are_refused():
    with pytest.raises(ValueError, match="Twice has two fields called mean; rename one"):
        named_tensors(Twice(torch.zeros(1), outer().inner))


STEP = ["log_step", "log_step_mean", "anchor", "miss", "tries"]
ADAPTATION = [*STEP, "scale", "seen", "mean", "squares"]
POINT = ["position", "value", "slope"]
#: Names in the checkpoints of every version so far: a run killed under one goes on under the next.
STATES = {
    hmc.HMCState: [*POINT, *ADAPTATION, "log_time", "measured"],
    nuts.NUTSState: [*POINT, *ADAPTATION],
    metropolis.MetropolisState: ["position", "value", *ADAPTATION],
    tempering.TemperingState: [*POINT, *ADAPTATION, "powers", "rejected", "swapped"],
    sgld.SGLDState: ["position", "lr", "noise"],
    psgld.PSGLDState: ["position", "squares", "scale", "lr", "noise"],
    sghmc.SGHMCState: ["position", "momentum", "lr", "noise"],
    csgmcmc.CSGMCMCState: ["position", "momentum", "lr", "noise"],
    svgd.SVGDState: ["position", "first", "second"],
}


@pytest.mark.parametrize("kind", STATES, ids=lambda kind: kind.__name__)
def test_states_have_the_names_that_checkpoints_store(kind):
    tensors = {name: torch.zeros(()) for name in STATES[kind]}
    assert named_tensors(from_tensors(kind, tensors)).keys() == tensors.keys()
