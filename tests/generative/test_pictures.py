import json

import numpy as np
import pytest
import torch

from credo import nets
from credo.core.errors import DataError, SettingError
from credo.data.image_sets import read_images
from credo.generative import VAE, Autoencoder
from credo.generative.codes import codes
from credo.generative.pictures import curves, embedding, page
from credo.report.html import render

IMAGES = read_images("digits")
DIGITS, LABELS = IMAGES.x[:120], IMAGES.labels[:120]  # pyright: ignore


def fitted(x=DIGITS, latent=3, posterior="diagonal", likelihood="continuous_bernoulli", **options):
    code = codes[posterior](latent)
    networks = (
        nets.mlp_encoder(x.shape[1:], code.width, (8,)),
        nets.mlp_decoder(code.size, 64, (8,)),
    )
    model = VAE(*networks, latent, likelihood, posterior=code)
    return model.fit(x, **{"epochs": 2, "batch_size": 60, "progress": False} | options)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return fitted(validation=DIGITS[:20])


def test_two_latent_variables_are_shown_as_they_are():
    flat = fitted(latent=2)
    entry = embedding(flat, DIGITS, LABELS)
    assert [group["name"] for group in entry["groups"]] == [str(kind) for kind in range(10)]
    means = flat.encode(DIGITS).mean.numpy()
    threes = entry["groups"][3]
    assert (
        np.allclose(np.transpose([threes["x"], threes["y"]]), means[LABELS == 3], atol=5e-4)
        and not entry["bare"]
    )


def test_one_latent_variable_is_shown_against_its_deviation():
    line = fitted(latent=1)
    entry = embedding(line, DIGITS)
    q = line.encode(DIGITS)
    assert np.allclose(entry["groups"][0]["y"], q.stddev.squeeze().numpy(), atol=5e-4)


def test_more_are_laid_out_by_neighbourhood_the_same_every_time(model):
    entry = embedding(model, DIGITS, LABELS)
    assert (
        entry == embedding(model, DIGITS, LABELS) and entry["bare"] and "t-SNE" in entry["caption"]
    )
    assert sum(len(group["x"]) for group in entry["groups"]) == 120


def test_many_data_are_thinned_out_with_their_labels(model):
    entry = embedding(fitted(latent=2), np.tile(DIGITS, (20, 1, 1)), np.tile(LABELS, 20))
    assert sum(len(group["x"]) for group in entry["groups"]) == 2000


def test_labels_are_optional_and_too_many_are_said_to_be(model):
    assert [group["name"] for group in embedding(model, DIGITS)["groups"]] == ["data"]
    assert "120 different labels" in embedding(model, DIGITS, np.arange(120))["caption"]
    with pytest.raises(DataError, match="3 labels for 120 data"):
        embedding(model, DIGITS, [1, 2, 3])
    with pytest.raises(DataError, match="2 data are too few"):
        embedding(model, DIGITS[:2])


def test_curves_are_per_datum_with_held_out_data_where_there_are_some(model):
    bound, kl = curves(model.history)
    assert [line["name"] for line in bound["lines"]] == ["training data", "held-out data"]
    assert bound["lines"][0]["x"] == [1, 2] and kl["kind"] == "curves"
    assert bound["lines"][1]["y"][1] == pytest.approx(-model.history[1]["validation_nll"], abs=5e-4)
    assert kl["lines"][0]["y"][0] == pytest.approx(model.history[0]["latent_kl"], abs=5e-4)
    assert curves([]) == []


def test_an_autoencoder_has_no_kl_to_show_and_no_page():
    networks = nets.mlp_encoder((8, 8), 3, (8,)), nets.mlp_decoder(3, 64, (8,))
    plain = Autoencoder(*networks, 3, "continuous_bernoulli").fit(DIGITS, epochs=1, progress=False)
    assert len(curves(plain.history)) == 1
    with pytest.raises(SettingError, match="use reconstructions"):
        page(plain, DIGITS)  # pyright: ignore


def test_a_page_has_numbers_and_all_pictures(model):
    flat = fitted(latent=2)
    results = page(model, DIGITS[:90], DIGITS[90:], LABELS[90:], flat, "Digits", k=4, limit=20)
    json.dumps(results, allow_nan=False)
    numbers, views = results["tasks"]
    assert [row["method"] for row in numbers["rows"]] == [
        "training data",
        "test data",
        "test data, two latent variables",
    ]
    assert [row["count"] for row in numbers["rows"]] == [20, 20, 20]
    test = numbers["rows"][1]
    chosen = DIGITS[90:][(np.arange(20) * 30) // 20]
    assert test["elbo"] == pytest.approx(float(model.elbo(chosen).mean()), abs=1e-3)
    assert test["latent_kl"] == pytest.approx(float(model.latent_kl(chosen).mean()), abs=1e-3)
    assert test["log_marginal"] == pytest.approx(
        float(model.log_marginal(chosen, 4).mean()), abs=1e-3
    )
    active = int((model.encode(chosen).mean.var(0, correction=0) > 0.01).sum())
    assert test["active"] == f"{active} of 3"
    titles = [entry["title"] for entry in views["mosaic"]]
    assert len(titles) == 5 and titles[:2] == [
        "Reconstructions of training data",
        "Reconstructions of test data",
    ]
    assert "second model" in views["mosaic"][-1]["caption"] and len(views["scatter"]) == 2
    assert "mle in 2 epochs" in results["subtitle"] and "8 x 8" in results["subtitle"]
    assert "Digits" in render(results)


def test_a_model_with_two_variables_is_its_own_manifold_and_test_data_are_optional():
    results = page(fitted(latent=2), DIGITS, k=2, limit=10)
    _, views = results["tasks"]
    assert (
        views["mosaic"][-1]["title"] == "The latent space of two variables"
        and len(views["scatter"]) == 1
    )
    assert len(views["mosaic"]) == 4 and len(results["tasks"][0]["rows"]) == 1


def test_what_is_no_image_gets_no_pictures_and_the_page_says_so():
    rows = DIGITS.reshape(-1, 64)
    flat = fitted(rows, latent=2)
    views = page(flat, rows, k=2, limit=10)["tasks"][1]
    assert views["mosaic"] == [] and "are no images" in views["description"] and views["scatter"]
    shown = page(flat, rows, k=2, limit=10, image_shape=(8, 8))["tasks"][1]
    assert len(shown["mosaic"]) == 4 and not shown["description"]


def test_data_that_leave_the_unit_interval_are_shown_in_their_own_range():
    x = 4 * DIGITS - 2
    views = page(fitted(x, likelihood="gaussian"), x, k=2, limit=10)["tasks"][1]
    same = page(fitted(DIGITS), DIGITS, k=2, limit=10)["tasks"][1]
    data = 10 * 64 * 4 // 3  # base64 characters of the first row, which is data
    assert views["mosaic"][0]["pixels"][: data - 4] == same["mosaic"][0]["pixels"][: data - 4]


@pytest.mark.parametrize(("posterior", "latent"), [("full", 3), ("flow", 3), ("categorical", 2)])
def test_every_kind_of_code_has_a_page(posterior, latent):
    pytest.importorskip("zuko") if posterior == "flow" else None
    results = page(fitted(posterior=posterior, latent=latent), DIGITS, k=2, limit=10)
    assert len(results["tasks"][1]["mosaic"]) == 3


def test_random_weights_have_a_page():
    results = page(fitted(method="vi"), DIGITS[:20], k=2, limit=10)
    assert "Fitted by vi" in results["subtitle"]
