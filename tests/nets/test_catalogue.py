import json
import warnings

import pytest
import torch

from credo import nets
from credo.core.errors import SettingError
from credo.nets.catalogue import catalogue, present_args

CASES = {
    "mlp": ({"in_features": 3, "hidden": [5], "out_features": 2}, torch.zeros(2, 3), 2),
    "lenet_300_100": ({}, torch.zeros(2, 784), 10),
    "lenet5_caffe": ({}, torch.zeros(2, 1, 28, 28), 10),
    "small_cnn": ({"widths": [2, 3], "outputs": 4}, torch.zeros(2, 1, 9, 7), 4),
    "mlp_encoder": ({"shape": [3, 4], "outputs": 6, "hidden": [5]}, torch.zeros(2, 3, 4), 6),
    "mlp_decoder": (
        {"latent_dim": 3, "outputs": 4, "hidden": [5], "activation": "tanh"},
        torch.zeros(2, 3),
        4,
    ),
    "conv_encoder": (
        {"shape": [9, 7], "outputs": 6, "widths": [2, 3], "hidden": 5},
        torch.zeros(2, 9, 7),
        6,
    ),
    "conv_decoder": (
        {"latent_dim": 3, "shape": [2, 5, 3], "per_pixel": 2, "widths": [4]},
        torch.zeros(2, 3),
        60,
    ),
    "vgg": ({"outputs": 3, "width": 0.05}, torch.zeros(2, 3, 32, 32), 3),
    "resnet": ({"outputs": 3, "depth": 8, "width": 2}, torch.zeros(2, 3, 8, 8), 3),
    "resnet50": ({"outputs": 3}, torch.zeros(2, 3, 32, 32), 3),
    "lstm_classifier": ({"vocab": 6, "outputs": 3}, torch.zeros(2, 5, dtype=torch.long), 3),
    "char_lstm": ({"vocab": 6, "hidden": 4, "width": 3}, torch.zeros(2, 5, dtype=torch.long), 30),
    "transformer_classifier": ({"in_features": 4, "outputs": 3}, torch.zeros(2, 5, 4), 3),
}


def test_every_network_is_covered_here():
    assert set(nets.names()) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_json_description_builds_the_same_network(name):
    args, x, outputs = CASES[name]
    description = json.loads(json.dumps({"name": name, "args": args}))
    torch.manual_seed(0)
    first = nets.build(name, **args)
    torch.manual_seed(0)
    second = nets.build(description["name"], **description["args"])
    assert first(x).shape == (2, outputs)
    torch.testing.assert_close(first(x), second(x), rtol=0, atol=0)


def test_unknown_names_and_arguments_are_named_with_the_nearest():
    with pytest.raises(SettingError, match=r"'mlpp'.*Did you mean 'mlp'"):
        nets.build("mlpp")
    with pytest.raises(SettingError, match=r"'hiden'.*Did you mean 'hidden'"):
        nets.build("mlp", in_features=2, hiden=(3,))
    with pytest.raises(SettingError, match="needs in_features"):
        nets.build("mlp")


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_bad_sizes_are_refused_with_the_value(size):
    with pytest.raises(SettingError, match=f"in_features={size!r}"):
        nets.mlp(size)


FORMERLY = {
    "lenet_300_100": {"num_classes": 3},
    "lenet5_caffe": {"num_classes": 3},
    "small_cnn": {"num_classes": 3, "channels": [2]},
    "lstm_classifier": {"vocab": 4, "num_classes": 3},
    "transformer_classifier": {"vocab": 4, "num_classes": 3},
    "conv_encoder": {"shape": [8, 8], "outputs": 3, "channels": [2]},
    "conv_decoder": {"latent_dim": 2, "shape": [8, 8], "channels": [2]},
}


@pytest.mark.parametrize("name", FORMERLY)
def test_former_names_build_the_same_network_with_a_warning(name):
    args = present_args(name, FORMERLY[name])
    assert not {"num_classes", "channels"} & set(args) and len(args) == len(FORMERLY[name])
    with warnings.catch_warnings(action="error"):
        present = nets.build(name, **args)
    with pytest.warns(FutureWarning, match=f"{name}: .* now"):
        former = nets.build(name, **FORMERLY[name])
    assert str(former) == str(present)


def test_names_of_other_libraries_lead_to_the_right_ones():
    with pytest.raises(SettingError, match="Did you mean 'out_features'"):
        nets.build("mlp", in_features=2, num_classes=3)
    with pytest.raises(SettingError, match="Did you mean 'outputs'"):
        nets.lenet5_caffe(classes=3)


def test_a_network_is_found_by_its_name_alone():
    assert catalogue["mlp"] is nets.mlp and catalogue.names() == nets.names()
