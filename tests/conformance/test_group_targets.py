"""The optima of group-sparse posteriors, against expected losses of the library's own families:
neither side knows the other.
"""

import pytest
import torch
from zoo.fits import begun

from credo.conformance.exact_targets import targets
from credo.conformance.problems import conjugate
from credo.methods import methods
from credo.priors.group_prior import GroupPrior

NAMES = ("group_normal_jeffreys", "group_horseshoe", "horseshoe")


def loss(problem, family, bias):
    """Expected nll by draws would be noisy: E[w] and the covariance, which what is shared makes,
    come from the family's two moments.
    """
    values = family.mean()
    mean = torch.cat([values["weight"][0], values.get("bias", bias)])
    scales, bank = family.scales, family.places["weight"].bank
    design = torch.cat([problem.x, torch.ones(len(problem.x), 1, dtype=torch.float64)], 1)
    var = torch.cat(
        [
            family.std()["weight"][0] ** 2,
            family.std()["bias"] ** 2 if "bias" in values else 0 * bias,
        ]
    )
    shared = (
        scales.second(bank)[0] / scales.first(bank)[0] ** 2
        if "bias" in values
        else scales.common(bank)[1] / scales.common(bank)[0] ** 2
    )
    held = mean if "bias" in values else torch.cat([mean[:-1], 0 * bias])
    cov = (shared - 1) * torch.outer(held, held)
    cov = cov - torch.diag(cov.diagonal()) + torch.diag(var)
    nll = ((problem.y - design @ mean).square().sum() + (design.T @ design * cov).sum()) / (
        2 * problem.std**2
    )
    return nll + family.kl(dict.fromkeys(family.names, GroupPrior(scales.label, True)))


@pytest.mark.parametrize("name", NAMES)
def test_descent_on_the_librarys_objective_ends_at_the_target(name):
    """Within the tolerance of the method, in units of the posterior deviations; the normal-Jeffreys
    KL here is a fit of the exact one there.
    """
    problem, method = conjugate(), methods[name]()
    target, sd = targets[name](problem), conjugate().covariance.diagonal().sqrt()
    elbo, _ = begun(method, method.adapt(problem.bnn().model), problem.x, problem.y)
    net, family = problem.bnn().net, elbo.posterior.factors[0]
    places = family.names
    bias = net.bias.detach().clone().requires_grad_()
    numbers = [*family.parameters(), *([] if "bias" in places else [bias])]
    optimizer = torch.optim.Adam(numbers, lr=0.03)
    for step in range(1500):
        optimizer.param_groups[0]["lr"] = 0.03 * (1 - step / 1500)
        optimizer.zero_grad()
        loss(problem, family, bias).backward()
        optimizer.step()
    with torch.no_grad():
        mean = torch.cat([family.mean()["weight"][0], family.mean().get("bias", bias)])
        assert float(((mean - target.mean).abs() / sd).max()) < method.tolerance
        var = family.std()["weight"][0] ** 2
        assert float((var / target.variance[:3]).log().abs().max()) < 2 * method.tolerance


@pytest.mark.parametrize("name", NAMES)
def test_a_bias_is_a_point_unless_it_is_in_a_group(name):
    assert (float(targets[name](conjugate()).variance[3]) > 0) == (name == "horseshoe")
