from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state

from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.likelihoods import Heteroscedastic, Pixels
from credo.nets import conv_decoder, conv_encoder, mlp, mlp_decoder, mlp_encoder

SHAPES = [(1, 1), (7, 5), (3, 9, 13), (28, 28)]
NETS = {
    "mlp_encoder": (lambda: mlp_encoder((3, 7, 5), 4, (6,)), (3, 7, 5)),
    "mlp_decoder": (lambda: mlp_decoder(3, 4, (6,)), (3,)),
    "conv_encoder": (lambda: conv_encoder((3, 7, 5), 4, (4, 5), 6), (3, 7, 5)),
    "conv_decoder": (lambda: conv_decoder(3, (3, 7, 5), 2, (5, 4), 6), (3,)),
}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [*SHAPES, (6,), (2, 3, 4, 5)])
def test_mlp_encoder_takes_any_shape(shape):
    net = mlp_encoder(shape, 6, (8, 7))
    x = normal(3, *shape)
    assert net(x).shape == (3, 6)
    torch.testing.assert_close(net(x), net(x.flatten(1)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("channels", [(), (4,), (4, 5), (4, 5, 6, 7)])
def test_conv_encoder_takes_any_size(shape, channels):
    net = conv_encoder(shape, 6, channels, hidden=8)
    x = normal(3, *shape)
    assert net(x).shape == (3, 6)
    torch.testing.assert_close(net(x), net(x.flatten(1)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("channels", [(), (4,), (4, 5), (4, 5, 6, 7)])
@pytest.mark.parametrize("per_pixel", [1, 3])
def test_conv_decoder_gives_any_size(shape, channels, per_pixel):
    assert conv_decoder(2, shape, per_pixel, channels, hidden=8)(normal(3, 2)).shape == (
        3,
        per_pixel * math.prod(shape),
    )


def test_layers():
    encoder, decoder = conv_encoder((28, 28), 20), conv_decoder(10, (28, 28))
    kinds = [nn.Conv2d, nn.ReLU, nn.Conv2d, nn.ReLU, nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
    assert [type(m) for m in encoder][2:] == kinds
    assert [m.stride for m in encoder if isinstance(m, nn.Conv2d)] == [(2, 2)] * 2
    assert [m.kernel_size for m in encoder if isinstance(m, nn.Conv2d)] == [(3, 3)] * 2
    dense = [m for m in encoder if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in dense] == [(64 * 7 * 7, 256), (256, 20)]
    steps = [m for m in decoder if isinstance(m, nn.ConvTranspose2d)]
    assert [(m.in_channels, m.out_channels, m.stride) for m in steps] == [
        (64, 32, (2, 2)),
        (32, 1, (2, 2)),
    ]
    assert type(decoder[list(decoder).index(steps[1]) - 1]) is nn.ReLU


def test_perceptrons_are_mlp():
    with isolated(0):
        expected = mlp(12, (5, 4), 3, "tanh")
    with isolated(0):
        encoder = mlp_encoder((3, 4), 3, (5, 4), "tanh")
    with isolated(0):
        decoder = mlp_decoder(12, 3, (5, 4), "tanh")
    x = normal(2, 12)
    assert torch.equal(encoder(x.reshape(2, 3, 4)), expected(x))
    assert torch.equal(decoder(x), expected(x))


@pytest.mark.parametrize("shape", [(7, 5), (3, 9, 13)])
def test_the_order_of_decoded_numbers_is_the_likelihoods(shape):
    """With the last kernel zero each channel is its bias: kind k of colour c must be number k C +
    c, for all of its pixels.
    """
    kinds, dim = 4, math.prod(shape)
    colours = dim // math.prod(shape[-2:])
    net = conv_decoder(2, shape, kinds, (3, 3), hidden=4)
    last = [m for m in net if isinstance(m, nn.ConvTranspose2d)][-1]
    assert last.bias is not None
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.arange(kinds * colours))
    flat = net(normal(1, 2))
    expected = (
        torch.arange(kinds * colours)
        .float()
        .reshape(kinds, colours, 1)
        .expand(-1, -1, dim // colours)
        .reshape(1, kinds, dim)
    )
    assert torch.equal(flat.unflatten(-1, (kinds, dim)), expected)
    assert torch.equal(Pixels(kinds).split(flat), expected)
    mean, _ = Heteroscedastic().split(flat)
    assert torch.equal(mean, expected[:, : kinds // 2].flatten(1))


def test_cropped_pixels_are_those_of_the_larger_image():
    small, large = conv_decoder(2, (7, 5), 2, (4, 3), 6), conv_decoder(2, (8, 8), 2, (4, 3), 6)
    large.load_state_dict(small.state_dict())
    z = normal(3, 2)
    image = large(z).reshape(3, 2, 8, 8)
    torch.testing.assert_close(small(z).reshape(3, 2, 7, 5), image[..., :7, :5])


@pytest.mark.parametrize("name", NETS)
def test_vmap_over_inputs_and_over_weights(name):
    make, shape = NETS[name]
    x = normal(5, 2, *shape)
    nets = [make() for _ in range(5)]
    torch.testing.assert_close(
        torch.vmap(nets[0])(x), torch.stack([nets[0](part) for part in x]), rtol=1e-5, atol=1e-6
    )
    weights, buffers = stack_module_state(nets)
    together = torch.vmap(lambda w, b, part: functional_call(nets[0], (w, b), (part,)))(
        weights, buffers, x
    )
    alone = torch.stack([net(part) for net, part in zip(nets, x, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NETS)
def test_compiles_into_one_graph_and_every_weight_learns(name):
    make, shape = NETS[name]
    net, x = make(), normal(4, *shape)
    torch.compiler.reset()
    outputs = torch.compile(net, fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(outputs, net(x))
    outputs.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in [*net.parameters()][-2:])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mlp_encoder(784, 3), r"mlp_encoder: shape=784 .*such as \(28, 28\)"),
        (lambda: mlp_encoder((), 3), r"mlp_encoder: shape=\(\)"),
        (lambda: mlp_encoder("28", 3), "mlp_encoder: shape='28'"),
        (lambda: mlp_encoder((4, 0), 3), r"mlp_encoder: shape\[1\]=0"),
        (lambda: mlp_encoder((4,), 0), "mlp_encoder: outputs=0"),
        (lambda: mlp_encoder((4,), 2, (0,)), r"hidden\[0\]=0"),
        (lambda: mlp_encoder((4,), 2, activation="rel"), "Did you mean 'relu'"),
        (lambda: mlp_decoder(0, 3), "mlp_decoder: latent_dim=0"),
        (lambda: mlp_decoder(2, 2.5), r"mlp_decoder: outputs=2\.5"),
        (
            lambda: conv_encoder((28,), 3),
            r"conv_encoder: shape=\(28,\) has 1 sizes; expected \(H, W\) or \(C, H, W\)",
        ),
        (lambda: conv_encoder((8, 8), 3, (4, 0)), r"conv_encoder: widths\[1\]=0"),
        (lambda: conv_encoder((8, 8), 3, hidden=0), "conv_encoder: hidden=0"),
        (lambda: conv_decoder(2, (1, 2, 3, 4)), "conv_decoder: shape=.* has 4 sizes"),
        (lambda: conv_decoder(2, (8, 8), per_pixel=0), "conv_decoder: per_pixel=0"),
        (lambda: conv_decoder(2, (8, 8), widths=(0,)), r"conv_decoder: widths\[0\]=0"),
        (lambda: conv_decoder(-1, (8, 8)), "conv_decoder: latent_dim=-1"),
    ],
)
def test_bad_sizes_are_named(call, message):
    with pytest.raises(SettingError, match=message):
        call()
