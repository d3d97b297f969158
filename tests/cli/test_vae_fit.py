import json

import numpy as np
import pytest

QUICK = ["--epochs", 1, "--hidden", "6", "--latent", 2, "--limit", 100]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Only the embedded data sets."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CREDO_DATA", raising=False)
    monkeypatch.delenv("CREDO_DATA_URL", raising=False)


def description(shell, run="run"):
    return json.loads((shell.folder / run / "vae.json").read_text())


def test_a_run_holds_the_networks_the_data_and_the_fit(shell):
    result = shell("vae", "fit", "digits", "--seed", 4, *QUICK)
    assert result.exit_code == 0, (result.stderr, result.exception)
    held = description(shell)
    assert held["encoder"] == {
        "name": "mlp_encoder",
        "args": {"shape": [8, 8], "outputs": 4, "hidden": [6]},
    }
    assert held["data"] == {"source": "digits", "size": None, "labels": None, "limit": 100}
    assert held["fit"] == {"epochs": 1, "batch_size": 100, "lr": 0.001, "seed": 4}
    assert "continuous_bernoulli, because the pixels are grey" in result.stderr
    assert result.stderr.strip().endswith("Next: credo vae report run")
    assert "validation_nll" in (shell.folder / "run" / "history.jsonl").read_text()


def test_the_same_seed_gives_the_same_posterior(shell):
    for out in ("a", "b"):
        assert shell("vae", "fit", "digits", "--out", out, *QUICK).exit_code == 0
    one, other = ((shell.folder / out / "posterior.safetensors").read_bytes() for out in ("a", "b"))
    assert one == other


@pytest.mark.parametrize(
    ("words", "likelihood"),
    [
        (["--binarise"], "bernoulli"),
        (["--likelihood", "pixels"], "pixels"),
        (["--likelihood", "heteroscedastic"], "heteroscedastic"),
        (["--posterior", "categorical"], "continuous_bernoulli"),
        (["--posterior", "full", "--prior", "mixture"], "continuous_bernoulli"),
        (["--set", "bound=iwae", "--set", "draws=2", "--set", "beta=0.5"], "continuous_bernoulli"),
        (["--method", "vi", "--set", "estimator=weights"], "continuous_bernoulli"),
        (["--net", "conv", "--hidden", "2,3,5"], "continuous_bernoulli"),
    ],
)
def test_every_kind_of_model_can_be_fitted(shell, words, likelihood):
    result = shell("vae", "fit", "digits", *QUICK, *words)
    assert result.exit_code == 0, (result.stderr, result.exception)
    config = json.loads((shell.folder / "run" / "config.json").read_text())
    about = config["likelihood"]["config"]
    assert about["data"]["name"] == likelihood and about["shape"] == [8, 8]
    given = dict(word.split("=") for word in words if "=" in word)
    assert all(
        str(about["bound"][key]) == value for key, value in given.items() if key in about["bound"]
    )


def test_black_and_white_arrays_choose_bernoulli_and_flat_rows_need_a_size(shell):
    x = (np.random.default_rng(0).random((60, 12)) < 0.5).astype(np.uint8)
    np.save("a.npy", x)
    result = shell("vae", "fit", "a.npy", "--size", "3,4", *QUICK)
    assert result.exit_code == 0 and "bernoulli, because all pixels are 0 or 1" in result.stderr
    assert description(shell)["encoder"]["args"]["shape"] == [3, 4]
    assert description(shell)["data"]["source"] == str(shell.folder / "a.npy")
    assert shell("vae", "fit", "a.npy", "--out", "rows", *QUICK).exit_code == 0
    assert description(shell, "rows")["encoder"]["args"]["shape"] == [12]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "No data set 'nothing'"),
        (["wine"], "expected pixels"),
        (["no.npy"], "no.npy does not exist"),
        (["digits", "--net", "con"], "Did you mean 'conv'"),
        (["digits", "--hidden", "5,a"], "--hidden '5,a'"),
        (["digits", "--size", "8"], "expected HEIGHT,WIDTH"),
        (["digits", "--likelihood", "bernouli"], "Did you mean 'bernoulli'"),
        (["digits", "--likelihood", "bernoulli"], "--binarise draws 0 and 1"),
        (["digits", "--likelihood", "gaussian", "--binarise"], "use 'bernoulli'"),
        (["digits", "--posterior", "diag"], "Did you mean 'diagonal'"),
        (["digits", "--posterior", "point"], "plain autoencoder"),
        (["digits", "--prior", "uniform"], "it has normal, mixture, vamp"),
        (["digits", "--set", "bta=1"], "Did you mean 'beta'"),
        (["digits", "--set", "beta=-1"], "beta=-1"),
        (["digits", "--set", "kl_warmup=2"], "kl_schedule"),
        (["digits", "--method", "vii"], "Did you mean 'vi'"),
        (["digits", "--method", "vi", "--set", "estimator=locl"], "Did you mean 'local'"),
        (["digits", "--lr", "-1"], "lr=-1.0"),
        (["digits", "--device", "tpu"], "expected 'cpu' or 'cuda'"),
        (["digits", "--resume"], "holds no run to resume"),
    ],
)
def test_what_cannot_be_fitted_is_one_sentence_and_leaves_nothing(shell, words, message):
    assert message in shell.refuses("vae", "fit", *words)


def test_a_used_directory_is_only_continued_when_asked_and_unchanged(shell):
    words = ["vae", "fit", "digits", *QUICK]
    assert shell(*words).exit_code == 0
    assert "pass --resume" in shell.refuses(*words)
    assert shell(*words, "--resume").exit_code == 0
    assert "resume with the same options" in shell.refuses(*words, "--resume", "--seed", 5)
    result = shell(*words, "--resume", "--set", "beta=2")
    assert result.exit_code == 2 and "holds another run" in result.stderr


def test_a_failed_fit_leaves_nothing(shell):
    result = shell("vae", "fit", "digits", *QUICK, "--method", "exact")
    assert result.exit_code == 2 and "Traceback" not in result.stderr
    assert not (shell.folder / "run").exists()
