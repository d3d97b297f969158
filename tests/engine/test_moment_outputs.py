"""Outputs of one pass that carries moments: points with their mean and variance."""

import pytest
import torch
from zoo.dropout import begin
from zoo.dropout import make as make_dropout
from zoo.models import make_model, make_posterior
from zoo.networks import make

from credo.core.errors import CredoError, SettingError
from credo.engine.moment_outputs import moment_outputs
from credo.estimators.moments import propagate


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("samples", [40, 3])
def test_moments_stand_as_points_with_their_mean_and_variance(covariance, samples):
    net, x = make("mlp")
    model = make_model(net)
    posterior = make_posterior("mean_field", model)
    out = moment_outputs(model, posterior, x, model.buffers(), samples, covariance, None)
    with torch.no_grad():
        mean, spread = propagate(model.shell(), posterior, x, covariance)
    var = spread if covariance == "diagonal" else spread.diagonal(dim1=1, dim2=2)
    assert out.shape == (samples, 3, 2) and torch.allclose(out.mean(0), mean)
    if covariance == "diagonal" or samples > 4:
        assert torch.allclose(out.var(0, correction=0), var)
    assert torch.equal(
        out, moment_outputs(model, posterior, x, model.buffers(), samples, covariance, None)
    )


def test_one_point_cannot_show_a_variance():
    net, x = make("mlp")
    model = make_model(net)
    with pytest.raises(SettingError, match="it takes at least 2"):
        moment_outputs(model, make_posterior("mean_field", model), x, {}, 1, "diagonal", None)


def test_moments_do_not_leave_live_noise_out():
    net, x = make_dropout("functional")
    model, posterior = begin("mc_dropout", net, x)
    with pytest.raises(CredoError):
        moment_outputs(model, posterior, x, model.buffers(), 10, "diagonal", None)
