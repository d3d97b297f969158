"""The public surface: names that users type, with the arguments they take.

A change here is a change for users: keep the old form working for a release, and say so in
CHANGELOG.md.
"""

import inspect
import types
from functools import reduce

import pytest
import torch

import credo

SIGNATURES = {
    "BNN": (
        "net, likelihood='categorical', prior=None, random='all', output=None, standardise='auto'"
    ),
    "BNN.fit": (
        "data, method='vi', *, epochs=None, batch_size=None, lr=None, num_data=None, "
        "validation=None, seed=0, device=None, run=None, progress=True, callbacks=(), "
        "max_seconds=None, strict=False, **settings"
    ),
    "BNN.plan": "data, method='vi', **arguments",
    "BNN.predict": (
        "x, num_samples=100, seed=0, batch_size=None, shortcut=None, source='posterior', "
        "vectorise=None"
    ),
    "BNN.functions": "x, n, seed=0, source='posterior'",
    "BNN.evaluate": "data, num_samples=100, seed=0, batch_size=None",
    "BNN.update": "data, **fit_settings",
    "BNN.objective": "data, num_samples=100, seed=0, precision=None",
    "BNN.log_weights": "data, num_samples=100, seed=0",
    "BNN.save": "path",
    "load": "path, net, prior=None, device=None, likelihood=None",
    "compare": "bnns, data, prior_odds=None, num_samples=1000, seed=0, evidence='elbo'",
    "posteriors.Posterior.sample": "n, seed=0",
    "posteriors.Posterior.mean": "",
    "posteriors.Posterior.log_prob": "params",
    "Predictive": "outputs, likelihood",
    "Predictive.interval": "level=0.9",
    "Predictive.quantile": "q",
    "Predictive.sample": "n=1, seed=0",
    "Predictive.log_prob": "y",
    "methods.names": "",
    "likelihoods.Gaussian": "std=None, num_outputs=None, initial_std=1.0",
    "likelihoods.Categorical": "num_classes=None",
    "nets.mlp": "in_features, hidden=(50, 50), out_features=1, activation='relu'",
    "nets.resnet": "outputs=10, depth=20, width=16, channels=3, norm='batch'",
    "nets.resnet50": "outputs=1000, channels=3, width=64",
    "nets.vgg": "outputs=10, width=1.0, channels=3, dropout=False",
    "nets.small_cnn": (
        "in_channels=1, outputs=10, widths=(8, 16), kernel_size=3, grid=2, batch_norm=False"
    ),
    "nets.lenet5_caffe": "outputs=10",
    "nets.lenet_300_100": "outputs=10",
    "nets.build": "name, **args",
    "data.load": "name",
    "metrics.tpr_at_fpr": "inside, outside, fpr=0.05",
    "compress.sparsity": "source",
    "compress.slim": "source, example, inputs=True",
    "compress.encode": "source, path, net=None, note='', step=1.0, levels=None",
    "compress.decode": "path, net",
    "compress.to_onnx": "source, path, example, num_samples=None, seed=0",
    "audit.reference": (
        "bnn, data, *, method='hmc', rows=None, num_chains=4, num_warmup=500, num_draws=500, "
        "seed=0, run=None, progress=True, device=None, **settings"
    ),
    "audit.compare": "bnn, reference, x, y=None, num_samples=None, seed=0",
    "tasks.distill.distill": (
        "teacher, student, data, *, inputs='training', noise=0.1, perturb=None, num_samples=None, "
        "likelihood=None, method='mle', epochs=None, batch_size=None, lr=None, test=None, seed=0, "
        "device=None, run=None, progress=True, callbacks=(), **settings"
    ),
    "generative.VAE": (
        "encoder, decoder, latent_dim, likelihood='bernoulli', *, posterior='diagonal', "
        "prior=None, random='all', weight_prior=None, binarise=False"
    ),
    "generative.VAE.elbo": "x, draws=1, samples=1, seed=0, batch_size=None",
    "generative.VAE.log_marginal": (
        "x, k=1000, samples=1, seed=0, batch_size=None, proposal='encoder'"
    ),
    "generative.VAE.sample": "n, seed=0, noise=False, samples=16",
    "generative.VAE.encode": "x, batch_size=None, seed=0",
    "generative.VAE.reconstruct": "x, samples=1, seed=0, batch_size=None",
}

PROPERTIES = {
    "BNN": "posterior standardised",
    "Predictive": "mean variance std probs label total aleatoric epistemic entropy num_samples "
    "mutual_information",
}

METHODS = """
    mle map vi exact weight_noise bbvi moments last_layer ivon fvi flow mc_dropout concrete_dropout
    gaussian_dropout variational_dropout sparse_vd group_normal_jeffreys group_horseshoe horseshoe
    structured_bp soft_weight_sharing variance_net metropolis hmc nuts tempering annealing
    importance sgld psgld sghmc csgmcmc svgd deep_ensemble bnn_ensemble snapshot swag multiswag
    mc_batchnorm stochastic laplace nngp dkl deep_gp vib
"""

SETTINGS = {
    "vi": {
        "posterior": "mean_field",
        "estimator": "local",
        "train_samples": 1,
        "init_std": 0.01,
        "init": "pretrained",
        "beta": 1.0,
        "kl_schedule": "constant",
        "compile": False,
    },
    "mc_dropout": {"p": 0.5},
    "laplace": {"structure": "kfac", "subset": "all"},
    "hmc": {"num_chains": 2, "num_warmup": 5, "num_draws": 5, "thin": 1},
    "deep_ensemble": {"num_members": 3},
}


def public(name):
    return reduce(getattr, name.split("."), credo)


def shown(signature):
    """Parameters as a user reads them: names and defaults, without annotations."""
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(inspect.Signature([p for p in bare if p.name != "self"]))[1:-1]


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_those_that_users_were_told(name):
    assert shown(inspect.signature(public(name))) == SIGNATURES[name]


@pytest.mark.parametrize("name", PROPERTIES)
def test_attributes_are_there(name):
    assert set(PROPERTIES[name].split()) <= set(dir(public(name)))


def test_a_new_model_has_an_empty_history():
    assert credo.BNN(torch.nn.Linear(1, 1), "gaussian").history == []


def test_methods_have_the_names_that_users_were_told():
    assert set(METHODS.split()) <= set(credo.methods.names())


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_have_the_names_that_users_were_told(name):
    assert credo.methods.make_method(name, SETTINGS[name]).name == name


def test_dir_shows_what_is_public_and_all_of_it_exists():
    assert dir(credo) == sorted(credo.__all__)
    assert all(getattr(credo, name) is not None for name in dir(credo))


def test_dir_of_methods_shows_methods_and_not_where_they_lie():
    shown = {name: getattr(credo.methods, name) for name in dir(credo.methods)}
    assert {"VI", "HMC", "Method", "make_method", "methods", "names"} <= set(shown)
    assert not any(isinstance(value, types.ModuleType) for value in shown.values())


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'credo' has no attribute 'BNNN'"):
        credo.BNNN  # noqa: B018
