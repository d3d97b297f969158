"""Settings drawn at random, to learn what a problem allows: a default is judged by the best of
them.
"""

from __future__ import annotations

import math
from typing import Any

from torch.distributions import Normal

from credo.core.seeds import generator
from credo.methods import methods

#: Methods that a newcomer is pointed to.
RECOMMENDED = (
    "vi",
    "ivon",
    "laplace",
    "deep_ensemble",
    "swag",
    "mc_dropout",
    "last_layer",
    "hmc",
    "nuts",
    "sghmc",
    "csgmcmc",
)
STEPS = (300, 1000, 3000, 6000)
USUAL_LR = 0.01


def trial(method: str, problem: str, seed: int, number: int, num_data: int) -> dict[str, Any]:
    """Arguments of ``fit``, and ``prior_std`` of a normal prior: the trial of this number.

    Learning rates are those of the method times 0.03 to 3, priors have deviations of 0.03 to 3,
    both evenly in their logarithm; lengths, batches, starts and what the method is known to depend
    on come from a few values each.
    """
    import torch

    source = generator("defaults search", method, problem, seed, number)
    kind = methods[method]
    names = {n for n, f in kind.__dataclass_fields__.items() if "ClassVar" not in str(f.type)}

    def evenly(low: float, high: float) -> float:
        share = float(torch.rand((), generator=source))
        return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))

    def one_of(*values: Any) -> Any:
        return values[int(torch.randint(len(values), (), generator=source))]

    given: dict[str, Any] = {"prior_std": evenly(0.03, 3.0)}
    if kind.takes_epochs:
        given["batch_size"] = min(one_of(32, 128, 512), num_data)
        given["epochs"] = max(1, round(one_of(*STEPS) * given["batch_size"] / num_data))
    if kind.takes_epochs or "temperature" in names:
        given["lr"] = min(1.0, (kind.lr or USUAL_LR) * evenly(0.03, 3.0))
    if "init_std" in names:
        given["init_std"] = evenly(1e-3, 0.3)
    if "beta" in names:
        given["beta"] = one_of(1.0, 0.3, 0.1, 0.03)
    particular: dict[str, dict[str, Any]] = {
        "laplace": {"structure": one_of("kfac", "diagonal"), "tune": one_of("evidence", "none")},
        "deep_ensemble": {"num_members": one_of(5, 10)},
        "swag": {"optimizer": one_of("sgd", "adam"), "start": one_of(0.5, 0.75)},
        "mc_dropout": {"p": one_of(0.02, 0.05, 0.1, 0.2, 0.4)},
        "hmc": {"num_warmup": one_of(200, 500), "num_draws": 300, "num_steps": one_of(20, 100)},
        "nuts": {"num_warmup": one_of(200, 500), "num_draws": 200},
        "sghmc": {"num_warmup": one_of(1000, 4000), "num_draws": 100, "thin": one_of(20, 100)},
        "csgmcmc": {"num_draws": 100, "num_cycles": one_of(2, 4), "thin": one_of(20, 100)},
    }
    return given | particular.get(method, {})


def prior_of(given: dict[str, Any]) -> Normal | None:
    """The prior of a trial, taken out of its arguments; None for the default."""
    std = given.pop("prior_std", None)
    return None if std is None else Normal(0.0, std)
