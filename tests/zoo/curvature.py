"""Derivatives of small networks by brute force, one backward pass per output of every example, and
what is summed from them.
"""

import torch
import torch.nn.functional as F
from torch import nn

from credo.curvature.sweep import Sweep
from credo.data.intake import intake
from credo.engine.fit_job import FitJob
from zoo import networks
from zoo.models import make_model
from zoo.networks import B


class Nearby(nn.Module):
    """Several kinds of layers side by side, each tapped in its own way: strides, padding and
    dilation in one, two and three axes.
    """

    def __init__(self, layer, size):
        super().__init__()
        self.layer, self.head = layer, nn.LazyLinear(2)
        self(torch.zeros(1, *size))

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x)).flatten(1))


def _conv(layer, *size):
    return lambda: Nearby(layer(), size), lambda: torch.randn(B, *size)


class OtherUse(nn.Module):
    """A layer that is called once, and whose weight is used once more without it, before a layer
    that is tapped too.
    """

    def __init__(self):
        super().__init__()
        self.layer, self.middle, self.head = nn.Linear(5, 5), nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.middle(torch.tanh(self.layer(x)) + x @ self.layer.weight)))


class Standardised(nn.Conv2d):
    """A convolution that normalises its weights first, as scale-invariant networks do."""

    def forward(self, input):
        flat = self.weight.flatten(1)
        weight = (self.weight - flat.mean(1)[:, None, None, None]) / flat.std(1)[
            :, None, None, None
        ]
        return F.conv2d(input, weight, self.bias, self.stride, self.padding)


class ByName(nn.Module):
    """Layers called with their input as a keyword."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(input=torch.tanh(self.layer(input=x)))


class Positions(nn.Module):
    """A linear map over ``(N, T, D)``."""

    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.mix(x)).mean(1))


class Unused(nn.Module):
    """A layer that is called but does not reach the output, one that is never called, and a bare
    parameter nobody reads.
    """

    def __init__(self):
        super().__init__()
        self.layer, self.lost, self.idle, self.head = (
            nn.Linear(5, 6),
            nn.Linear(5, 2),
            nn.Linear(5, 2),
            nn.Linear(6, 2),
        )
        self.bare = nn.Parameter(torch.randn(2))

    def forward(self, x):
        self.lost(x)
        return self.head(torch.tanh(self.layer(x)))


class Pair(nn.Module):
    """Two positional inputs, and an output that is a number per example."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 2), nn.Linear(2, 2)

    def forward(self, left, right):
        return torch.tanh(self.a(left)) + self.b(right)


class Constant(nn.Module):
    """A layer that reads the same vector whatever the example is, with as many rows as there are
    examples in a dry run.
    """

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(2, 5))
        self.layer, self.head = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(self.table).sum(0) + x[:, :1]))


def hooked():
    net = networks.mlp()
    net[0].register_forward_hook(lambda module, args, output: 2.0 * output)
    return net


def normed(norm, *size):
    return nn.Sequential(nn.Conv2d(2, 4, 3), norm(), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 2))


def layer_norm():
    return nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2))


def trained_batchnorm():
    """With running statistics that are not 0 and 1."""
    norm = nn.BatchNorm2d(4)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    return norm


def _image():
    return torch.randn(B, 2, 6, 6)


#: name -> (network factory, input factory), beside those of ``zoo.networks``
MORE = {
    "stride": _conv(lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 1)), 2, 7, 5),
    "padding": _conv(lambda: nn.Conv2d(2, 3, 3, padding=(1, 2)), 2, 4, 5),
    "same": _conv(lambda: nn.Conv2d(2, 3, (4, 3), padding="same", dilation=(1, 2)), 2, 6, 5),
    "valid": _conv(lambda: nn.Conv2d(2, 3, 2, padding="valid"), 2, 4, 5),
    "dilation": _conv(lambda: nn.Conv2d(2, 3, 2, dilation=(2, 3), stride=2), 2, 7, 8),
    "grouped_conv": _conv(lambda: nn.Conv2d(4, 6, 3, groups=2), 4, 5, 5),
    "reflected": _conv(lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), 2, 5, 5),
    "conv_1d": _conv(lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1, bias=False), 2, 7),
    "conv_3d": _conv(lambda: nn.Conv3d(2, 3, (2, 1, 2), padding=(0, 1, 1)), 2, 4, 2, 5),
    "point_conv": _conv(lambda: nn.Conv2d(2, 3, (4, 5)), 2, 4, 5),
    "standardised": _conv(lambda: Standardised(2, 3, 3), 2, 5, 5),
    "weight_normed_conv": _conv(
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 3, 3)), 2, 5, 5
    ),
    "batch_norm_2d": (lambda: normed(trained_batchnorm), _image),
    "group_norm": (lambda: normed(lambda: nn.GroupNorm(2, 4)), _image),
    "layer_norm": (layer_norm, lambda: torch.randn(B, 5)),
    "other_use": (OtherUse, lambda: torch.randn(B, 5)),
    "by_name": (ByName, lambda: torch.randn(B, 5)),
    "positions": (Positions, lambda: torch.randn(B, 6, 5)),
    "unused": (Unused, lambda: torch.randn(B, 5)),
    "pair": (Pair, lambda: (torch.randn(B, 5), torch.randn(B, 2))),
    "constant": (Constant, lambda: torch.randn(B, 5)),
    "hooked": (hooked, lambda: torch.randn(B, 5)),
}
ALL = networks.ZOO | MORE
OUTPUT = {"dicts": "logits"}


