import torch
from zoo.models import make_model
from zoo.networks import make

from credo.data import intake
from credo.engine.validation import validation_nll


def test_of_a_point_it_is_the_mean_nll_of_the_network():
    net, x = make("mlp")
    model = make_model(net, likelihood="categorical")
    y = torch.arange(len(x)) % 2
    score = validation_nll(model, intake((x, y)))
    found = score(model.point_posterior(model.values()), model.buffers())
    with torch.no_grad():
        exact = -float(model.likelihood.log_prob(net.eval()(x), y).mean())
    assert abs(found - exact) < 1e-9 + 1e-6 * abs(exact)
