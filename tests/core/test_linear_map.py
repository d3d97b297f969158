import pytest
import torch
import torch.nn.functional as F
from torch import nn

from credo.core.linear_map import MEETINGS, SIGNATURES, along, bind, contract

CASES = [
    (F.linear, nn.Linear(4, 6), (3, 4), {}),
    (F.conv1d, nn.Conv1d(4, 6, 3, padding=1, groups=2), (3, 4, 7), {"padding": 1, "groups": 2}),
    (F.conv2d, nn.Conv2d(4, 6, 3, stride=2), (3, 4, 7, 7), {"stride": 2}),
    (F.conv3d, nn.Conv3d(2, 6, 2), (3, 2, 4, 4, 4), {}),
    (F.conv_transpose1d, nn.ConvTranspose1d(4, 6, 3, groups=2), (3, 4, 7), {"groups": 2}),
    (
        F.conv_transpose2d,
        nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1),
        (3, 4, 5, 5),
        {"stride": 2, "output_padding": 1},
    ),
    (F.conv_transpose3d, nn.ConvTranspose3d(2, 6, 2), (3, 2, 3, 3, 3), {}),
]


@pytest.mark.parametrize(("function", "layer", "shape", "options"), CASES)
def test_a_bound_map_is_the_call(function, layer, shape, options):
    x = torch.randn(shape)
    op, x_bound, w, b = bind(function, (x, layer.weight), {"bias": layer.bias, **options})
    assert x_bound is x and w is layer.weight and b is layer.bias
    assert torch.equal(op(x, w, b), layer(x))
    assert op(x, w).shape[op.channel_axis] == op.out_channels(w) == 6
    assert x.shape[op.channel_axis] == shape[1]
    assert op.groups == options.get("groups", 1)


@pytest.mark.parametrize(("function", "layer", "shape", "options"), CASES)
def test_squares_carry_variances(function, layer, shape, options):
    """For independent weights V[op(x, w)] = op(x^2, V[w]): the Jacobian squared, summed."""
    x = torch.randn(shape)[:1]
    op = bind(function, (x, layer.weight), options)[0]
    jacobian = torch.func.jacrev(lambda w: op(x, w))(layer.weight.detach())
    out_dim = op(x, layer.weight).dim()
    assert torch.allclose(
        jacobian.square().flatten(out_dim).sum(-1),
        op(op.square(x), torch.ones_like(layer.weight)),
        rtol=1e-4,
        atol=1e-4,
    )


def test_positional_arguments_are_named():
    op, _, _, _ = bind(
        F.conv2d, (torch.zeros(1, 2, 5, 5), torch.zeros(4, 1, 3, 3), None, 1, 1, 1, 2), {}
    )
    assert op.groups == 2 and op.bound == {"stride": 1, "padding": 1, "dilation": 1, "groups": 2}
    op, _, _, b = bind(F.embedding, (torch.zeros(1).long(), torch.zeros(4, 2), 0), {})
    assert op.is_embedding and op.bound["padding_idx"] == 0 and b is None


def test_embedding_maps_one_hot_vectors():
    table, words = torch.randn(5, 3), torch.tensor([[0, 4], [2, 2]])
    op = bind(F.embedding, (words, table), {})[0].along_examples(0)
    assert (
        torch.equal(op(words, table), table[words])
        and op.square(words) is words
        and op.out_channels(table) == 3
    )
    assert op.per_example(words, 3) == (2, 1, 3)


def test_per_example_shapes_broadcast_over_positions():
    x = torch.zeros(3, 4, 7)
    conv = bind(F.conv1d, (x, torch.zeros(6, 4, 3)), {})[0]
    assert conv.along_examples(0).per_example(x, 6) == (3, 6, 1)
    linear = bind(F.linear, (x, torch.zeros(6, 7)), {})[0]
    assert linear.along_examples(1).per_example(x, 6) == (1, 4, 6)
    assert linear.per_example(x, 6) == (1, 1, 6)
    assert conv.example_axis is None, "along_examples leaves the original as it is"


def test_every_signature_names_input_and_weight_first():
    assert all(names[:2] == ("input", "weight") for names, _, _ in SIGNATURES.values())


def test_along_and_contract():
    assert along(torch.arange(3), -2, 3).shape == (1, 3, 1)
    y, matrix = torch.randn(2, 4, 5), torch.randn(6, 4)
    assert torch.allclose(
        contract(matrix, y, -2), torch.einsum("rc,bcp->brp", matrix, y), atol=1e-6
    )


def test_a_product_is_a_meeting_but_no_linear_map_of_layers():
    x, mask = torch.randn(3, 4), torch.randn(1, 4)
    for args, kwargs in (((x, mask), {}), ((x,), {"other": mask})):  # as torch names them
        op, x_bound, w, b = bind(torch.mul, args, kwargs)
        assert op.is_product and not op.is_embedding and x_bound is x and w is mask and b is None
        assert torch.equal(op(x, mask), x * mask) and torch.equal(op.square(x), x * x)
    assert (
        torch.mul in MEETINGS
        and torch.mul not in SIGNATURES
        and MEETINGS.keys() - SIGNATURES.keys() == {torch.mul}
    )
    assert not bind(F.linear, (x, mask), {})[0].is_product
