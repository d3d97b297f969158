"""Runs that are killed, resumed, adopted, saved and loaded."""

import json

import pytest
import torch
from torch import nn
from zoo.classification import QUICK as CLASSIFY
from zoo.classification import classes, classifier
from zoo.latent import QUICK, binary, coder, real, vae

from credo import BNN
from credo.core.errors import RunError
from credo.engine import fit_job
from credo.generative import VAE, Autoencoder, load
from credo.generative.codes import Categorical, Flow
from credo.generative.priors import Mixture, Vamp
from credo.likelihoods import Gaussian, Pixels

CASES = {
    "diagonal": lambda: vae(),
    "learned noise": lambda: vae(Gaussian()),
    "noise per output": lambda: vae(Gaussian(num_outputs=6)),
    "fixed noise": lambda: vae(Gaussian(std=0.3)),
    "full": lambda: vae(posterior="full"),
    "flow": lambda: vae(posterior=Flow(2, transforms=1, hidden=4)),
    "categorical": lambda: vae(posterior=Categorical(2, 3)),
    "mixture": lambda: vae(prior=Mixture(2, 3)),
    "vamp": lambda: vae(prior=Vamp(2, 4)),
    "vamp of a flow": lambda: vae(posterior=Flow(2, hidden=4), prior=Vamp(2, 4)),
    "binarise": lambda: vae("bernoulli", binarise=True),
    "double": lambda: vae(dtype=torch.float64),
}


def data(name):
    return (
        torch.rand(40, 6)
        if name == "binarise"
        else real(dtype=torch.float64 if name == "double" else torch.float32)
    )


def coders(model):
    """Fresh networks of the same structure, with other values."""
    dtype = next(model.decoder.parameters()).dtype
    return coder(6, model.code.width, dtype=dtype, seed=8), coder(
        model.code.size, 6, dtype=dtype, seed=9
    )


def same(one, two, x):
    assert torch.equal(one.elbo(x, samples=2), two.elbo(x, samples=2))
    assert torch.equal(one.log_marginal(x, k=3, samples=2), two.log_marginal(x, k=3, samples=2))
    assert torch.equal(one.sample(5), two.sample(5)) and torch.equal(
        one.reconstruct(x), two.reconstruct(x)
    )


@pytest.mark.parametrize("method", ["mle", "vi"])
@pytest.mark.parametrize("name", CASES)
def test_everything_comes_back(name, method, tmp_path):
    torch.manual_seed(0)
    x = data(name)
    model = CASES[name]().fit(x, method, **QUICK | {"lr": 0.05})
    model.save(tmp_path / "model")
    back = load(tmp_path / "model", *coders(model))
    same(model, back, x)
    assert (
        type(back) is VAE
        and back.history == model.history
        and back.shape == model.shape
        and repr(back) == repr(model)
    )
    assert (
        back.code.arguments == model.code.arguments
        and back.prior.arguments == model.prior.arguments
    )
    back.save(tmp_path / "again")
    same(model, load(tmp_path / "again", *coders(model)), x)


def test_levels_come_back(tmp_path):
    x = torch.randint(0, 4, (40, 6))
    model = vae(Pixels(4), per=4).fit(x, **QUICK)
    model.save(tmp_path / "model")
    back = load(tmp_path / "model", coder(6, 4, seed=8), coder(2, 24, seed=9))
    assert torch.equal(back.elbo(x), model.elbo(x)) and back.likelihood.levels == 4


def test_an_autoencoder_comes_back(tmp_path):
    model = Autoencoder(coder(6, 2), coder(2, 6), 2, "gaussian").fit(real(), **QUICK)
    model.save(tmp_path / "model")
    back = load(tmp_path / "model", coder(6, 2, seed=8), coder(2, 6, seed=9))
    assert type(back) is Autoencoder and torch.equal(
        back.reconstruct(real()), model.reconstruct(real())
    )


