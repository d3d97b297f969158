import base64
import json
import math

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal

from credo import nets
from credo.core.errors import DataError, SettingError
from credo.data.image_sets import read_images
from credo.generative import VAE, Autoencoder
from credo.generative.codes import codes
from credo.generative.mosaics import (
    activity,
    evenly_chosen,
    information,
    manifold,
    picture_shape,
    reconstructions,
    samples,
    traversals,
)
from credo.likelihoods import Pixels
from credo.report.image_figures import mosaic

DIGITS = read_images("digits").x[:120]


def fitted(
    x=DIGITS,
    latent=2,
    likelihood="continuous_bernoulli",
    per=1,
    posterior="diagonal",
    epochs=1,
    **arguments,
):
    code = codes[posterior](latent)
    shape, size = x.shape[1:], math.prod(x.shape[1:])
    model = VAE(
        nets.mlp_encoder(shape, code.width, (8,)),
        nets.mlp_decoder(code.size, per * size, (8,)),
        latent,
        likelihood,
        posterior=code,
        **arguments,
    )
    return model.fit(x, epochs=epochs, batch_size=60, progress=False)


@pytest.fixture(scope="module")
def plane():
    torch.manual_seed(0)
    return fitted(epochs=3)


def pixels(entry):
    """``(rows, columns, C, H, W)`` in [0, 1] of an entry whose grid is full; it can be drawn and
    stored too.
    """
    assert entry["kind"] == "mosaic" and entry["caption"]
    mosaic(entry)
    json.dumps(entry, allow_nan=False)
    values = np.frombuffer(base64.b64decode(entry["pixels"]), np.uint8) / 255
    return values.reshape(
        entry["rows"], entry["columns"], entry["channels"], entry["height"], entry["width"]
    )


def near(found, expected):
    """Equal up to what one byte can hold."""
    return (
        np.abs(np.asarray(found).squeeze() - np.asarray(expected).squeeze()).max()
        <= 0.5 / 255 + 1e-6
    )


def test_data_stand_above_their_reconstructions(plane):
    entry = reconstructions(plane, DIGITS, "Train", columns=5, blocks=2)
    shown = pixels(entry)
    chosen = DIGITS[::12]
    assert (
        entry["title"] == "Train"
        and entry["row_labels"] == ["data", "model"] * 2
        and entry["block"] == 2
    )
    assert near(shown[[0, 2]].reshape(10, 8, 8), chosen)
    assert near(shown[[1, 3]].reshape(10, 8, 8), plane.reconstruct(chosen))


def test_few_data_make_fewer_columns_and_no_broken_rows(plane):
    assert pixels(reconstructions(plane, DIGITS[:3])).shape[:2] == (2, 3)
    assert pixels(reconstructions(plane, DIGITS[:7], columns=5)).shape[:2] == (2, 5)


def test_an_autoencoder_and_a_binarised_model_are_shown_too():
    plain = Autoencoder(
        nets.mlp_encoder((8, 8), 3, (8,)), nets.mlp_decoder(3, 64, (8,)), 3, "continuous_bernoulli"
    )
    pixels(reconstructions(plain.fit(DIGITS, epochs=1, progress=False), DIGITS))
    assert (
        "binary draw"
        in reconstructions(fitted(likelihood="bernoulli", binarise=True), DIGITS)["caption"]
    )


def test_samples_fill_a_square_and_repeat_with_their_seed(plane):
    entry = samples(plane, 10, seed=3)
    assert (entry["rows"], entry["columns"]) == (3, 4)
    assert (
        samples(plane, 10, seed=3) == entry
        and samples(plane, 10, seed=4)["pixels"] != entry["pixels"]
    )
    assert near(pixels(samples(plane, 9)).reshape(9, 8, 8), plane.sample(9))
    assert near(pixels(samples(plane, 9, noise=True)).reshape(9, 8, 8), plane.sample(9, noise=True))


def test_the_manifold_steps_along_quantiles_of_the_prior(plane):
    entry = manifold(plane, side=3)
    shown = pixels(entry)
    far = Normal(0.0, 1.0).icdf(torch.tensor(5 / 6)).item()
    z = torch.tensor(
        [[0.0, 0.0], [-far, far], [far, far], [far, -far]]
    )  # centre, top left, top right, bottom right
    assert near([shown[1, 1], shown[0, 0], shown[0, 2], shown[2, 2]], plane.decode(z))
    assert entry["x_label"] and entry["y_label"]


def test_without_a_normal_prior_the_manifold_spans_the_encoded_data():
    model = fitted(prior="mixture")
    with pytest.raises(SettingError, match="pass them as x"):
        manifold(model)
    means = model.encode(DIGITS).mean
    assert near(
        pixels(manifold(model, side=1, x=DIGITS)),
        model.decode((means.amin(0) + means.amax(0))[None] / 2),
    )


def test_a_manifold_needs_two_continuous_variables(plane):
    with pytest.raises(SettingError, match="this model has 3 continuous"):
        manifold(fitted(latent=3))
    with pytest.raises(SettingError, match="this model has 2 categorical"):
        manifold(fitted(posterior="categorical"))


