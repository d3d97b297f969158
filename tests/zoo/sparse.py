"""Quantised networks for tests: sparse as pruning leaves them, with some units much fuller than
others and most of them empty.
"""

import torch
from torch import nn

from credo.compress.quantised import Coded, Quantised, Raw
from credo.nets.lenet import lenet5_caffe

#: Nonzero weights per layer of a well pruned LeNet-5, 1,300 in all, and the share of output and of
#: input units that stay.
LENET_COUNTS = {"0.weight": 110, "2.weight": 400, "5.weight": 600, "7.weight": 190}
LENET_ALIVE = {
    "0.weight": (0.5, 1.0),
    "2.weight": (0.5, 0.5),
    "5.weight": (0.2, 0.3),
    "7.weight": (1.0, 0.2),
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def sparse_codes(shape, count, rows, columns, levels=6, step=0.0625, seed=0):
    """``count`` nonzeros among the share ``rows`` x ``columns`` of units, each unit with a density
    of its own, on a grid of 2 * levels values.
    """
    noise = generator(seed)
    height, width = shape[0], shape.numel() // shape[0]
    fullness = [
        torch.rand(n, generator=noise) ** 2 * (torch.rand(n, generator=noise) < share)
        for n, share in ((height, rows), (width, columns))
    ]
    chance = fullness[0][:, None] * fullness[1] + 1e-9
    chosen = torch.multinomial(chance.flatten(), count, generator=noise)
    size = (torch.randn(count, generator=noise).abs() * levels / 2.5).ceil().clamp(1, levels)
    sign = torch.randint(0, 2, (count,), generator=noise) * 2 - 1
    values = torch.zeros(height * width)
    values[chosen] = size * sign * step
    return Coded.of(values.reshape(shape))


def lenet_like(seed=0):
    """A LeNet-5 of 431,080 parameters of which about 1,350 are left, and its codes."""
    net = lenet5_caffe()
    entries = {}
    for name, tensor in net.state_dict().items():
        if name in LENET_COUNTS:
            entries[name] = sparse_codes(
                tensor.shape, LENET_COUNTS[name], *LENET_ALIVE[name], seed=seed
            )
            alive = entries[name].codes.flatten(1).any(1)
        else:
            entries[name] = Coded.of(
                alive * (torch.randn(len(tensor), generator=generator(seed)) * 4).round() / 8
            )
    return net, Quantised(entries)


def with_batchnorm():
    """A small network with statistics and a counter, which are stored as they are."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
        net(torch.randn(8, 1, 4, 4))
    entries = {
        n: Raw(t) if n.startswith("1.") else Coded.of((t * 8).round() / 8)
        for n, t in net.state_dict().items()
    }
    return net, Quantised(entries)


def random_codes(net, seed, density, levels):
    """Codes of any network: a random book of ``levels`` values and independent weights."""
    noise = generator(seed)
    entries = {}
    for name, tensor in net.state_dict().items():
        book = torch.randn(levels, generator=noise).unique()
        codes = (
            torch.randint(1, len(book) + 1, tensor.shape, generator=noise)
            if len(book)
            else torch.zeros(tensor.shape)
        )
        entries[name] = Coded(
            (codes * (torch.rand(tensor.shape, generator=noise) < density)).int(), book
        )
    return Quantised(entries)
