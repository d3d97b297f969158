"""What every variational method shares: the weight of its KL, sampled KLs, checks of family against
estimator.
"""

import math

import pytest
import torch
from zoo.regression import bnn, problem

from credo.core.errors import SettingError
from credo.methods import methods
from credo.methods.variational.parts.settings import DensitySettings

X, Y, _ = problem()
NAMES = [name for name, kind in methods.items() if issubclass(kind, DensitySettings)]
FREE = [
    name for name in NAMES if name != "ivon"
]  # whose optimizer needs the KL in closed form, and which says so


def fit(name, **how):
    small = {
        k: v
        for k, v in methods[name].conformance_settings.items()
        if k not in ("epochs", "batch_size")
    }
    return bnn().fit(
        (X, Y), name, **(small | {"epochs": 4, "batch_size": 8, "progress": False} | how)
    )


def test_the_registry_has_them():
    assert {
        "vi",
        "bbvi",
        "moments",
        "last_layer",
        "flow",
        "ivon",
        "weight_noise",
        "bnn_ensemble",
    } <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_beta_is_accepted(name):
    rows = fit(name, beta=0.3).history
    assert len(rows) == 4 and all(math.isfinite(row["elbo"]) for row in rows)
    assert all(abs(row["elbo"] + row["nll"] + row["kl"]) < 1e-6 for row in rows), (
        "reported with weight 1 whatever beta is"
    )


@pytest.mark.parametrize("schedule", ["linear", "cosine", "blundell"])
@pytest.mark.parametrize("name", NAMES)
def test_schedules_are_accepted(name, schedule):
    assert len(fit(name, kl_schedule=schedule, kl_warmup=2).history) == 4


@pytest.mark.parametrize(
    "name", ["vi", "bbvi", "moments", "flow", "last_layer", "bnn_ensemble", "ivon"]
)
def test_a_warm_up_changes_the_course(name):
    plain, warm = fit(name), fit(name, kl_schedule="linear", kl_warmup=4)
    assert (
        plain.history[0]["elbo"] != warm.history[0]["elbo"]
        or plain.history[-1]["elbo"] != warm.history[-1]["elbo"]
    )


@pytest.mark.parametrize("name", [name for name in FREE if name != "moments"])
def test_a_sampled_kl_is_accepted(name):
    closed, sampled = fit(name), fit(name, kl="sampled")
    assert len(sampled.history) == 4
    if name not in ("flow",):  # whose KL is always sampled
        assert closed.history[0]["kl"] != sampled.history[0]["kl"]


def test_the_optimizer_that_holds_the_prior_says_so():
    with pytest.raises(
        SettingError, match="ivon: kl='sampled' is not valid; its optimizer needs the closed form"
    ):
        fit("ivon", kl="sampled")


def test_autocast_runs():
    x, y = X.float(), Y.float()
    fitted = bnn(dtype=torch.float32).fit((x, y), "vi", autocast=True, epochs=2, progress=False)
    assert len(fitted.history) == 2


def test_a_family_without_a_gradient_under_the_estimator_is_refused_before_training():
    with pytest.raises(SettingError, match="has no gradient for the discrete family"):
        bnn().fit((X, Y), "vi", posterior="discrete", epochs=1, progress=False)