def test_loading_leaves_the_networks_alone(tmp_path):
    model = vae().fit(real(), **QUICK)
    model.save(tmp_path / "model")
    encoder, decoder = coders(model)
    before = [p.clone() for net in (encoder, decoder) for p in net.parameters()]
    load(tmp_path / "model", encoder, decoder).elbo(real())
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            before, [p for net in (encoder, decoder) for p in net.parameters()], strict=True
        )
    )


def test_a_loaded_model_keeps_which_weights_are_random_and_their_prior(tmp_path):
    from torch.distributions import Normal

    make = {"random": "last", "weight_prior": Normal(0.0, 0.125)}
    model = vae(**make).fit(real(), "vi", **QUICK)
    model.save(tmp_path / "model")
    back = load(tmp_path / "model", coder(6, 4), coder(2, 6, seed=1)).fit(real(), "vi", **QUICK)
    assert set(back.bnn.random) == set(model.bnn.random)
    assert torch.equal(back.elbo(real()), model.elbo(real()))


def test_what_cannot_be_loaded(tmp_path):
    model = vae().fit(real(), **QUICK)
    model.save(tmp_path / "model")
    for encoder, decoder, words in (
        (
            coder(5, 4),
            coder(2, 6),
            r"'encoder\.0\.weight' of shape \[5, 6\]; this network has \[5, 5\]",
        ),
        (coder(6, 4), nn.Linear(2, 6), r"'decoder\.0\.weight'.*no such parameter"),
    ):
        with pytest.raises(RunError, match=words):
            load(tmp_path / "model", encoder, decoder)
    nets = coder(6, 4), coder(2, 6)
    with pytest.raises(RunError, match="holds no autoencoder"):
        load(tmp_path / "nothing", *nets)
    BNN(classifier()).fit(classes(), **CLASSIFY).save(tmp_path / "other")
    with pytest.raises(
        RunError, match="holds no autoencoder; expected a directory written by VAE.save"
    ):
        load(tmp_path / "other", *nets)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError):
        load(tmp_path / "file", *nets)


def test_networks_with_more_layers_than_were_fitted_are_refused(tmp_path):
    """Their extra weights would silently be whatever they were made with."""
    vae().fit(real(), **QUICK).save(tmp_path / "model")
    with pytest.raises(RunError, match="decoder.3.weight"):
        load(tmp_path / "model", coder(6, 4), nn.Sequential(*coder(2, 6), nn.Linear(6, 6)))


@pytest.mark.parametrize(
    "text",
    [
        '{"format": 1, "likelihood": "gaussian"}',
        '{"format": 1, "likelihood": {"config": {"kind": "VAE"}}}',
    ],
)
def test_a_damaged_config_is_refused_in_a_sentence(text, tmp_path):
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text(text)
    with pytest.raises(RunError):
        load(tmp_path / "odd", coder(6, 4), coder(2, 6))


def test_a_run_that_is_not_finished_is_not_loaded(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        vae().fit(real(), run=tmp_path / "run", callbacks=[stop_at(0)], **QUICK)
    with pytest.raises(RunError, match="not finished"):
        load(tmp_path / "run", coder(6, 4), coder(2, 6))


# --- runs -----------------------------------------------------------------------------------------


def stop_at(epoch):
    def stop(row):
        if row["epoch"] == epoch:
            raise KeyboardInterrupt

    return stop


def plain(history):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history]


