"""Layouts, units that become one, what the output needs, and tracing."""

import itertools

import pytest
import torch
from torch import nn

from credo.compress.channels.units import (
    Dense,
    UnitLayout,
    Units,
    UnknownOperation,
    connections,
    trace,
)
from credo.core.errors import NetworkError


def layout(units, constant, value, axis=1):
    return UnitLayout(
        axis, torch.tensor(units), torch.tensor(constant), torch.tensor(value, dtype=torch.float64)
    )


def chain(*sizes):
    return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))).eval()


def test_merging_axes_repeats_units_as_flatten_orders_them():
    channels, (before, after) = 3, (2, 4)
    numbers = torch.arange(channels).reshape(1, 1, channels, 1).expand(1, before, channels, after)
    wide = layout([0, 1, 2], [True, False, True], [0.5, 0.0, -1.0], axis=2).repeated(
        1, before, after
    )
    assert wide.axis == 1
    assert torch.equal(wide.units, numbers.flatten())
    assert torch.equal(wide.constant, numbers.flatten() != 1)
    assert torch.equal(wide.moved_to(3).value, wide.value) and wide.moved_to(3).axis == 3


@pytest.mark.parametrize(
    "make",
    [lambda: nn.Linear(3, 2), lambda: nn.Conv2d(3, 2, 2), lambda: nn.ConvTranspose1d(3, 2, 2)],
)
def test_links_are_weights_that_are_not_zero_at_any_place(make):
    module = make()
    into, out = (0, 1) if isinstance(module, nn.ConvTranspose1d) else (1, 0)
    with torch.no_grad():
        module.weight.zero_()
        module.weight.movedim((out, into), (0, 1))[0, 2][
            (..., *[-1] * (module.weight.dim() - 2))
        ] = 1.0  # a single place of the kernel
    assert connections(module, into, out).tolist() == [[False, False, True], [False, False, False]]


def test_a_constant_can_be_folded_unless_zeros_lie_beyond_the_border():
    module = nn.Linear(3, 2)
    reads, writes = (
        layout([0, 1, 2], [True, True, False], [0.0, 2.0, 0.0]),
        layout([3, 4], [False, False], [0.0, 0.0]),
    )
    inner, edged = (
        Dense("x", module, reads, writes, 1, 0, zero_padded) for zero_padded in (False, True)
    )
    assert inner.foldable.tolist() == [True, True, False] and edged.foldable.tolist() == [
        True,
        False,
        False,
    ]
    alive = torch.tensor([False, False, False, True, False])
    assert inner.uses(alive).tolist() == [False, False, True] and edged.uses(alive).tolist() == [
        False,
        True,
        True,
    ]
    assert not inner.uses(torch.zeros(5, dtype=torch.bool)).any()


def test_needs_run_from_the_output_backwards():
    """0 feeds 1, which feeds the pinned 2; 3 and 4 feed each other alone."""
    net = chain(2, 2)
    units = Units(net, torch.zeros(1, 2))
    a, b, out, c, d = (units.new_units(1, 1) for _ in range(5))
    layer = nn.Linear(1, 1)
    units.dense = [
        Dense("x", layer, *pair, 1, 0, False) for pair in ((a, b), (b, out), (c, d), (d, c))
    ]
    units.pin(out)
    assert units.needed().tolist() == [True, True, True, False, False]
    units.merge_units([c, b])
    assert units.needed().tolist() == [True] * 5


def test_every_tensor_shows_at_least_one_unit_all_of_it():
    net = chain(2, 2)
    units = Units(net, torch.zeros(1, 2))
    one, two, three = (units.new_units(1, 3) for _ in range(3))
    units.merge_units([one, two])
    nodes = list(units.graph.nodes)
    units.layouts = {nodes[0]: one, nodes[1]: two, nodes[2]: three}
    needed = torch.zeros(9, dtype=torch.bool)
    needed[7] = True
    assert units.units_to_keep(needed).nonzero().flatten().tolist() == [0, 3, 7]


def test_joining_is_transitive():
    units = Units(chain(2, 2), torch.zeros(1, 2))
    one, two, three = (units.new_units(1, 2) for _ in range(3))
    units.merge_units([two, three])
    units.merge_units([one, three])
    units.pin(two)
    assert units.needed().all()


def test_a_tensor_has_its_channels_on_one_axis():
    units = Units(chain(2, 2), torch.zeros(4, 2))
    source = next(iter(units.graph.nodes))
    assert len(units.layout_on_axis(source, 1).units) == 2 and units.needed().all()
    units.layouts[source] = units.layout_on_axis(source, 1)
    for axis in (0, 2):
        with pytest.raises(UnknownOperation):
            units.layout_on_axis(source, axis)


def test_constants_are_what_the_operation_gives_on_known_inputs():
    net = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.AvgPool2d(2, padding=1)).eval()
    units = Units(net, torch.zeros(3, 2, 6, 6))
    _, conv, pool, *_ = units.graph.nodes
    units.layouts[conv] = layout([0, 1], [True, True], [0.0, 2.0])
    value, same = units.constant_value(pool, 1)
    assert (
        same.tolist() == [True, False] and float(value[0]) == 0.0
    )  # padded zeros count in the average


class Peculiar(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)

    def forward(self, x):
        return self.a(x) if x[0, 0] > 0 else x


def test_parts_that_cannot_be_opened_are_one_operation():
    graph = trace(nn.Sequential(nn.Linear(2, 2), nn.Sequential(Peculiar(), nn.ReLU())))
    assert [n.target for n in graph.nodes if n.op == "call_module"] == ["0", "1.0", "1.1"]
    with pytest.raises(NetworkError, match="Peculiar cannot be taken apart"):
        trace(Peculiar())
