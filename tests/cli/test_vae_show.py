import json

import numpy as np
import pytest

QUICK = ["--epochs", 1, "--hidden", "6", "--limit", 100]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Only the embedded data sets."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CREDO_DATA", raising=False)
    monkeypatch.delenv("CREDO_DATA_URL", raising=False)


@pytest.fixture
def fitted(shell):
    """A run on the digits with three latent variables, and what else is said."""

    def fit(*words, data="digits", out="run"):
        result = shell("vae", "fit", data, "--out", out, "--latent", 3, *QUICK, *words)
        assert result.exit_code == 0, (result.stderr, result.exception)
        return shell

    return fit


def test_samples_are_a_picture_or_numbers(fitted):
    shell = fitted("--likelihood", "pixels")
    result = shell("vae", "sample", "run", "--n", 5)
    assert result.exit_code == 0 and "5 samples of shape 8 x 8" in result.stderr
    assert (shell.folder / "samples.png").read_bytes().startswith(b"\x89PNG")
    for name, seed, noise in [("a", 1, []), ("b", 1, []), ("c", 2, []), ("d", 1, ["--noise"])]:
        assert (
            shell(
                "vae", "sample", "run", "--n", 5, "--seed", seed, "--out", f"{name}.npy", *noise
            ).exit_code
            == 0
        )
    a, b, c, d = (np.load(shell.folder / f"{name}.npy") for name in "abcd")
    assert a.shape == (5, 8, 8) and a.min() >= 0 and a.max() <= 1
    assert np.array_equal(a, b) and not np.array_equal(a, c)
    assert not np.array_equal(a, d) and np.allclose(d * 16, (d * 16).round(), atol=1e-5)


def test_samples_of_what_is_no_image_are_numbers_only(fitted):
    np.save("a.npy", np.random.default_rng(0).random((60, 12)))
    shell = fitted(data="a.npy")
    assert "write numbers with --out samples.npy" in shell.refuses("vae", "sample", "run")
    assert shell("vae", "sample", "run", "--out", "s.npy").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none"], "none does not exist; expected a run directory written by credo vae fit"),
        (["run", "--out", "a.jpg"], "expected .png or .npy"),
        (["run", "--out", "deep/a.png"], "create it first"),
    ],
)
def test_what_cannot_be_sampled(fitted, words, message):
    assert message in fitted().refuses("vae", "sample", *words)


def test_a_report_has_numbers_pictures_and_a_second_model_for_the_manifold(fitted):
    shell = fitted()
    result = shell("vae", "report", "run", "--draws", 2)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "active variables" in result.stdout and "Report: run/report.html" in result.stdout
    assert "Fitting a second model with two latent variables for 1 epoch;" in result.stderr
    results = json.loads((shell.folder / "run" / "results.json").read_text())
    numbers, views = results["tasks"]
    assert len(numbers["rows"]) == 3 and len(views["mosaic"]) == 5
    assert {group["name"] for group in views["scatter"][0]["groups"]} == {
        str(kind) for kind in range(10)
    }


def test_the_second_model_can_be_left_out_and_the_data_and_labels_be_others(fitted):
    shell = fitted()
    rng = np.random.default_rng(0)
    np.save("rows.npy", rng.random((40, 64)))
    np.save("y.npy", np.array(["odd", "even"])[np.arange(40) % 2])
    words = [
        "vae",
        "report",
        "run",
        "rows.npy",
        "--labels",
        "y.npy",
        "--no-manifold",
        "--draws",
        2,
        "--out",
        "deep/page.html",
    ]
    result = shell(*words)
    assert result.exit_code == 0, (result.stderr, result.exception)
    results = json.loads((shell.folder / "deep" / "results.json").read_text())
    assert results["title"].endswith("rows.npy") and len(results["tasks"][1]["mosaic"]) == 4
    assert {group["name"] for group in results["tasks"][1]["scatter"][0]["groups"]} <= {
        "odd",
        "even",
    }
    assert "page.html" in result.stdout and (shell.folder / "deep" / "page.html").is_file()


def test_a_report_on_rows_says_that_they_are_no_images(fitted):
    np.save("a.npy", np.random.default_rng(0).random((60, 12)))
    shell = fitted(data="a.npy")
    assert shell("vae", "report", "run", "--draws", 2).exit_code == 0
    assert "are no images" in (shell.folder / "run" / "report.html").read_text()


def test_what_cannot_be_reported(fitted):
    shell = fitted()
    np.save("a.npy", np.zeros((5, 9, 9), np.uint8))
    np.save("three.npy", np.zeros((5, 3, 8, 8), np.uint8))
    np.save("y.npy", np.arange(3))
    for words, message in [
        (["none"], "none does not exist"),
        (["run", "--out", "a.txt"], "expected .html"),
        (["run", "a.npy"], "has images of 9 x 9"),
        (["run", "three.npy"], "The images have shape 3 x 8 x 8; run was fitted to 8 x 8"),
        (["run", "wine"], "which are no images of 8 x 8"),
        (["run", "--labels", "y.npy"], "one label for each of the 1797 images"),
        (["run", "--device", "tpu"], "expected 'cpu' or 'cuda'"),
    ]:
        assert message in shell.refuses("vae", "report", *words)
