import pytest
import torch
from torch.distributions import Laplace, Normal
from zoo.members import DOUBLE, inputs, same_as_alone, targets
from zoo.models import make_model, make_posterior
from zoo.networks import make

from credo.estimators import LIKELIHOOD
from credo.likelihoods import Gaussian
from credo.methods.ensembles.parts.members import Members
from credo.methods.ensembles.parts.members_prior import MembersPrior, minus_log_prior
from credo.methods.ensembles.parts.members_step import members_optimizer
from credo.posteriors import Samples
from credo.priors import Flat


def by_hand(each):
    """-log p(w) of a ``map`` fit."""
    mean = each.posterior.mean()
    return sum(
        -float(each.model.prior.at(s).log_prob(mean[n]).sum())
        for n, s in each.model.sites.items()
        if n in each.random
    )


def elementwise():
    generator = torch.Generator().manual_seed(2)
    return {
        "0.weight": Normal(
            torch.randn(6, 5, generator=generator, dtype=DOUBLE),
            0.5 + torch.rand(6, 5, generator=generator, dtype=DOUBLE),
        ),
        "*": Normal(0.25, 0.5),
    }


PRIORS = {
    "tight": lambda: Normal(0.0, 0.25),
    "shifted": lambda: Normal(0.5, 0.75),
    "elementwise": elementwise,
    "laplace": lambda: Laplace(0.0, 0.5),
    "flat": Flat,
    "student_t": lambda: "student_t",
    "scale_mixture": lambda: "scale_mixture",
    "mixed": lambda: {"0.*": Normal(0.0, 0.5), "2.weight": Laplace(0.0, 0.25), "*": Flat()},
    "fan_in": lambda: "fan_in",
}


@pytest.mark.parametrize("kind", PRIORS)
def test_every_prior_pulls_as_it_does_alone(kind):
    net, _ = make("mlp")
    whole, alone = same_as_alone(net, (inputs("mlp"), targets()), prior=PRIORS[kind]())
    # the history's -log p(w) is that of the members as the epoch leaves them
    assert whole.history[-1]["kl"] == pytest.approx(
        sum(by_hand(each) for each in alone) / 3, rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize(
    "prior", [Normal(0.0, 0.5), {"*weight": Laplace(0.0, 0.5), "2.bias": Normal(0.0, 0.25)}]
)
def test_point_parameters_are_free_of_the_prior_unless_one_is_named(prior):
    net, _ = make("mlp")
    whole, _ = same_as_alone(
        net,
        (inputs("mlp"), targets()),
        random=["*weight"] if isinstance(prior, dict) else "last",
        prior=prior,
    )
    assert {type(family) for family in whole.posterior.factors} == {Samples}
    assert set(whole.posterior.names) == {
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
        f"{LIKELIHOOD}log_std",
    }


def test_an_earlier_posterior_as_prior():
    """Of joint and of independent Gaussians."""
    net, _ = make("mlp")
    data = (inputs("mlp"), targets())
    for kind in ("low_rank", "mean_field", "full"):
        earlier = make_posterior(kind, make_model(net)).requires_grad_(False)
        same_as_alone(net, data, num_members=2, prior=earlier)


def test_normal_priors_around_zero_are_weight_decay_and_others_are_not():
    prior = {"0.*": Normal(0.0, 0.5), "2.weight": Normal(0.1, 0.5), "2.bias": Laplace(0.0, 1.0)}
    model = make_model(make("mlp")[0], prior=prior, likelihood=Gaussian())
    group = Members(model, [model.random_values(seed) for seed in range(2)], range(2))
    assert group.prior.weight_decays() == {"0.weight": 4.0, "0.bias": 4.0}
    assert [names for names, _ in group.prior.penalties()] == [("2.weight", "2.bias")]
    table = members_optimizer("adam", 0.9)(group, 0.1, 30).param_groups
    assert (
        sorted(g["weight_decay"] for g in table) == [0.0, 4.0 / 30]
        and sum(len(g["params"]) for g in table) == 5
    )
    assert isinstance(members_optimizer("sgd", 0.9)(group, 0.1, 30), torch.optim.SGD)


def test_the_penalty_of_every_member_is_minus_its_log_prior():
    model = make_model(make("mlp")[0], prior=Laplace(0.0, 0.5))
    starts = [model.random_values(seed) for seed in range(3)]
    prior = MembersPrior(model, starts[0])
    values = {n: torch.stack([start[n] for start in starts]) for n in starts[0]}
    wanted = [
        -sum(Laplace(0.0, 0.5).log_prob(value).sum() for value in start.values())
        for start in starts
    ]
    for penalties in (prior.all, prior.penalties()):
        assert torch.allclose(minus_log_prior(penalties, values), torch.stack(wanted))