def make(name, dtype=torch.float64):
    """The named network in evaluation mode, and its inputs."""
    networks.ZOO, kept = ALL, networks.ZOO
    try:
        net, x = networks.make(name, dtype)
    finally:
        networks.ZOO = kept
    return net.eval(), x


def jacobian(net, x, names, output=None):
    """d f / d w by name, ``(N, F, P)`` each, from one backward pass per output of every example."""
    net.eval()
    out = net(**x) if isinstance(x, dict) else net(*x) if isinstance(x, tuple) else net(x)
    out = out if output is None else out[output]
    own = dict(net.named_parameters())
    rows = {name: [] for name in names}
    for value in out.reshape(-1):
        grads = torch.autograd.grad(
            value, [own[n] for n in names], retain_graph=True, allow_unused=True
        )
        for name, grad in zip(names, grads, strict=True):
            rows[name].append((torch.zeros_like(own[name]) if grad is None else grad).reshape(-1))
    return {
        name: torch.stack(found).reshape(*out.shape, -1) for name, found in rows.items()
    }, out.detach()


def dense(net, x, model, output=None):
    """The Jacobian by all random parameters side by side, ``(N, F, P)``, and the outputs."""
    rows, out = jacobian(net, x, list(model.random), output)
    return torch.cat([rows[n] for n in model.random], -1), out


def ggn(net, x, model, output=None):
    """sum_n J_n^T Lambda_n J_n ``(P, P)``."""
    rows, out = dense(net, x, model, output)
    return torch.einsum("nfp,nfg,ngq->pq", rows, model.likelihood.information(out).detach(), rows)


def make_job(x, y, **how):
    return FitJob(intake((x, y)), 1, None, 1e-3, **how)


def make_sweep(net, x, y, likelihood="categorical", random="all", output=None, prior=None, **how):
    """A sweep at the network's own weights."""
    model = make_model(net, random, likelihood, prior, output)
    return Sweep(model, model.values(), model.buffers(), make_job(x, y), **how)


def some(model, step=3):
    """Flat places of every third number, of every other parameter."""
    return {n: torch.arange(0, s.numel, step) for n, s in list(model.random.items())[::2]}


def columns(chosen, model):
    """The same among all random numbers in a row."""
    index, start = [], 0
    for name, site in model.random.items():
        if name in chosen:
            index.append(chosen[name] + start)
        start += site.numel
    return torch.cat(index)


def targets(n=B):
    return torch.arange(n) % 2


def matrix(blocks, model):
    """The curvature that blocks stand for, dense ``(P, P)`` in the order of the model's random
    parameters.
    """
    sizes = {n: s.numel for n, s in model.random.items()}
    starts, total = {}, 0
    for name, size in sizes.items():
        starts[name], total = total, total + size
    out = torch.zeros(total, total, dtype=torch.float64)
    for block in blocks:
        index = torch.cat([torch.arange(starts[n], starts[n] + sizes[n]) for n in block.names])
        out[index.unsqueeze(-1), index] = _dense(block, sizes)
    return out


def _dense(block, sizes):
    from credo.curvature.blocks import DiagonalBlock, FullBlock, KronBlock

    if isinstance(block, DiagonalBlock):
        return torch.diag(torch.cat([block.diagonal[n].reshape(-1) for n in block.names])).double()
    if isinstance(block, KronBlock):
        basis = torch.kron(block.left, block.right).double()
        return (basis * block.eigenvalues.reshape(-1)) @ basis.mT
    if isinstance(block, FullBlock):
        return block.matrix.double()
    return block.factor.double() @ block.factor.double().mT
