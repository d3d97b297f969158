"""Placement: for every network of the zoo and every estimator, each random weight reaches the
output's variance.
"""

import pytest
import torch
from zoo.models import Passes, make_model, make_posterior
from zoo.networks import ZOO, Checkpointed, make

from credo.core.seeds import isolated
from credo.estimators import Plan, estimators, place
from credo.estimators.placement import Replan, Slot, unused
from credo.posteriors import Start

OUTPUT = {"dicts": "logits"}
#: Networks that behave differently in training; all others run in evaluation mode only.
MODES = [(name, False) for name in ZOO] + [
    (name, True) for name in ("attention", "transformer", "batchnorm", "lstm", "checkpointed")
]


@pytest.mark.parametrize("estimator", ["weights", "local", "flipout"])
@pytest.mark.parametrize(("name", "train"), MODES)
def test_every_random_weight_reaches_the_output(name, train, estimator):
    net, x = make(name)
    model = make_model(net, output=OUTPUT.get(name))
    posterior = make_posterior("mean_field", model)
    family = posterior.members[0]
    passes = Passes(model, posterior, estimator, x, train)
    for site in model.random:
        with torch.no_grad():
            stds = {
                n: torch.full(s.shape, 0.5 if n == site else 1e-13, dtype=torch.float64)
                for n, s in model.random.items()
            }
            family.raw_std.copy_(family.layout.join(stds).log())
        spread = passes(4).std(0).max()
        # Everything else moves the output by about 1e-13; a weight that entered as its mean would
        # leave it there.
        assert spread > 1e-6, f"{site} does not reach the output of {name} under {estimator}"


@pytest.mark.parametrize("estimator", ["weights", "local", "flipout"])
@pytest.mark.parametrize("name", sorted(ZOO))
@pytest.mark.parametrize("kind", ["low_rank", "kron", "full"])
def test_structured_families_run_on_every_network(name, estimator, kind):
    net, x = make(name)
    model = make_model(net, output=OUTPUT.get(name))
    outputs = Passes(model, make_posterior(kind, model), estimator, x)(4)
    assert torch.isfinite(outputs).all() and (outputs.std(0) > 1e-6).all()


def gradients(net, x, estimator, train=True):
    model = make_model(net)
    posterior = make_posterior("mean_field", model)
    passes = Passes(model, posterior, estimator, x, train)
    with isolated(5):
        passes.one().square().sum().backward()
    return [p.grad for p in posterior.parameters()]


@pytest.mark.parametrize("estimator", ["weights", "local", "flipout"])
def test_checkpointing_gives_the_gradients_of_the_plain_network(estimator):
    """Recomputation during backward must meet the same draws and the same noise."""
    _, x = make("checkpointed")
    for one, other in zip(
        *(
            gradients(with_seed(lambda use=use: Checkpointed(use).double()), x, estimator)
            for use in (True, False)
        ),
        strict=True,
    ):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14)


def with_seed(make_net):
    with isolated(0):
        return make_net()


def test_frozen_and_point_parameters_stay():
    net, x = make("mlp")
    net[0].bias.requires_grad_(False)
    model = make_model(net, random="2.*")
    passes = Passes(model, make_posterior("mean_field", model), "local", x)
    passes.one()
    assert torch.equal(passes.shell.placed("0.bias"), net[0].bias)
    assert torch.equal(passes.shell.placed("0.weight"), net[0].weight)
    assert isinstance(passes.shell.placed("2.weight"), Slot)


def test_a_family_without_the_estimators_form_asks_for_a_new_plan():
    net, x = make("mlp")
    model = make_model(net)
    posterior = make_posterior("full", model)
    place(
        model.shell(), posterior, estimators["local"], Plan({"0.weight": 0}, frozenset({"0.bias"}))
    )
    with pytest.raises(Replan, match=r"0\.weight: no local form"):
        model.shell()(x)


def test_the_error_for_unused_parameters_names_them():
    assert "a.weight, b.bias" in str(unused(["a.weight", "b.bias"]))


class Sometimes(torch.nn.Module):
    """Uses its first layer twice, but only on inputs the plan did not see."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)

    def forward(self, x):
        h = self.a(x)
        return self.b(self.a(h) if x.sum() > 0 else h)


def test_a_weight_met_twice_only_later_is_drawn_from_then_on():
    import credo
    from credo.engine.elbo import Elbo
    from credo.engine.step import EagerStep
    from credo.estimators import estimators

    model = credo.BNN(Sometimes(), "categorical").model
    elbo = Elbo(
        model,
        model.posterior("mean_field", model.values(), Start(0.1, "log", 1, seed=0)),
        estimators["local"],
    )
    step = EagerStep(elbo, torch.optim.SGD(elbo.parameters(), 1e-3), 8)
    model.shell().train(True)
    y = torch.tensor([0, 1] * 4)
    step(-torch.ones(8, 3), y, 1.0)
    assert "a.weight" in elbo.plan(model.shell(), torch.ones(8, 3)).example_axis
    step(torch.ones(8, 3), y, 1.0)
    assert set(elbo.plan(model.shell(), torch.ones(8, 3)).example_axis) == {"b.weight"}
