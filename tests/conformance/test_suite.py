"""Every registered method against every check of the shipped suite, and the suite against methods
made to fail it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from credo.conformance import check, checks
from credo.core.settings import setting
from credo.engine.fit_job import FitJob
from credo.engine.model import Fitted, Model
from credo.methods import VI, methods


@pytest.mark.parametrize("name", checks.names())
@pytest.mark.parametrize("method", methods.names())
def test_method_conforms(method: str, name: str) -> None:
    (result,) = check(method, only=name)
    if result.status == "excepted":
        assert result.reason
        pytest.skip(f"declared exception: {result.reason}")
    assert result.status == "passed", result.reason


@pytest.mark.parametrize("method", methods.names())
def test_exceptions_name_checks_or_traits(method: str) -> None:
    assert set(methods[method].exceptions) <= {*checks.names(), "classification"}


def _spoiled(monkeypatch: pytest.MonkeyPatch, spoil: Any) -> None:
    kind = methods["vi"]
    original = kind.fit

    def fit(self: Any, model: Model, fit_job: FitJob) -> Fitted:
        fitted = original(self, model, fit_job)
        with torch.no_grad():
            spoil(model, fitted)
        return fitted

    monkeypatch.setattr(kind, "fit", fit)


def _shift(model: Model, fitted: Fitted) -> None:
    fitted.posterior.factors[0].flat_mean.add_(0.1)


def _widen(model: Model, fitted: Fitted) -> None:
    fitted.posterior.factors[0].raw_std.add_(0.3)


def _touch_network(model: Model, fitted: Fitted) -> None:
    next(model.net.parameters()).add_(1.0)


def _touch_rng(model: Model, fitted: Fitted) -> None:
    torch.rand(1)


def _forget_seed(model: Model, fitted: Fitted) -> None:
    fitted.posterior.factors[0].flat_mean.add_(torch.randn(()))


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (_shift, "conjugate_mean"),
        (_widen, "conjugate_covariance"),
        (_touch_network, "global_state"),
        (_touch_rng, "global_state"),
        (_forget_seed, "seeded"),
    ],
)
def test_suite_catches(monkeypatch: pytest.MonkeyPatch, spoil: Any, name: str) -> None:
    _spoiled(monkeypatch, spoil)
    (result,) = check("vi", only=name)
    assert result.status == "failed", f"{name} did not notice"


def test_wrong_kl_scale_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A KL divided by the batch, the rivals' slip, moves the variances far enough to fail."""
    kind = methods["vi"]
    original = kind.fit
    monkeypatch.setattr(
        kind,
        "fit",
        lambda self, model, fit_job: original(replace(self, beta=1 / 40), model, fit_job),
    )
    (result,) = check("vi", only="conjugate_mean")
    variance = check("vi", only="conjugate_covariance")[0]
    assert "failed" in (result.status, variance.status)


@dataclass(frozen=True)
class Named(VI):
    """A method with free text among its settings, and text among choices."""

    layers: Any = setting("last", "Any pattern.", kind=(str, tuple))
    mode: Any = setting("a", "A choice or a mapping.", kind=(str, dict), choices=("a", "b"))


def test_free_text_has_no_bad_value_but_choices_do() -> None:
    assert check(Named, only="settings")[0].status == "passed"


@dataclass(frozen=True)
class Loose(VI):
    """A setting whose choices are not checked."""

    def __post_init__(self) -> None:
        """Nothing is validated."""


def test_a_setting_that_takes_anything_is_caught() -> None:
    assert check(Loose, only="settings")[0].status == "failed"


@dataclass(frozen=True)
class FullVI(VI):
    """VI with the family that contains the exact posterior; eight draws a step keep the noise of
    its gradients small.
    """

    target: ClassVar[str] = "exact"
    tolerance: ClassVar[float] = 0.1
    conformance_settings: ClassVar[dict[str, Any]] = {
        "epochs": 800,
        "batch_size": None,
        "lr": 0.02,
        "posterior": "full",
        "estimator": "weights",
        "train_samples": 8,
    }


@pytest.mark.parametrize("name", ["conjugate_mean", "conjugate_covariance"])
def test_full_covariance_vi_reaches_the_exact_posterior(name: str) -> None:
    (result,) = check(FullVI, only=name)
    assert result.status == "passed", result.reason
