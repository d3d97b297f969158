"""How every method is fitted to the UCI regression sets: its candidates, among which a validation
part of the training split chooses.

A recipe with one candidate needs no choice. Samplers start from a short variational or MAP fit with
the same likelihood and prior, so that their warm-up is not spent on finding the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributions import Normal

from credo.likelihoods import Heteroscedastic, Likelihood
from credo.methods import methods
from credo.priors import FanIn, Learned, Prior
from credo_reproduce.uci_candidates import Candidate, Recipe, Start

# --- likelihoods and priors that candidates share -------------------------------------------------


def _varying() -> Likelihood:
    """Noise that depends on x."""
    return Heteroscedastic(min_std=1e-3)


def _learned() -> Prior:
    """A width for every weight matrix and bias, learned with the posterior."""
    return Learned(Normal(0.0, 1.0), learn=("scale",), per="tensor")


NARROW, MIDDLE, WIDE = FanIn(1.0), FanIn(2.0), FanIn(4.0)

# --- recipes --------------------------------------------------------------------------------------


def _descent(settings: Mapping[str, Any], **common: Any) -> Recipe:
    """Few steps, which is what keeps a point from overfitting small sets, or many; noise of one
    size, or varying with x.
    """
    return Recipe(
        (
            Candidate("short", settings, prior=NARROW, steps=300, **common),
            Candidate("long", settings, prior=WIDE, steps=3000, **common),
            Candidate(
                "short, varying noise",
                settings,
                likelihood=_varying(),
                prior=NARROW,
                steps=300,
                **common,
            ),
            Candidate(
                "long, varying noise",
                settings,
                likelihood=_varying(),
                prior=NARROW,
                steps=3000,
                **common,
            ),
        )
    )


def _rates(settings: Mapping[str, Any], low: float, high: float) -> Recipe:
    """A low and a high drop rate of the hidden layer, each with noise of one size and varying with
    x.
    """
    return Recipe(
        (
            Candidate(f"p = {low:g}", {**settings, "p": low}, prior=WIDE, steps=2000),
            Candidate(f"p = {high:g}", {**settings, "p": high}, prior=WIDE, steps=2000),
            Candidate(
                f"p = {low:g}, varying noise",
                {**settings, "p": low},
                likelihood=_varying(),
                prior=MIDDLE,
                steps=2000,
            ),
            Candidate(
                f"p = {high:g}, varying noise",
                {**settings, "p": high},
                likelihood=_varying(),
                prior=MIDDLE,
                steps=1000,
            ),
        )
    )


def _dynamics(settings: Mapping[str, Any], *rates: float) -> Recipe:
    """Stochastic-gradient samplers at several steps; too large a one fails and is not chosen."""
    start = Start("vi", 1000, {"lr": 0.02}, drawn=True)
    common: dict[str, Any] = {"prior": MIDDLE, "batch": 256, "samples": 400, "start": start}
    return Recipe(
        tuple(Candidate(f"lr = {lr:g}", {**settings, "lr": lr}, **common) for lr in rates),
        trial=0.5,
    )


def _trajectories(settings: Mapping[str, Any]) -> Recipe:
    """Hamiltonian samplers. Noise of one size is learned, noise that varies with x is sampled with
    the network that gives it.

    A MAP fit is a good start where there are many data for every weight; a variational fit where a
    point could pass through all of them, a short one where noise may vanish at single data: chains
    hardly leave such places.
    """
    point = Start("map", 1000, {"lr": 0.02}, widen=2.0)
    broad = Start("vi", 1500, {"lr": 0.02}, drawn=True)
    common: dict[str, Any] = {"batch": None, "samples": 500}
    return Recipe(
        (
            Candidate("ReLU, wide prior", settings, prior=WIDE, start=point, **common),
            Candidate(
                "tanh, wide prior", settings, activation="tanh", prior=WIDE, start=broad, **common
            ),
            Candidate(
                "ReLU, varying noise",
                settings,
                likelihood=_varying(),
                prior=FanIn(1.5),
                start=Start("vi", 400, {"lr": 0.02}, drawn=True),
                **common,
            ),
        ),
        trial=0.35,
    )


_ADAM = {"lr": 1e-2}
_EVIDENCE = {"lr": 1e-2, "per": "tensor"}
RECIPES: dict[str, Recipe] = {
    "map": _descent(_ADAM),
    "mle": Recipe((Candidate("early end", _ADAM, steps=300),)),
    "deep_ensemble": _descent({"lr": 1e-2, "num_members": 5}),
    "snapshot": _descent({"lr": 1e-2, "num_cycles": 5}, least=5),
    "swag": _descent({"lr": 1e-2, "optimizer": "adam"}, batch=64, least=12),
    "multiswag": _descent({"lr": 1e-2, "optimizer": "adam", "num_members": 5}, batch=64, least=12),
    "mc_dropout": _rates(_ADAM, 0.005, 0.05),
    "gaussian_dropout": _rates(_ADAM, 0.005, 0.05),
    "concrete_dropout": _descent({"lr": 1e-2, "p": 0.1, "rate_lr": 1.0}),
    "variational_dropout": _descent({"lr": 1e-2, "p": 0.1}),
    "vi": Recipe(
        (
            Candidate("learned prior", _ADAM, prior=_learned(), steps=2000),
            Candidate("tanh, wide prior", _ADAM, activation="tanh", prior=WIDE, steps=2000),
            Candidate("varying noise", _ADAM, likelihood=_varying(), prior=_learned(), steps=2000),
        )
    ),
    "moments": Recipe(
        (
            Candidate("learned prior", _ADAM, prior=_learned(), steps=1500),
            Candidate("varying noise", _ADAM, likelihood=_varying(), prior=_learned(), steps=1500),
        )
    ),
    "last_layer": _descent(_ADAM),
    "laplace": Recipe(
        (
            Candidate("long", {**_EVIDENCE, "structure": "full"}, prior=WIDE, steps=2000),
            Candidate(
                "tuned on the way",
                {**_EVIDENCE, "structure": "full", "tune": "online", "every": 200},
                prior=WIDE,
                steps=2000,
            ),
            Candidate(
                "short, varying noise",
                {**_EVIDENCE, "structure": "full"},
                likelihood=_varying(),
                prior=NARROW,
                steps=300,
            ),
            Candidate(
                "varying noise, tuned on the way",
                {**_EVIDENCE, "structure": "full", "tune": "online", "every": 100},
                likelihood=_varying(),
                prior=NARROW,
                steps=2000,
            ),
        )
    ),
    "ivon": Recipe(
        tuple(
            Candidate(f"lr = {lr:g}", {"lr": lr, "beta2": 0.999}, steps=2500) for lr in (0.03, 0.1)
        )
    ),
    "bnn_ensemble": Recipe(
        (Candidate("wide prior", {"lr": 1e-2, "num_members": 3}, prior=WIDE, steps=2000),)
    ),
    "svgd": _descent({"lr": 1e-2, "num_particles": 10}),
    "hmc": _trajectories(
        {
            "num_chains": 4,
            "num_warmup": 300,
            "num_draws": 150,
            "max_steps": 60,
            "lr": 0.02,
            "compile": True,
        }
    ),
    "nuts": _trajectories(
        {
            "num_chains": 1,
            "num_warmup": 300,
            "num_draws": 150,
            "max_depth": 6,
            "lr": 0.02,
            "compile": True,
        }
    ),
    "sghmc": _dynamics(
        {"num_chains": 4, "num_warmup": 1500, "num_draws": 50, "thin": 10}, 1e-2, 1e-3, 1e-4
    ),
    "sgld": _dynamics(
        {"num_chains": 4, "num_warmup": 1500, "num_draws": 50, "thin": 10}, 1e-2, 1e-3, 1e-4
    ),
    "psgld": _dynamics(
        {"num_chains": 4, "num_warmup": 1500, "num_draws": 50, "thin": 10}, 1e-2, 1e-3, 1e-4
    ),
    "csgmcmc": _dynamics(
        {"num_chains": 4, "num_warmup": 500, "num_draws": 100, "num_cycles": 5, "thin": 5},
        1e-2,
        1e-3,
        1e-4,
    ),
    "metropolis": Recipe(
        (
            Candidate(
                "from a MAP fit",
                {"num_warmup": 4000, "num_draws": 200, "thin": 20},
                batch=None,
                start=Start("map", 1000, _ADAM),
            ),
        )
    ),
    "tempering": Recipe(
        (
            Candidate(
                "four rungs",
                {
                    "num_chains": 1,
                    "num_warmup": 150,
                    "num_draws": 100,
                    "num_rungs": 4,
                    "num_steps": 30,
                    "compile": True,
                },
                batch=None,
                start=Start("map", 1000, _ADAM),
            ),
        )
    ),
    "annealing": Recipe(
        (
            Candidate(
                "three hundred moves",
                {"num_moves": 300, "num_chains": 2, "compile": True},
                batch=None,
            ),
        )
    ),
    "bbvi": Recipe((Candidate("four draws", {"lr": 1e-2, "train_samples": 4}, steps=1500),)),
}

#: Methods that have nothing to say about these networks, and why.
NOT_APPLICABLE = {
    "exact": "the network is not linear in its weights",
    "importance": "no proposal is near enough in hundreds of dimensions",
    "mc_batchnorm": "the published network has no BatchNorm",
    "nngp": "it is the limit of ever wider networks, not this one",
    "stochastic": "the published network is not random by itself",
    "vib": "the published network has no bottleneck",
}


def recipe(method: str) -> Recipe:
    """The recipe of a registered method: its own, or for a newcomer descent under two priors, or
    its sampler's own settings.
    """
    if method in RECIPES:
        return RECIPES[method]
    kind = methods[method]
    if kind.takes_epochs:
        return _descent({"lr": kind.lr})
    start = Start("map", 1000, _ADAM) if kind.is_sampler else None
    return Recipe((Candidate("its own settings", batch=kind.batch_size, start=start),))


def applicable() -> list[str]:
    """Registered methods with something to say, in the order of the registry."""
    return [name for name in methods.names() if name not in NOT_APPLICABLE]
