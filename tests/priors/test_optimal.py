import json

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from credo.core.errors import CredoError, SettingError
from credo.core.sites import sites_of
from credo.priors import Optimal, from_config, groupings

SITES = sites_of(nn.Sequential(nn.Linear(5, 6), nn.ConvTranspose1d(4, 6, 3, groups=2)).double())
CASES = [
    (per, centred) for per in groupings for centred in (False, True) if per != "weight" or centred
]


def marginals(seed=0):
    generator = torch.Generator().manual_seed(seed)
    means = {n: torch.randn(s.shape, generator=generator).double() for n, s in SITES.items()}
    variances = {
        n: torch.rand(s.shape, generator=generator).double() + 0.1 for n, s in SITES.items()
    }
    return means, variances


def kl(prior, means, variances):
    return sum(
        kl_divergence(Normal(means[n], variances[n].sqrt()), prior.at(SITES[n])).sum()
        for n in means
    )


def test_the_global_one_is_graves_formula():
    means, variances = marginals()
    prior = Optimal().fresh(SITES)
    prior.observe(means, variances)
    mu, var = (torch.cat([v.flatten() for v in values.values()]) for values in (means, variances))
    at = prior.at(SITES["1.weight"])
    assert torch.allclose(at.loc, mu.mean()) and torch.allclose(
        at.scale**2, (var + (mu - mu.mean()) ** 2).mean()
    )
    assert torch.allclose(prior.values()["all"]["scale"], at.scale)


def test_per_weight_is_ard():
    means, variances = marginals()
    prior = Optimal("weight", centred=True).fresh(SITES)
    prior.observe(means, variances)
    expected = sum((0.5 * torch.log1p(means[n] ** 2 / variances[n])).sum() for n in SITES)
    assert torch.allclose(kl(prior, means, variances), expected)
    assert torch.allclose(
        prior.relevance("0.weight"), (means["0.weight"] ** 2 + variances["0.weight"]).mean(0).sqrt()
    )


@pytest.mark.parametrize(("per", "centred"), CASES)
def test_no_other_normal_has_a_smaller_kl(per, centred):
    means, variances = marginals()
    prior = Optimal(per, centred).fresh(SITES)
    prior.observe(means, variances)
    least = kl(prior, means, variances)
    for name, buffer in prior.named_buffers():
        for factor in (0.99, 1.01) if name.startswith("var") else () if centred else (0.99, 1.01):
            kept = buffer.clone()
            buffer.mul_(factor)
            assert kl(prior, means, variances) > least
            buffer.copy_(kept)


@pytest.mark.parametrize(("per", "centred"), CASES)
def test_the_gradient_needs_no_path_through_the_prior(per, centred):
    """Against autograd through the explicit formula: sum over groups of n/2 log(average of sigma^2
    + (mu - m)^2) - 1/2 sum log sigma^2.
    """
    means, variances = marginals()
    leaves = [v.requires_grad_() for v in (*means.values(), *variances.values())]
    prior = Optimal(per, centred).fresh(SITES)
    prior.observe(means, variances)
    ours = torch.autograd.grad(kl(prior, means, variances), leaves)

    grouping, total = groupings[per], torch.zeros(()).double()
    for key in prior.values():
        members = [s for s in SITES.values() if grouping.key(s) == key]

        def average(values, members=members):
            sums = sum(grouping.collapse(values[s.name], s) for s in members)
            return sums / sum(grouping.collapse(torch.ones(s.shape).double(), s) for s in members)

        mean = torch.zeros(()).double() if centred else average(means)
        moments = {
            s.name: variances[s.name]
            + (means[s.name] - (mean if centred else grouping.to_elements(mean, s))) ** 2
            for s in members
        }
        count = sum(grouping.collapse(torch.ones(s.shape).double(), s) for s in members)
        total = (
            total
            + 0.5 * (count * average(moments).log()).sum()
            - 0.5 * sum(variances[s.name].log().sum() for s in members)
        )
    assert torch.allclose(kl(prior, means, variances), total)
    for a, b in zip(ours, torch.autograd.grad(total, leaves), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_structure_and_state_give_back_the_fitted_prior():
    fitted = Optimal("unit").fresh(SITES)
    fitted.observe(*marginals())
    again = from_config(json.loads(json.dumps(fitted.config()))).fresh(SITES)
    assert again.at(SITES["0.bias"]).loc.eq(0).all() and again.at(SITES["0.bias"]).scale.eq(1).all()
    again.load_state_dict(fitted.state_dict())
    assert all(torch.equal(again.at(s).scale, fitted.at(s).scale) for s in SITES.values())
    assert fitted.parts() == [fitted] and not list(fitted.parameters()) and fitted.penalty() is None


def test_a_step_does_not_disturb_the_one_before():
    means, variances = marginals()
    leaf = means["0.bias"].requires_grad_()
    prior = Optimal().fresh(SITES)
    prior.observe(means, variances)
    before = kl(prior, means, variances)
    expected = torch.autograd.grad(before, leaf, retain_graph=True)[0]
    prior.observe(*marginals(1))
    assert torch.equal(torch.autograd.grad(before, leaf)[0], expected)


def test_before_and_outside_a_fit_and_at_the_edge():
    assert (
        Optimal().at(SITES["0.bias"]).scale == 1.0
        and Optimal("layer", True).describe() == "optimal normal per layer, mean 0"
    )
    prior = Optimal("weight", centred=True).fresh(SITES)
    zeros = {n: torch.zeros(s.shape).double() for n, s in SITES.items()}
    prior.observe(zeros, zeros)
    assert torch.isfinite(prior.at(SITES["0.bias"]).log_prob(zeros["0.bias"])).all()
    with pytest.raises(
        CredoError, match="no hyperparameters for 'x'; it was made for 0.weight, 0.bias"
    ):
        prior.observe({"x": torch.zeros(1)}, {"x": torch.ones(1)})
    with pytest.raises(
        SettingError, match=r"makes the prior of every weight its own posterior, and the KL zero"
    ):
        Optimal("weight")
    with pytest.raises(SettingError, match="Unknown grouping per= 'wieght'. Did you mean 'weight'"):
        Optimal("wieght")
