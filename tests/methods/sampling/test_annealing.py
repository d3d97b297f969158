import math

import pytest
import torch
from zoo import regression
from zoo.chains import Square, wells

from credo import BNN
from credo.core.errors import SettingError
from credo.likelihoods import Gaussian
from credo.posteriors import Delta


def fit(prior_mean=2.0, start=-1.0, **how):
    bnn, data = wells(prior_mean, start)
    return bnn.fit(
        data, "annealing", progress=False, **({"num_moves": 150, "init": "pretrained"} | how)
    )


def mode(fitted):
    return float(fitted.posterior.mean()["level"])


def test_the_higher_of_two_modes_is_found_from_the_lower():
    """Both have the same likelihood; the prior N(2, 1) prefers the right one by 4 nats, and 16 nats
    are between them.
    """
    w = torch.linspace(0.5, 1.5, 100_001, dtype=torch.float64)
    from zoo.chains import well_density

    best = float(w[well_density(w, 2.0).argmax()])
    assert (
        abs(mode(fit()) - best) < 1e-2
    )  # the coldest temperature, 1e-4, leaves a hundredth of the posterior's deviation, 0.09
    assert (
        abs(mode(fit(hottest=0.1)) + best) < 0.1
    )  # without a high temperature it stays at the lower: the test has power


def test_the_answer_is_a_point():
    fitted = fit(num_moves=5)
    assert fitted.posterior.atoms == 1 and isinstance(fitted.posterior.factors[0], Delta)
    x = torch.zeros(2, 1, dtype=torch.float64)
    assert float(fitted.predict(x, 10).epistemic.abs().max()) == 0.0


def test_what_is_kept_is_the_best_point_of_all_chains():
    """At a constant high temperature the last points are anywhere; the answer's density is at least
    every one noted on the way.
    """
    fitted = fit(hottest=10.0, coldest=10.0, num_moves=60)
    level = fitted.posterior.mean()["level"]
    _, (_, y) = wells()
    value = (
        torch.distributions.Normal(level.square(), 0.5).log_prob(y).sum()
        + torch.distributions.Normal(2.0, 1.0).log_prob(level).sum()
    )
    noted = [max(row["log_density"]) for row in fitted.history]
    assert math.isclose(float(value), max(noted), abs_tol=1e-9) and noted[-1] < max(noted)


def test_temperatures_fall_geometrically():
    rows = fit(num_moves=40, hottest=4.0, coldest=0.25).history
    found = [row["temperature"] for row in rows]
    assert len(found) == 40 and found[0] == 4.0
    assert all(math.isclose(found[i], 4.0 * (1 / 16) ** (i / 40), rel_tol=1e-5) for i in range(40))


def test_a_single_move_and_a_single_chain():
    assert math.isfinite(mode(fit(num_moves=1, num_chains=1)))


def test_learned_noise_is_where_the_joint_density_is_highest():
    """Point and noise maximise log p(D, w given std) together: for the ridge solution at that noise
    the slope in log std vanishes.
    """
    x, y, _ = regression.problem()
    fitted = regression.bnn(likelihood=Gaussian()).fit(
        (x, y), "annealing", num_moves=200, num_steps=4, lr=0.03, progress=False
    )
    log_std = fitted.likelihood.log_std.detach().double()
    residual = (y - fitted.functions(x, 1)[0]).square().mean().sqrt()
    # The maximum over std given w is the residual's own size; 30 data know log std to sqrt(1 / 60)
    # = 0.13.
    assert abs(float(log_std - residual.log())) < 0.13 < 0.4 < abs(float(log_std))


@pytest.mark.slow
def test_a_last_layer_alone():
    x, y, _ = regression.problem()
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
    ).double()
    fitted = BNN(net, Gaussian(std=0.5), random="last").fit(
        (x, y), "annealing", num_moves=200, num_steps=3, lr=0.05, progress=False
    )
    assert fitted.posterior.atoms == 1 and fitted.posterior.fixed >= {"0.weight", "0.bias"}
    assert float((fitted.functions(x, 1)[0] - y).square().mean() / y.var()) < 0.5


@pytest.mark.parametrize(
    "bad", [{"num_moves": 0}, {"hottest": 0.0}, {"coldest": -1.0}, {"init": "annealing"}]
)
def test_bad_settings_are_named(bad):
    with pytest.raises(SettingError, match=next(iter(bad))):
        fit(**bad)


def test_the_network_itself_is_not_moved():
    net = Square(-1.0)
    _, data = wells()
    BNN(net, Gaussian(std=0.5)).fit(data, "annealing", num_moves=3, progress=False)
    assert float(net.level.detach()) == -1.0
