"""credo as a contestant of the peers' harness: run it there with ``--plugin credo_contestants`` and
this folder on PYTHONPATH.

W1: a training step under each estimator, and of natural-gradient VI. W2: mean probabilities of
1,000 inputs from 100 posterior draws. W3: draws of a small regression network's posterior by
``hmc`` and ``nuts``, compiled, warmed up for as many moves as the peers. W4: the curvature of a
trained network, predictions of the linearised network, and a step on the log evidence. W5: an epoch
of a deep ensemble under a normal prior, all members at once. On a GPU the steps are also entered as
one CUDA graph, next to the plain network captured the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import w2_predict
import w3_mcmc
import w5_ensemble
from core import FitJob, contestant
from workloads import (
    ESTIMATORS,
    dropout_predictor,
    ensemble_epoch,
    evidence_step,
    ivon_step,
    laplace_fit,
    laplace_predictor,
    plain_graph,
    predictor,
    regression_chains,
    vi_step,
)

for _estimator in ESTIMATORS:
    contestant("W1", f"credo {_estimator}")(
        lambda case, e=_estimator: vi_step(case.build(), case.x, case.y, e)
    )


contestant("W1", "credo ivon")(lambda case: ivon_step(case.build(), case.x, case.y))


def captured(case: Any, estimator: str) -> Callable[[], Any]:
    """A step as one CUDA graph, captured here: the harness would take the seconds that takes for
    the step's own.
    """
    step = vi_step(case.build(), case.x, case.y, estimator, compile=True)
    step()
    return step


if torch.cuda.is_available():
    contestant("W1", "deterministic PyTorch, CUDA graph")(
        lambda case: plain_graph(case.build(), case.x, case.y)
    )
    for _estimator in ESTIMATORS:
        contestant("W1", f"credo {_estimator}, CUDA graph")(
            lambda case, e=_estimator: captured(case, e)
        )


@contestant("W2", "credo, loop")
def predict_loop(case: Any) -> FitJob:
    """Draw by draw."""
    return w2_predict.sliced(case, predictor(case.build(), case.x, False))


@contestant("W2", "credo, vmap")
def predict_vmap(case: Any) -> FitJob:
    """All draws at once."""
    return w2_predict.whole(case, predictor(case.build(), case.x, True))


@contestant("W2", "credo mc_dropout")
def predict_dropout(case: Any) -> FitJob:
    """The network's own dropout modules, as the other MC dropout rows use them."""
    return w2_predict.whole(case, dropout_predictor(case.build(dropout=0.1), case.x))


def sample(case: Any, method: str, chains: int, moves: int) -> FitJob:
    """Draws of the harness's network, in blocks of ``moves`` draws of every chain."""
    draw, steps = regression_chains(case, method, chains, moves, w3_mcmc.WARMUP)
    return w3_mcmc.block(draw, chains * moves, f"{w3_mcmc.WARMUP} warm-up moves, compiled", steps)


contestant("W3", "credo hmc, 4 chains")(lambda case: sample(case, "hmc", 4, 25))
contestant("W3", "credo nuts, 4 chains")(lambda case: sample(case, "nuts", 4, 10))
if torch.cuda.is_available():
    contestant("W3", "credo hmc, 64 chains")(lambda case: sample(case, "hmc", 64, 25))
    contestant("W3", "credo nuts, 64 chains")(lambda case: sample(case, "nuts", 64, 10))


def ensemble(case: Any, compile: bool = False) -> FitJob:
    """All members at once; a step is traced, or captured as a graph on a GPU, in an epoch before
    the timed ones.
    """
    epoch = ensemble_epoch(
        case.members(w5_ensemble.MEMBERS), case.x, case.y, w5_ensemble.BATCH, compile
    )
    if compile:
        epoch()
    return FitJob(epoch, note="own data order per member, N(0, 1) prior")


contestant("W5", "credo deep_ensemble")(ensemble)
contestant("W5", "credo deep_ensemble, compiled")(lambda case: ensemble(case, compile=True))


# structure, subset, and the contestant of laplace-torch that does the same
LAPLACES = {
    "diagonal, all weights": {"structure": "diagonal"},
    "kfac, all weights": {"structure": "kfac"},
    "full, last layer": {"structure": "full", "subset": "last"},
    "kfac, last layer": {"structure": "kfac", "subset": "last"},
}


def _laplace(name: str) -> None:
    contestant("W4-fit", f"credo {name}")(
        lambda case: laplace_fit(case.net, case.x, case.y, **LAPLACES[name])
    )

    @contestant("W4-predict", f"credo {name}, linear probit")
    def predict(case: Any) -> FitJob:
        return FitJob(
            laplace_predictor(
                laplace_fit(case.net, case.x, case.y, **LAPLACES[name])(), case.x_test
            )
        )

    @contestant("W4-marglik", f"credo {name}")
    def step(case: Any) -> FitJob:
        return FitJob(
            evidence_step(
                case.net, case.x, case.y, "tensor" if "all" in name else "global", **LAPLACES[name]
            )
        )


for _name in LAPLACES:
    _laplace(_name)