RUNS = {
    "plain": ({}, {}),
    "warm-up": ({}, {"kl_schedule": "linear", "kl_warmup": 4}),
    "vamp": ({"prior": Vamp(2, 4)}, {}),
    "vi": ({}, {"method": "vi", "kl_schedule": "cosine", "kl_warmup": 5}),
    "iwae": ({"posterior": "full"}, {"bound": "iwae", "draws": 3, "gradient": "doubly"}),
    "mc_dropout": ({}, {"method": "mc_dropout", "estimator": "weights", "draws": 2}),
    "noise": ({"likelihood": Gaussian()}, {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_resumes_to_the_same_numbers(name, tmp_path, monkeypatch):
    monkeypatch.setattr(fit_job, "CHECKPOINT_SECONDS", 0.0)
    make, settings = RUNS[name]
    settings = QUICK | {"epochs": 6, "lr": 0.05} | settings
    whole = vae(**make).fit(real(), **settings)
    with pytest.raises(KeyboardInterrupt):
        vae(**make).fit(real(), run=tmp_path / "run", callbacks=[stop_at(3)], **settings)
    rest = vae(**make).fit(real(), run=tmp_path / "run", **settings)
    same(whole, rest, real())
    assert plain(rest.history) == plain(whole.history) and len(rest.history) == 6
    adopted = vae(**make).fit(real(), run=tmp_path / "run", **settings)
    same(whole, adopted, real())
    assert plain(adopted.history) == plain(whole.history)
    same(whole, load(tmp_path / "run", *coders(whole)), real())


def test_a_binarised_run_resumes_to_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(fit_job, "CHECKPOINT_SECONDS", 0.0)
    settings, x = QUICK | {"epochs": 5}, torch.rand(40, 6)
    whole = vae("bernoulli", binarise=True).fit(x, **settings)
    with pytest.raises(KeyboardInterrupt):
        vae("bernoulli", binarise=True).fit(
            x, run=tmp_path / "run", callbacks=[stop_at(2)], **settings
        )
    same(whole, vae("bernoulli", binarise=True).fit(x, run=tmp_path / "run", **settings), x)


OTHER = {
    "bound": (lambda: vae(), {"bound": "iwae", "draws": 2}, "bound"),
    "beta": (lambda: vae(), {"beta": 2.0}, r"bound\.beta: there 1\.0, now 2\.0"),
    "warm-up": (
        lambda: vae(),
        {"kl_schedule": "linear", "kl_warmup": 1},
        r"bound\.kl_warmup: there 0, now 1",
    ),
    "prior": (lambda: vae(prior=Mixture(2, 3)), {}, r"prior\.name: there 'normal', now 'mixture'"),
    "code": (lambda: vae(posterior="full"), {}, r"posterior\.name: there 'diagonal', now 'full'"),
    "likelihood": (lambda: vae(Gaussian(std=0.2)), {}, r"data\.config"),
    "lr": (lambda: vae(), {"lr": 0.5}, r"fit\.lr: there 0\.01, now 0\.5"),
    "epochs": (lambda: vae(), {"epochs": 9}, r"fit\.epochs"),
    "method": (lambda: vae(), {"method": "vi"}, r"method: there 'mle', now 'vi'"),
    "data": (lambda: vae(), {"x": real(seed=5)}, r"fit\.data"),
    "random": (lambda: vae(random="last"), {}, "random"),
    "kind": (
        lambda: Autoencoder(coder(6, 2), coder(2, 6), 2, "gaussian"),
        {},
        r"kind: there 'VAE', now 'Autoencoder'",
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_run_is_refused_by_the_name_of_what_differs(name, tmp_path):
    vae().fit(real(), run=tmp_path / "run", **QUICK)
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    make, settings, words = OTHER[name]
    settings = QUICK | settings
    with pytest.raises(RunError, match=words):
        make().fit(settings.pop("x", real()), run=tmp_path / "run", **settings)
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}


def test_nothing_is_pickled_and_the_config_says_what_it_is(tmp_path):
    vae("bernoulli", prior=Vamp(2, 4)).fit(binary(), run=tmp_path / "run", **QUICK)
    config = json.loads((tmp_path / "run" / "config.json").read_text())["likelihood"]["config"]
    assert (
        config["kind"] == "VAE"
        and config["shape"] == [6]
        and config["prior"] == {"name": "vamp", "components": 4}
    )
    assert {p.suffix for p in (tmp_path / "run").iterdir()} == {".json", ".jsonl", ".safetensors"}
