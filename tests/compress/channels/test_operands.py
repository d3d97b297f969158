"""What rules read of operations: names, arguments that must be numbers, the axis of channels."""

import operator

import pytest
import torch
from torch import fx, nn

from credo.compress.channels.operands import argument, channel_axis, input_of, operation_name
from credo.compress.channels.units import Units, UnknownOperation


def nodes():
    graph = fx.Graph()
    x = graph.placeholder("x")
    return graph, x


def test_an_argument_stands_in_its_place_or_under_its_name_and_is_no_tensor():
    graph, x = nodes()
    placed = graph.call_function(torch.flatten, (x, 2))
    named = graph.call_function(torch.flatten, (x,), {"start_dim": 2})
    tensor = graph.call_function(torch.flatten, (x, x))
    assert [argument(n, 1, "start_dim", 0) for n in (placed, named)] == [2, 2]
    assert argument(placed, 2, "end_dim", -1) == -1
    with pytest.raises(UnknownOperation):
        argument(tensor, 1, "start_dim")


def test_the_first_input_is_a_tensor():
    graph, x = nodes()
    assert input_of(graph.call_method("relu", (x,))) is x
    with pytest.raises(UnknownOperation):
        input_of(graph.call_function(operator.add, (1, x)))


def test_names_are_those_of_functions_and_methods():
    graph, x = nodes()
    found = (graph.call_function(torch.flatten, (x,)), graph.call_method("relu_", (x,)))
    assert [operation_name(n) for n in found] == ["flatten", "relu_"]


def test_channels_are_before_the_axes_an_operation_moves_over():
    units = Units(nn.Sequential(nn.MaxPool2d(2), nn.Flatten(2)).eval(), torch.zeros(2, 3, 4, 4))
    _, pool, flat, _ = units.graph.nodes
    assert channel_axis(units, pool) == 1 and channel_axis(units, flat) == 1
