"""One small, asymmetric member of every posterior family over weights, a weight (3, 4) and its bias
(3,) in double precision.
"""

import torch

from credo.core.seeds import generator, isolated
from credo.posteriors import (
    ConcreteDropout,
    Delta,
    Discrete,
    Dropout,
    EigenKron,
    Flow,
    Full,
    GaussianDropout,
    GroupScale,
    Kron,
    LowRank,
    LowRankPrecision,
    MeanField,
    Mixture,
    NormalInverseGamma,
    Place,
    Places,
    Posterior,
    Samples,
    SparseVD,
    Stochastic,
    StructuredNoise,
    Subnetwork,
    ZeroMean,
)
from zoo.models import shaken

SHAPES = {"w": torch.Size((3, 4)), "b": torch.Size((3,))}


def values(seed=0):
    return {
        n: torch.randn(s, generator=generator(seed, n), dtype=torch.float64)
        for n, s in SHAPES.items()
    }


def _nig():
    tril = torch.randn(15, 15, generator=generator("tril"), dtype=torch.float64).tril(
        -1
    ) * 0.1 + 0.5 * torch.eye(15, dtype=torch.float64)
    return NormalInverseGamma(SHAPES).set(
        torch.cat([v.reshape(-1) for v in values().values()]), tril, 9.0, 4.0
    )


def make_eigen_kron():
    """Of the weight alone: it covers one parameter."""
    left, right = (
        torch.linalg.qr(torch.randn(n, n, generator=generator("turn", n), dtype=torch.float64))[0]
        for n in SHAPES["w"]
    )
    std = 0.2 + torch.rand(SHAPES["w"], generator=generator("std"), dtype=torch.float64)
    return EigenKron.of("w", values()["w"], left, right, std)


def make_low_rank_precision():
    precision = 2.0 + torch.rand(15, generator=generator("precision"), dtype=torch.float64)
    factor = (
        torch.randn(15, 3, generator=generator("narrow"), dtype=torch.float64)
        * torch.tensor([0.5, 2.0, 5.0]).double()
    )
    return LowRankPrecision.of(values(), precision, factor)


def make_subnetwork():
    """Four of the weights and one bias."""
    places = {"w": torch.tensor([1, 4, 7, 11]), "b": torch.tensor([2])}
    tril = (
        torch.randn(5, 5, generator=generator("chosen"), dtype=torch.float64).tril(-1) * 0.3
        + torch.eye(5).double() * 0.5
    )
    return Subnetwork.of(values(), places, tril)


def make_flow(kind="affine", size=0.1):
    with isolated(0):
        return shaken(Flow.start(values(), 0.4, kind, transforms=2, hidden=8), size=size)


PLACES = Places(axes={"w": (1, 1)})  # the input units of the weight

#: The output units of weight and bias together
UNITS = {"w": Place("w", 0, 1, "output"), "b": Place("w", 0, 1, "output")}

MAKERS = {
    "delta": lambda: Delta.start(values()),
    "mean_field": lambda: shaken(MeanField.start(values(), 0.4)),
    "mean_field_softplus": lambda: shaken(MeanField.start(values(), 0.4, "softplus")),
    "low_rank": lambda: shaken(LowRank.start(values(), generator(0), 0.5, rank=2)),
    "full": lambda: shaken(Full.start(values(), 0.4), size=0.1),
    "kron": lambda: shaken(Kron.start(values(), 0.4)),
    "eigen_kron": make_eigen_kron,
    "low_rank_precision": make_low_rank_precision,
    "subnetwork": make_subnetwork,
    "mixture": lambda: Mixture.of(
        [Posterior([shaken(MeanField.start(values(s), 0.4), s)]) for s in (1, 2)], [0.25, 0.75]
    ),
    "samples": lambda: Samples.of(
        {n: torch.stack([values(s)[n] for s in range(6)]) for n in SHAPES}
    ),
    "normal_inverse_gamma": _nig,
    "discrete": lambda: shaken(Discrete.start(values(), (-1.0, 0.5, 2.0)), size=0.8),
    "flow": make_flow,
    "dropout": lambda: Dropout.start(values(), PLACES, {"w": 0.3}),
    "concrete_dropout": lambda: shaken(
        ConcreteDropout.start(values(), PLACES, {"w": 0.3}, "unit", 0.1)
    ),
    "gaussian_dropout": lambda: shaken(
        GaussianDropout.start(values(), PLACES, {"w": 0.3}, "input", "unit", True)
    ),
    "structured_bp": lambda: shaken(StructuredNoise.start(values(), PLACES, {"w": 0.3})),
    "zero_mean": lambda: shaken(ZeroMean.start(values(), 0.7)),
    "sparse_vd": lambda: shaken(SparseVD.start(values(), 0.4, threshold=1.0)),
    "group_scale": lambda: shaken(
        GroupScale.start(values(), UNITS, {"name": "horseshoe", "tau0": 0.5}, 0.4, threshold=1.0)
    ),
    "stochastic": lambda: Stochastic.of(values(), ["layer"]),
}
MOMENTS = (
    "mean_field",
    "mean_field_softplus",
    "zero_mean",
    "low_rank",
    "full",
    "kron",
)  # Gaussian, with rules for moments
GAUSSIAN = (*MOMENTS, "eigen_kron", "low_rank_precision", "subnetwork")


def flat(params):
    """Draws by name as one matrix (S, P)."""
    return torch.cat(
        [params[n].flatten(params[n].dim() - len(SHAPES[n])) for n in SHAPES if n in params], -1
    )
