"""Tests of the recipes: every method has one that can be made, or a reason why not."""

import json

import pytest

from credo.methods import make_method, methods
from credo_reproduce import uci_recipes
from credo_reproduce.uci_candidates import BATCH, Candidate, Recipe, Start
from credo_reproduce.uci_recipes import NOT_APPLICABLE, RECIPES, applicable, recipe

PASSED = {"lr", "batch_size", "epochs"}  # to fit, not to the method


def test_every_method_has_a_recipe_or_a_reason():
    assert set(applicable()) | set(NOT_APPLICABLE) == set(methods.names())
    assert not set(RECIPES) & set(NOT_APPLICABLE)
    assert set(RECIPES) | set(NOT_APPLICABLE) <= set(methods.names())  # no name is misspelt
    assert all(reason and not reason.endswith(".") for reason in NOT_APPLICABLE.values())


@pytest.mark.parametrize("method", applicable())
def test_candidates_can_be_made(method):
    """Settings exist and are in range, labels differ, and only what takes epochs is given steps."""
    found = recipe(method)
    labels = [candidate.label for candidate in found.candidates]
    assert len(set(labels)) == len(labels) >= 1 and 0 < found.trial <= 1
    for candidate in found.candidates:
        for effort in (1.0, 0.01):
            given = candidate.arguments(500, effort)
            make_method(method, {k: v for k, v in given.items() if k not in PASSED})
            assert ("epochs" in given) == methods[method].takes_epochs
        if candidate.start is not None:
            make_method(
                candidate.start.method,
                {k: v for k, v in candidate.start.settings.items() if k not in PASSED},
            )
            assert "init" in methods[method].__dataclass_fields__


def test_the_best_known_methods_have_recipes_of_their_own():
    for name in (
        "deep_ensemble",
        "mc_dropout",
        "concrete_dropout",
        "vi",
        "last_layer",
        "swag",
        "sghmc",
        "hmc",
        "map",
    ):
        assert name in RECIPES


def test_a_newcomer_joins_without_a_line_here(monkeypatch):
    """A method registered later: descent takes its own learning rate, a sampler its own settings
    from a MAP fit.
    """
    monkeypatch.setattr(uci_recipes, "RECIPES", {})
    descent, sampler, other = recipe("map"), recipe("hmc"), recipe("annealing")
    assert (
        descent.candidates[0].settings == {"lr": methods["map"].lr} and len(descent.candidates) > 1
    )
    assert sampler.candidates[0].start is not None and sampler.candidates[0].batch is None
    assert other.candidates[0].start is None and len(other.candidates) == 1


def test_config_holds_everything_that_matters():
    base = Candidate("c", {"lr": 1e-2}, steps=10)
    others = [
        Candidate("c", {"lr": 2e-2}, steps=10),
        Candidate("c", {"lr": 1e-2}, steps=11),
        Candidate("c", {"lr": 1e-2}, steps=10, activation="tanh"),
        Candidate("c", {"lr": 1e-2}, steps=10, prior=uci_recipes.WIDE),
        Candidate("c", {"lr": 1e-2}, steps=10, likelihood=uci_recipes._varying()),
        Candidate("c", {"lr": 1e-2}, steps=10, batch=BATCH + 1),
        Candidate("c", {"lr": 1e-2}, steps=10, start=Start("map", 5)),
        Candidate("c", {"lr": 1e-2}, steps=10, start=Start("map", 5, widen=2.0)),
    ]
    texts = {json.dumps(candidate.config(), sort_keys=True) for candidate in [base, *others]}
    assert len(texts) == len(others) + 1
    assert Recipe((base,)).config() != Recipe((base,), trial=0.5).config()
    for name in applicable():
        json.dumps(recipe(name).config())
