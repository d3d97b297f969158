import torch
from zoo.models import Passes, make_model, make_posterior
from zoo.networks import make

from credo.core.seeds import isolated
from credo.estimators import Weights, estimators


def test_it_never_intercepts():
    assert isinstance(estimators["weights"], Weights) and not Weights.intercepts
    net, x = make("mlp")
    model = make_model(net)
    assert (
        Passes(model, make_posterior("mean_field", model), "weights", x).plan.slots == frozenset()
    )
    assert Weights().meet(None, None, x, "0.weight", None, None) is NotImplemented


def test_a_pass_equals_the_network_at_the_drawn_weights():
    net, x = make("mlp")
    model = make_model(net)
    passes = Passes(model, make_posterior("mean_field", model), "weights", x)
    with isolated(3):
        out = passes.one()
    drawn = {name: passes.shell.placed(name) for name in model.random}
    assert torch.equal(out, torch.func.functional_call(net, drawn, x))


def test_all_examples_share_one_draw():
    net, x = make("mlp")
    model = make_model(net)
    out = Passes(model, make_posterior("mean_field", model), "weights", x[:1].expand(4, 5))(1)[0]
    assert (out == out[:1]).all()