def test_traversals_move_one_variable_and_leave_the_others(plane):
    entry = traversals(plane, DIGITS, dims=2, steps=3, data=2)
    shown = pixels(entry)
    q = plane.encode(DIGITS)
    order = information(plane, q)[0].argsort(descending=True).tolist()
    assert [label.split()[0] for label in entry["row_labels"]] == [
        f"z{place + 1}" for place in order
    ] * 2
    assert entry["column_labels"] == ["-3", "0", "3"] and shown.shape[:2] == (4, 3)
    z = q.mean[60].repeat(3, 1)
    z[:, order[0]] = torch.tensor([-3.0, 0.0, 3.0])
    assert near(shown[2], plane.decode(z))
    with pytest.raises(SettingError, match="steps=1"):
        traversals(plane, DIGITS, steps=1)


def test_a_categorical_variable_takes_each_value_in_turn():
    model = fitted(latent=3, posterior="categorical")
    entry = traversals(model, DIGITS, dims=5, data=1)
    assert pixels(entry).shape[:2] == (3, 10) and entry["column_labels"] == [
        str(k) for k in range(1, 11)
    ]
    place = int(entry["row_labels"][0].split()[0][1:]) - 1
    z = model.encode(DIGITS).mode[0].repeat(10, 1).unflatten(-1, (3, 10))  # pyright: ignore
    z[:, place] = torch.eye(10)
    assert near(pixels(entry)[0], model.decode(z.flatten(1)))


def test_under_another_prior_the_encoded_data_give_the_range():
    model = fitted(prior="vamp")
    entry = traversals(model, DIGITS, dims=1, steps=3, data=1)
    means = model.encode(DIGITS).mean
    place = int(entry["row_labels"][0].split()[0][1:]) - 1
    z = means[0].repeat(3, 1)
    z[:, place] = means[:, place].mean() + means[:, place].std(correction=0) * torch.tensor(
        [-3.0, 0.0, 3.0]
    )
    assert near(pixels(entry), model.decode(z)) and "the encoded data" in entry["caption"]
    assert "variance" in entry["caption"]  # no KL per variable there


def test_what_a_variable_says_is_its_kl_where_there_is_one(plane):
    q = plane.encode(DIGITS)
    values, what = information(plane, q)
    expected = torch.distributions.kl_divergence(q.base_dist, Normal(0.0, 1.0)).mean(0)
    assert torch.allclose(values, expected, rtol=1e-5) and "KL" in what
    full = fitted(posterior="full")
    assert "variance" in information(full, full.encode(DIGITS))[1]


def test_activity_is_the_variance_of_the_means(plane):
    means = torch.tensor([[0.0, 1.0], [2.0, 1.0]])
    q = Independent(Normal(means, torch.ones(2, 2)), 1)
    assert activity(plane, q).tolist() == [1.0, 0.0]


def test_levels_and_other_ranges_are_shown_from_black_to_white():
    levels = (DIGITS * 16).round()
    model = fitted(levels, likelihood=Pixels(17), per=17)
    assert near(pixels(reconstructions(model, levels, columns=1, blocks=1))[0], DIGITS[:1])
    wide = fitted(4 * DIGITS - 2, likelihood="gaussian")
    assert near(
        pixels(reconstructions(wide, 4 * DIGITS - 2, columns=1, blocks=1, shades=(-2, 2)))[0],
        DIGITS[:1],
    )
    with pytest.raises(SettingError, match="shades"):
        samples(wide, 1, shades=(1, 1))


def test_rows_are_images_only_where_the_caller_says_so():
    rows = DIGITS.reshape(-1, 64)
    model = fitted(rows)
    with pytest.raises(DataError, match=r"shape \(64,\) each, which is no image"):
        samples(model, 4)
    assert near(
        pixels(reconstructions(model, rows, columns=2, blocks=1, image_shape=(8, 8)))[0],
        DIGITS[[0, 60]],
    )
    with pytest.raises(DataError, match="has 63 pixels"):
        samples(model, 4, image_shape=(7, 9))


@pytest.mark.parametrize(
    ("shape", "given", "expected"),
    [
        ((8, 8), None, (1, 8, 8)),
        ((1, 4, 5), None, (1, 4, 5)),
        ((3, 4, 5), None, (3, 4, 5)),
        ((2, 4, 5), None, None),
        ((64,), None, None),
        ((64,), (8, 8), (1, 8, 8)),
        ((12,), (3, 2, 2), (3, 2, 2)),
    ],
)
def test_which_shapes_are_images(shape, given, expected):
    assert picture_shape(shape, given) == expected


def test_few_are_spread_and_colour_stays_in_its_channels():
    assert evenly_chosen(np.arange(10.0), 5).tolist() == [0, 2, 4, 6, 8]
    with pytest.raises(DataError, match="expected one tensor"):
        evenly_chosen((np.zeros(3), np.zeros(3)), 2)
    colour = np.stack([DIGITS, DIGITS**2, 1 - DIGITS], 1)
    shown = pixels(reconstructions(fitted(colour), colour, columns=1, blocks=1))
    assert near(shown[0], colour[:1])
