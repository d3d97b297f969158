"""What settings say about which weights are random, and what they may not say together."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.curvature import make, make_sweep, targets
from zoo.models import make_model

from credo.core.errors import SettingError
from credo.curvature.structures import STRUCTURES
from credo.methods.laplace.parts.subsets import Largest, Layers, Masked, subset_of
from credo.posteriors import Delta, Full, MeanField, Posterior, PosteriorPrior, Subnetwork

MASKS = {"2.bias": torch.tensor([True, False]), "0.bias": torch.zeros(6, dtype=torch.bool)}


def sweep(**how):
    net, x = make("mlp")
    return make_sweep(net, x, targets(), **how)


@pytest.mark.parametrize(
    ("subset", "size", "structure", "kind"),
    [
        ("all", None, "kfac", Layers),
        ("last", None, "full", Layers),
        (("0.*",), None, "diagonal", Layers),
        ("largest_variance", 3, "full", Largest),
        ("largest_magnitude", 3, "full", Largest),
        (MASKS, None, "full", Masked),
    ],
)
def test_settings_and_what_they_mean(subset, size, structure, kind):
    assert type(subset_of(subset, size, structure)) is kind


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("largest_variance", None, "full"),
            "subset='largest_variance' needs size=, the number of single weights to keep",
        ),
        (
            ("largest_variance", 3, "kfac"),
            r"structure='kfac' is not for single weights \(subset='largest_variance'\).*set "
            r"structure='full'",
        ),
        (
            (MASKS, None, "diagonal"),
            r"structure='diagonal' is not for single weights \(subset=masks\)",
        ),
        (
            (MASKS, 3, "full"),
            "size=3 is how many single weights subset='largest_variance' or 'largest_magnitude' "
            "keeps; other subsets take none",
        ),
        (("last", 3, "full"), "size=3 is how many single weights"),
    ],
)
def test_settings_that_do_not_go_together(settings, message):
    with pytest.raises(SettingError, match=message):
        subset_of(*settings)


def test_layers_are_narrowed_by_name_and_measured_in_any_form():
    given = sweep()
    assert Layers("all").narrow(given.model) is given.model
    assert list(Layers("last").narrow(given.model).random) == ["2.weight", "2.bias"]
    with pytest.raises(
        SettingError,
        match=r"subset: the pattern 'lost\.\*' matches no parameter. Known: 0.bias, 0.weight, "
        r"2.bias",
    ):
        Layers("lost.*").narrow(given.model)
    assert (
        Layers("all").measure("diagonal", given, 0, None).chosen is None
        and not Layers("all").given()
    )
    with pytest.raises(SettingError, match="structure='full' over 40002 parameters is too large"):
        Layers("all").check("full", make_model(nn.Linear(20_000, 2)))


def test_masks_make_other_parameters_points():
    subset, given = Masked(MASKS), sweep()
    model = subset.narrow(given.model)
    assert list(model.random) == ["2.bias"] and list(model.point) == [
        "0.weight",
        "0.bias",
        "2.weight",
    ]
    subset.check("full", model)
    found = subset.measure("full", given, 0, None)
    (full,) = STRUCTURES["full"].measure(given, 0).blocks
    torch.testing.assert_close(found.blocks[0].inside.matrix, full.matrix[-2:-1, -2:-1])
    assert set(subset.given()) == {"subset/2.bias", "subset/0.bias"}


def test_weights_stay_chosen():
    """At other values or noise the choice would be another one."""
    subset, one = Largest("largest_magnitude", 4), sweep()
    first = subset.measure("full", one, 0, None)
    one.values["0.bias"].fill_(100.0)
    assert list(subset.measure("full", one, 0, None).chosen) == ["0.bias"]
    again = subset.measure("full", one, 0, first)
    assert list(again.chosen) == list(first.chosen) != ["0.bias"]
    assert all(torch.equal(p, first.chosen[n]) for n, p in again.chosen.items())


def test_any_random_weight_may_be_among_the_largest():
    model = sweep().model
    assert (
        Largest("largest_variance", 2).narrow(model) is model
        and not Largest("largest_variance", 2).given()
    )
    Largest("largest_variance", 50).check("full", model)
    with pytest.raises(
        SettingError, match="size=51 is more than the 50 random weights there are; choose fewer"
    ):
        Largest("largest_variance", 51).check("full", model)
    large = make_model(nn.Linear(20_000, 2))
    with pytest.raises(
        SettingError,
        match=r"a full covariance over 20001 single weights is too large \(at most 20000\); "
        r"choose fewer",
    ):
        Largest("largest_variance", 20_001).check("full", large)
    with pytest.raises(SettingError, match="over 40000 single weights is too large"):
        Masked({"weight": torch.ones(2, 20_000, dtype=torch.bool)}).check("full", large)


def test_earlier_posteriors():
    """One that says something of every weight by itself may be the prior; a joint one may not."""
    model, subset = sweep(prior=Normal(0.0, 1.0)).model, Largest("largest_variance", 4)
    values = model.values()
    model.prior = PosteriorPrior(
        Posterior([MeanField.start(values), Delta.start({"rest": torch.zeros(2)})])
    )
    subset.check("full", model)
    part = Subnetwork.of(values, {"2.bias": torch.tensor([0])}, torch.eye(1).double())
    for family in (Full.start(values), part):
        model.prior = PosteriorPrior(Posterior([family]))
        with pytest.raises(
            SettingError,
            match=f"about single weights to an earlier posterior of the family '{family.name}'; "
            "fit all data",
        ):
            subset.check("full", model)
