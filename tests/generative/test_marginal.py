"""Importance sampling of log p(x) against the closed form of a linear-Gaussian model."""

import pytest
import torch
from torch import nn
from zoo.latent import Linear, network
from zoo.stats import Z, has_mean, same_mean

from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.generative import marginal
from credo.generative.codes import Categorical, Diagonal
from credo.generative.marginal import importance, log_weights
from credo.generative.network import LatentNet
from credo.generative.priors import Uniform
from credo.likelihoods import Gaussian

MODEL = Linear()
X = MODEL.data(5)


@pytest.mark.parametrize("proposal", ["encoder", "prior"])
def test_weights_are_unbiased(proposal):
    """Mean of exp(log w - log p(x)) is 1, from a poor encoder too."""
    net = MODEL.network(shift=0.3, stretch=1.4)
    with torch.no_grad(), isolated(0):
        log_w = log_weights(net, X, 50_000, proposal)
    assert log_w.shape == (50_000, 5)
    has_mean((log_w - MODEL.log_evidence(X)).exp(), torch.ones(5, dtype=torch.float64))


def test_an_exact_encoder_has_no_noise_at_all():
    with torch.no_grad(), isolated(0):
        found = importance(MODEL.network(), X, 3)
    torch.testing.assert_close(found, MODEL.log_evidence(X))


@pytest.mark.parametrize("proposal", ["encoder", "prior"])
def test_many_draws_reach_the_truth(proposal):
    net, draws, exact = MODEL.network(shift=0.2, stretch=1.3), 20_000, MODEL.log_evidence(X)
    with torch.no_grad(), isolated(0):
        found = importance(net, X, draws, proposal)
        spread = (log_weights(net, X, 5000, proposal) - exact).exp().std(0)
    assert ((found - exact).abs() < Z * spread / draws**0.5).all()


def test_chunks_are_as_good_as_one(monkeypatch):
    net = MODEL.network(shift=0.2, stretch=1.3)
    calls = []
    plain = marginal.log_weights

    def watched(net, x, draws, proposal):
        calls.append(draws)
        return plain(net, x, draws, proposal)

    monkeypatch.setattr(marginal, "log_weights", watched)
    monkeypatch.setitem(marginal.BUDGET, "cpu", 7 * X.numel())
    with torch.no_grad(), isolated(0):
        few = torch.stack([importance(net, X, 17) for _ in range(800)])
    assert calls[:3] == [7, 7, 3]
    monkeypatch.setitem(marginal.BUDGET, "cpu", 10**6)
    with torch.no_grad(), isolated(1):
        whole = torch.stack([importance(net, X, 17) for _ in range(800)])
    same_mean(few, whole)


def test_the_budget_counts_what_the_decoder_gives(monkeypatch):
    """256 levels per pixel are 256 numbers per pixel."""
    from credo.generative.priors import StandardNormal
    from credo.likelihoods import Pixels

    seen = []

    class Spy(nn.Module):
        def forward(self, z):
            seen.append(len(z) * 64)
            return z.new_zeros(len(z), 64) + z.sum()

    net = LatentNet(nn.Linear(2, 4), Spy(), Diagonal(2), StandardNormal(2), Pixels(32), (2,))
    monkeypatch.setitem(marginal.BUDGET, "cpu", 1000)
    with torch.no_grad():
        importance(net, torch.tensor([[0, 3], [1, 2]]), 100)
    assert max(seen) <= 1000


@pytest.mark.parametrize("prior", ["mixture", "vamp"])
def test_both_proposals_agree_under_learned_priors(prior):
    net = network(Diagonal(2), prior, components=3).eval()
    x = torch.tensor([[0.3, -0.5, 0.8]], dtype=torch.float64)
    with torch.no_grad(), isolated(0):
        one, two = (
            log_weights(net, x, 40_000, proposal).exp() for proposal in ("encoder", "prior")
        )
    same_mean(one, two)


def test_discrete_codes_by_enumeration():
    import itertools

    net = LatentNet(
        nn.Linear(3, 6),
        nn.Linear(6, 3),
        Categorical(2, 3),
        Uniform(6, groups=2),
        Gaussian(std=0.8),
        (3,),
    ).double()
    x = torch.tensor([[0.3, -0.5, 0.8], [1.0, 0.0, 0.1]], dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64)
    every = (
        torch.stack([torch.cat([eye[i], eye[j]]) for i, j in itertools.product(range(3), repeat=2)])
        .unsqueeze(1)
        .expand(-1, 2, -1)
    )
    with torch.no_grad(), isolated(0):
        exact = torch.logsumexp(net.log_fit(every, x) + net.log_prior(every), 0)
        for proposal in ("encoder", "prior"):
            has_mean(
                (log_weights(net, x, 40_000, proposal) - exact).exp(),
                torch.ones(2, dtype=torch.float64),
            )


def test_very_unlikely_data_do_not_underflow():
    x = X + 1e3
    with torch.no_grad(), isolated(0):
        found = importance(MODEL.network(), x, 5)
    torch.testing.assert_close(found, MODEL.log_evidence(x))


def test_other_proposals_are_refused():
    with pytest.raises(SettingError, match="proposal='posterior'; expected 'encoder' or 'prior'"):
        importance(MODEL.network(), X, 5, "posterior")
