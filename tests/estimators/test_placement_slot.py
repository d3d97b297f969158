import pytest
import torch
import torch.nn.functional as F

from credo.estimators.placement import Replan, make_slot

SHAPE = torch.Size((4, 5))


def slot(meet=None, name="layer.weight", shape=SHAPE):
    return make_slot(name, shape, torch.zeros(1, dtype=torch.float64), meet)


def test_reading_its_shape_is_free():
    w = slot()
    assert w.shape == SHAPE and w.size(0) == 4 and w.dim() == w.ndim == 2 and w.numel() == 20
    assert (
        w.dtype == torch.float64
        and w.device.type == "cpu"
        and w.is_floating_point()
        and not w.requires_grad
    )


def test_it_costs_no_memory():
    w = make_slot("w", torch.Size((10**6, 10**6)), torch.zeros(1), None)
    with torch._C.DisableTorchFunctionSubclass():
        assert w.untyped_storage().nbytes() == 4


def test_a_linear_map_meets_the_family():
    seen = []

    def meet(op, x, w, b):
        seen.append((op.function, w, b))
        return "met"

    x = torch.zeros(3, 5, dtype=torch.float64)
    bias = slot(meet, "layer.bias", torch.Size((4,)))
    assert F.linear(x, slot(meet), bias) == "met"
    assert F.linear(x, slot(meet)) == "met"
    plain = torch.zeros(4)
    F.linear(x, slot(meet), plain)
    F.conv1d(x, weight=slot(meet), padding=1)
    F.embedding(x.long(), slot(meet), padding_idx=0)
    assert [entry[0] for entry in seen] == [F.linear, F.linear, F.linear, F.conv1d, F.embedding]
    assert [entry[1] for entry in seen] == ["layer.weight"] * 5
    assert seen[0][2] == "layer.bias" and seen[1][2] is None and seen[2][2] is plain


@pytest.mark.parametrize(
    "use",
    [
        lambda w: w + 1,
        lambda w: w.T,
        lambda w: w.data,
        lambda w: w.t(),
        lambda w: torch.ones(3, 4).double() @ w,
        lambda w: w.float(),
        lambda w: w.clone(),
        lambda w: torch.cat([torch.ones(1, 5).double(), w]),
        lambda w: torch.stack([w]),
        lambda w: F.linear(w, torch.ones(2, 5).double()),
        lambda w: F.linear(torch.ones(3, 4).double(), torch.ones(2, 4).double(), w),
        lambda w: w.numpy(),
        lambda w: w.detach(),
        lambda w: w.sum().item(),
        lambda w: torch.einsum("ij->j", w),
        lambda w: F.multi_head_attention_forward(
            w, w, w, 4, 1, None, None, None, None, False, 0.0, w, None
        ),
    ],
)
def test_any_other_use_is_refused_and_named(use):
    with pytest.raises(Replan, match=r"layer\.weight") as caught:
        use(slot(lambda *args: args))
    assert caught.value.names == {"layer.weight"}


def test_a_use_that_escapes_python_shows_as_nan():
    with torch._C.DisableTorchFunctionSubclass():
        assert (torch.ones(3, 4).double() @ slot()).isnan().all()


def test_a_product_with_an_input_meets_the_family_but_not_one_with_something_else_in_front():
    """As the stand-in of a dropout module multiplies: torch.mul(x, mask)."""
    seen = []
    x = torch.zeros(3, 5, dtype=torch.float64)
    w = slot(
        lambda op, x, w, b: seen.append((op.is_product, w, b)) or "met",
        "drop.mask0",
        torch.Size((1, 5)),
    )
    assert torch.mul(x, w) == "met" and seen == [(True, "drop.mask0", None)]
    for use in (lambda: torch.mul(w, x), lambda: w * x, lambda: torch.mul(w, w)):
        with pytest.raises(Replan, match="drop.mask0"):
            use()
