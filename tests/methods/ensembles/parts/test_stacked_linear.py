import pytest
import torch
import torch.nn.functional as F
from torch import nn

from credo.methods.ensembles.parts.stacked_linear import StackedLinear

K = 3


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(x, w, b, in_dims=(0, 0, 0)):
    """Outputs and gradients of all that is given: by vmap with the mode, and member by member
    without.
    """

    def member(tensor, dim, k):
        return tensor if tensor is None or dim is None else tensor.select(dim, k)

    found = []
    for stacked in (True, False):
        leaves = [None if t is None else t.clone().requires_grad_() for t in (x, w, b)]
        if stacked:
            with StackedLinear():
                given = [t for t in leaves if t is not None]
                out = torch.vmap(lambda *a: torch.tanh(F.linear(*a)), in_dims[: len(given)])(*given)
        else:
            rows = [
                torch.tanh(
                    F.linear(*(member(t, d, k) for t, d in zip(leaves, in_dims, strict=True)))
                )
                for k in range(K)
            ]
            out = torch.stack(rows)
        out.square().sum().backward()
        found.append([out.detach(), *(t.grad for t in leaves if t is not None)])
    return found


@pytest.mark.parametrize("inner", [(), (4,), (4, 2), (1, 2, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_gradients_are_those_of_members_one_by_one(inner, bias):
    x, w, b = draw(K, *inner, 5), draw(K, 6, 5, seed=1), draw(K, 6, seed=2) if bias else None
    ours, theirs = pair(x, w, b)
    assert all(torch.allclose(a, c) for a, c in zip(ours, theirs, strict=True))
    assert ours[0].shape == (K, *inner, 6)


@pytest.mark.parametrize(
    "in_dims", [(None, 0, 0), (0, None, 0), (0, 0, None), (0, None, None), (1, 2, 1)]
)
def test_what_members_share_and_other_places_of_their_axis(in_dims):
    def at(shape, dim):
        return shape if dim is None else (*shape[:dim], K, *shape[dim:])

    x, w, b = (
        draw(*at(shape, dim), seed=i)
        for i, (shape, dim) in enumerate(zip([(4, 5), (6, 5), (6,)], in_dims, strict=True))
    )
    ours, theirs = pair(x, w, b, in_dims)
    assert all(torch.allclose(a, c) for a, c in zip(ours, theirs, strict=True))


def test_gradients_lie_as_the_weights_do():
    """An optimizer would have to copy a transposed one."""
    w = draw(K, 6, 5).requires_grad_()
    with StackedLinear():
        out = torch.vmap(F.linear)(draw(K, 4, 5), w)
    out.sum().backward()
    assert w.grad.is_contiguous()


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w, b: F.linear(x, w, bias=b),
        lambda x, w, b: F.linear(x, bias=b, weight=w),
        lambda x, w, b: F.linear(bias=b, weight=w, input=x),
        lambda x, w, b: F.linear(x, w, b),
    ],
)
def test_arguments_may_be_named_in_any_order(call):
    x, w, b = draw(K, 4, 5), draw(K, 6, 5, seed=1), draw(K, 6, seed=2)
    with StackedLinear():
        out = torch.vmap(call)(x, w, b)
    assert torch.allclose(out, torch.stack([F.linear(x[k], w[k], b[k]) for k in range(K)]))


@pytest.mark.parametrize("bias", [True, False])
def test_outside_vmap_it_is_the_plain_function(bias):
    x, w, b = draw(4, 2, 5), draw(6, 5, seed=1), draw(6, seed=2) if bias else None
    found = []
    for on in (True, False):
        leaves = [t.clone().requires_grad_() for t in (x, w, b) if t is not None]
        if on:
            with StackedLinear():
                F.linear(*leaves).square().sum().backward()
        else:
            F.linear(*leaves).square().sum().backward()
        found.append([t.grad for t in leaves])
    assert all(torch.allclose(a, c) for a, c in zip(*found, strict=True))


def test_a_linear_map_that_no_member_changes():
    """A frozen layer on inputs that all members share."""
    x, w, b, scale = (
        draw(4, 5),
        draw(6, 5, seed=1),
        draw(6, seed=2),
        draw(K, seed=3).requires_grad_(),
    )
    with StackedLinear():
        out = torch.vmap(lambda s: s * F.linear(x, w, b))(scale)
    out.sum().backward()
    assert torch.allclose(out.detach(), scale.detach().reshape(K, 1, 1) * F.linear(x, w, b))
    assert torch.allclose(scale.grad, F.linear(x, w, b).sum().expand(K))


def test_other_functions_pass_and_modules_are_caught():
    layer = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 2)).double()
    values = {
        n: torch.stack([p.detach() + 0.1 * k for k in range(K)])
        for n, p in layer.named_parameters()
    }
    x = draw(K, 4, 5)
    with StackedLinear():
        out = torch.vmap(lambda v, a: torch.func.functional_call(layer, v, (a,)))(values, x)
    rows = [
        torch.func.functional_call(layer, {n: v[k] for n, v in values.items()}, (x[k],))
        for k in range(K)
    ]
    assert torch.allclose(out, torch.stack(rows))
