"""Information in a bottleneck's code z of x: an upper bound on what it keeps of x, a lower bound on
what it says about y.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from credo.bnn import BNN
from credo.core.errors import CredoError
from credo.core.seeds import mix
from credo.core.settings import positive, renamed, whole
from credo.data.intake import intake
from credo.nets.bottleneck import bottlenecks, recorded

ROWS = 1024  # inputs at once


@renamed(samples="num_samples", warn=False)
def information(bnn: BNN, data: Any, num_samples: int = 20, seed: int = 0) -> dict[str, float]:
    """What the bottlenecks of ``bnn`` pass on of ``data``, in nats per example; means over
    ``num_samples`` draws of the code.

    - ``rate``: E KL[q(z given x), r(z)], an upper bound on I(X; Z). Of several bottlenecks, the
      sum.
    - ``distortion``: E[-log q(y given z)]. Not below the nll of predictions, which average over z
      first.
    - ``lower`` (labels): H(Y) - distortion, a lower bound on I(Z; Y) and so on I(X; Z), with H(Y)
      the entropy of the labels' shares in ``data`` (several labels of an example together are one
      of a larger set: with few examples that entropy is too low). Below zero where the code says
      less than the shares do.

    Both bounds are exact for ``data`` as the whole of the distribution: those of training data say
    nothing about new data. Refused are models whose predictions draw no code: fit with "vib", or
    with "stochastic", a network that has a ``credo.nets.Bottleneck``.
    """
    positive("num_samples", num_samples, 1)
    whole("seed", seed)
    _check(bnn)
    rate = distortion = 0.0
    targets: list[Tensor] = []
    for x, y in intake(data)(None, ROWS):
        with recorded(bnn.model.shell().module) as calls:
            predictive = bnn.predict(
                x, num_samples, mix(seed, len(targets))
            )  # other noise for other rows
        y = predictive.likelihood.check_pair(predictive.outputs, y)
        nll = -predictive.likelihood.log_prob(predictive.outputs, y)
        rate += sum(float(kl.double().sum()) for kl in calls) / predictive.num_samples
        distortion += float(nll.double().mean(0).sum())
        targets.append(y)
    y = torch.cat(targets)
    found = {"rate": rate / len(y), "distortion": distortion / len(y)}
    if bnn.likelihood.metric_family == "labels" and bool(
        (y == y.floor()).all()
    ):  # grey values are no labels
        found["lower"] = entropy(y) - found["distortion"]
    return found


def entropy(y: Tensor) -> float:
    """Entropy in nats of the shares that each value, or each row ``(N, D)``, of ``y`` has."""
    shares = torch.unique(y, dim=0, return_counts=True)[1].double() / len(y)
    return -float((shares * shares.log()).sum())


def _check(bnn: BNN) -> None:
    noisy_modules, known = bnn.posterior.noisy_modules, bottlenecks(bnn.net)
    if not known:
        raise CredoError(
            "information needs a network with a credo.nets.Bottleneck, whose code it measures; "
            "this one has none."
        )
    quiet = [path for path in known if path not in noisy_modules]
    if quiet:
        how = bnn.method.name if bnn.method is not None else "no method"
        raise CredoError(
            f"Predictions of this model draw no code at the Bottleneck {quiet[0]!r} (fitted with "
            f"{how}); fit with 'vib' to measure it."
        )
