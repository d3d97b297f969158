"""What the facade refuses, each in one clear sentence."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.classification import QUICK, classes, classifier
from zoo.regression import bnn, problem

from credo import BNN
from credo.core.errors import CredoError, DataError, NetworkError, RunError, SettingError


def image_net():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 3))


@pytest.mark.parametrize(
    ("net", "x", "y", "kind", "words"),
    [
        (
            image_net,
            torch.randn(6, 1, 9, 9),
            torch.arange(6) % 3,
            NetworkError,
            r"cannot take inputs of shape \[\(2, 1, 9, 9\)\]",
        ),
        (
            classifier,
            torch.randn(6, 4),
            torch.arange(6),
            DataError,
            "gives 3 outputs per example, but the categorical likelihood needs 6",
        ),
        (classifier, torch.full((6, 4), float("nan")), torch.arange(6) % 3, DataError, "NaN"),
        (classifier, torch.full((6, 4), float("inf")), torch.arange(6) % 3, DataError, "nfinit"),
        (classifier, torch.randn(6, 4), torch.zeros(6).long(), DataError, "at least two classes"),
        (classifier, torch.randn(6, 4), torch.arange(5) % 3, DataError, "6.*5|5.*6"),
        (classifier, torch.randn(6, 4), torch.arange(6) - 1, DataError, "-1"),
        (classifier, torch.randn(6, 4), torch.rand(6), DataError, "whole|integer|class"),
        (
            classifier,
            torch.randn(0, 4),
            torch.zeros(0).long(),
            DataError,
            "empty|no example|at least one",
        ),
    ],
)
def test_bad_data_is_refused_in_one_clear_sentence(net, x, y, kind, words):
    with pytest.raises(kind, match=words) as caught:
        BNN(net()).fit((x, y), **QUICK)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"epochs": 0}, "epochs=0 is not valid; expected a whole number above 0"),
        ({"epochs": 1.5}, "epochs=1.5"),
        ({"lr": -1.0}, "lr=-1.0 is not valid"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"method": "vii"}, "Unknown method 'vii'. Did you mean 'vi'"),
        ({"betas": 1}, "no setting 'betas'. Did you mean 'beta'"),
        ({"learning_rate": 1.0}, "'vi' has no setting 'learning_rate'. Did you mean 'lr'"),
        ({"n_epochs": 1}, "Did you mean 'epochs'"),
        ({"random_state": 1}, "Did you mean 'seed'"),
        ({"n_samples": 1}, "Did you mean 'train_samples'"),
        ({"weight_decay": 1e-4}, "Weight decay is the prior"),
        ({"prior": None}, "The prior belongs to the model"),
    ],
)
def test_bad_settings_are_named(how, words):
    with pytest.raises(SettingError, match=words):
        BNN(classifier()).fit(classes(), **(QUICK | how))


def test_construction_errors():
    with pytest.raises(SettingError, match="Did you mean 'categorical'"):
        BNN(classifier(), "categoricl")
    with pytest.raises(NetworkError, match=r"Expected a torch\.nn\.Module"):
        BNN(lambda x: x)
    with pytest.raises(SettingError, match="matches no parameter"):
        BNN(classifier(), random="9.*")
    with pytest.raises(CredoError, match="no posterior yet; call fit"):
        BNN(classifier()).predict(torch.zeros(1, 4))


def test_a_prior_without_a_pattern_for_some_parameter_is_named():
    with pytest.raises(SettingError, match=r"No prior pattern matches"):
        BNN(classifier(), prior={"0.*": Normal(0.0, 1.0)}).fit(classes(), **QUICK)


def test_predicting_bad_inputs():
    x, y = classes()
    fitted = BNN(classifier()).fit((x, y), **QUICK)
    with pytest.raises(DataError, match="NaN"):
        fitted.predict(torch.full((2, 4), float("nan")))
    with pytest.raises(NetworkError, match=r"cannot take inputs of shape \[\(2, 5\)\]"):
        fitted.predict(torch.zeros(2, 5))


def test_predicting_with_a_name_of_another_library():
    x, y = classes()
    fitted = BNN(classifier()).fit((x, y), **QUICK)
    with pytest.raises(SettingError, match=r"predict has no argument 'n_samples'. Did you mean"):
        fitted.predict(x, n_samples=3)
    with pytest.raises(SettingError, match="samples and num_samples are the same"):
        fitted.evaluate((x, y), samples=3, num_samples=3)
    with pytest.raises(SettingError, match="'batchsize'. Did you mean 'batch_size'"):
        fitted.update((x, y), batchsize=3)


def test_a_run_is_not_resumed_with_other_data(tmp_path):
    x, y, _ = problem()
    bnn().fit((x, y), epochs=2, run=tmp_path / "run", progress=False)
    with pytest.raises(RunError, match="data"):
        bnn().fit((x, y + 1.0), epochs=2, run=tmp_path / "run", progress=False)
