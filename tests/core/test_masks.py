import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from credo.core.errors import NetworkError
from credo.core.masks import DROPOUTS, Mask, dropouts, mask_name, mask_place


def test_dropout_modules_are_found_by_path_whatever_their_rate():
    drop = nn.Dropout(0.2)
    net = nn.ModuleDict(
        {
            "a": nn.Sequential(nn.Linear(2, 2), drop, nn.Dropout2d(0.0)),
            "same": drop,
            "other": nn.AlphaDropout(0.3),
            "more": nn.ModuleList([nn.Dropout1d(), nn.Dropout3d(), nn.FeatureAlphaDropout()]),
        }
    )
    assert list(dropouts(net)) == [
        "a.1",
        "a.2",
        "more.0",
        "more.1",
    ]  # one module under two names is one place
    assert dropouts(nn.Dropout(0.5)) == {} and dropouts(nn.Linear(2, 2)) == {}


def test_a_subclass_may_do_anything_and_is_not_taken_for_dropout():
    class Own(nn.Dropout):
        def forward(self, x):
            return x + 1

    assert dropouts(nn.Sequential(Own())) == {}


@pytest.mark.parametrize(("kind", "axes"), DROPOUTS.items())
def test_the_trailing_axes_that_share_an_entry_are_torchs(kind, axes):
    out = kind(0.5)(
        torch.ones(40, 3, 5, 5, 5)[(slice(None), slice(None), *[0] * (3 - axes))]
        if axes
        else torch.ones(40, 3)
    )
    flat = out.reshape(40 * 3, -1)
    assert bool((flat == flat[:, :1]).all()) and set(flat[:, 0].tolist()) == {0.0, 2.0}


def test_names_and_places_are_inverse():
    assert mask_name("body.2", 1) == "body.2.mask1" and mask_place("body.2.mask1") == ("body.2", 1)
    assert (
        mask_place("mask.mask12") == ("mask", 12)
        and mask_place("body.2.weight") is None
        and mask_place("mask0") is None
    )


def test_masks_of_a_pass_are_used_in_turn():
    mask = Mask()
    assert [mask.expose(), mask.expose()] == ["mask0", "mask1"]
    mask._buffers["mask0"], mask._buffers["mask1"] = torch.tensor(2.0), torch.tensor(5.0)
    x = torch.ones(3)
    assert [float(mask(x)[0]) for _ in range(4)] == [2.0, 5.0, 2.0, 5.0]


def run_checkpointed(mask, times):
    x = torch.ones(3, requires_grad=True)

    def part(x):
        for _ in range(times):
            x = torch.sin(mask(x))
        return x

    checkpoint(part, x, use_reentrant=False).sum().backward()
    return x.grad


def test_a_module_used_once_may_be_checkpointed_and_one_used_twice_is_refused():
    once = Mask()
    once.expose()
    once._buffers["mask0"] = torch.tensor([0.0, 1.0, 2.0])
    expected = torch.tensor([0.0, 1.0, 2.0]) * torch.cos(torch.tensor([0.0, 1.0, 2.0]))
    assert torch.allclose(run_checkpointed(once, 1), expected)
    twice = Mask()
    twice.expose(), twice.expose()
    with pytest.raises(
        NetworkError,
        match="used several times in one pass is recomputed by gradient checkpointing.*its own "
        "nn.Dropout",
    ):
        run_checkpointed(twice, 2)
