"""Ensembles against their members trained alone."""

import pytest
import torch

from credo import BNN
from credo.core.tree import map_leaves
from credo.estimators import LIKELIHOOD
from credo.likelihoods import FullGaussian, Gaussian
from credo.methods.ensembles.parts.members import member_seeds
from zoo.networks import make

DOUBLE = torch.float64
#: Sums in another order differ by rounding of 1e-16; a few steps of Adam enlarge that by less than
#: a million.
CLOSE = {"rtol": 0.0, "atol": 1e-10}
HOW = {
    "epochs": 3,
    "batch_size": 5,
    "lr": 0.05,
    "progress": False,
}  # twelve examples: the last batch has two


def inputs(name, parts=4):
    rows = [make(name, seed=seed)[1] for seed in range(parts)]
    return map_leaves(lambda *leaves: torch.cat(leaves), *rows)


def targets(n=12, width=2):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)


def noisy(kind="one"):
    made = {
        "one": Gaussian,
        "each": lambda: Gaussian(num_outputs=2),
        "full": lambda: FullGaussian(num_outputs=2),
    }[kind]()
    return made.double()


def fit(net, data, method, *, likelihood=None, prior=None, random="all", output=None, **how):
    bnn = BNN(net, noisy() if likelihood is None else likelihood, prior, random, output)
    return bnn.fit(data, method, **(HOW | how))


def pieces(fitted, member):
    """Everything that one member has learned, by name."""
    found = fitted.posterior.realise([member], 0)
    out = {name: value[0].detach() for name, value in found.items()}
    if fitted.posterior.atoms == 1:
        out |= {f"{LIKELIHOOD}{n}": p.detach() for n, p in fitted.likelihood.named_parameters()}
    return {n: b.detach() for n, b in fitted.buffers.items() if b.is_floating_point()} | out


def same_as_alone(net, data, members=3, seed=0, together=None, **how):
    """An ensemble, fitted with ``together``, against ``map`` fits with the members' seeds:
    parameters, noise, buffers, history.
    """
    whole = fit(
        net,
        data,
        "deep_ensemble",
        members=members,
        seed=seed,
        **({"vectorise": True} | (together or {})),
        **how,
    )
    alone = [
        fit(net, data, "map", init="random", seed=s, **how) for s in member_seeds(seed, members)
    ]
    for k, each in enumerate(alone):
        wanted, found = pieces(each, 0), pieces(whole, k)
        assert wanted.keys() == found.keys()
        for name, value in wanted.items():
            assert torch.allclose(found[name], value, **CLOSE), f"member {k}: {name}"
    for epoch, row in enumerate(whole.history):
        assert row["nll"] == pytest.approx(
            sum(each.history[epoch]["nll"] for each in alone) / members, rel=1e-10
        )
        assert row["elbo"] == pytest.approx(-row["nll"] - row["kl"])
    return whole, alone
