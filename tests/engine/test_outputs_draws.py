import pytest
import torch
from scipy.stats import norm
from torch.distributions import Normal
from zoo.models import make_model, make_posterior
from zoo.networks import make, mlp
from zoo.stats import follows, has_covariance

from credo import BNN
from credo.core.errors import CredoError
from credo.engine.outputs import Draws, prior_draws, sampled_outputs
from credo.likelihoods import Gaussian
from credo.posteriors import Discrete
from credo.priors import FanIn


def model_and(kind):
    net, x = make("mlp")
    model = make_model(net, prior=Normal(0.5, 2.0))
    return model, make_posterior(kind, model), x


@torch.no_grad()
def test_draws_of_a_posterior_are_its_own_and_share_memory():
    model, posterior, _ = model_and("mean_field")
    draws = Draws.of(posterior, 5, seed=3)
    whole = posterior.sample(5, seed=3)
    assert list(draws.numbers) == [0, 1, 2, 3, 4] and draws.process is None and not draws.joint
    first = draws.realise([0, 1])
    kept = first["0.weight"].clone()
    torch.testing.assert_close(kept, whole["0.weight"][:2])
    second = draws.realise([2, 3])
    torch.testing.assert_close(second["0.weight"], whole["0.weight"][2:4])
    assert (
        second["0.weight"].data_ptr() == first["0.weight"].data_ptr()
    )  # a draw lasts until the next one


def test_atoms_are_visited_once_each_or_evenly():
    _, posterior, _ = model_and("samples")
    assert list(Draws.of(posterior, 100, 0).numbers) == [0, 1, 2, 3, 4]
    assert list(Draws.of(posterior, 2, 0).numbers) == [0, 2]


def test_a_point_is_one_draw_that_changes_nothing():
    model, _, x = model_and("delta")
    draws = Draws.point(model.values())
    assert draws.fixed == frozenset(model.sites) and len(draws.numbers) == 1
    outputs, extra = sampled_outputs(model, draws, x, model.buffers(), 0)
    torch.testing.assert_close(outputs[0], model.net(x).detach())
    assert extra == {}


def test_the_mean_of_a_posterior_and_where_there_is_none():
    model, posterior, x = model_and("mean_field")
    outputs, _ = sampled_outputs(model, Draws.mean(posterior, model), x, model.buffers(), 0)
    torch.testing.assert_close(
        outputs[0], torch.func.functional_call(model.net, posterior.mean(), x).detach()
    )
    for kind in ("mixture", "samples"):
        model, posterior, _ = model_and(kind)
        with pytest.raises(
            CredoError,
            match=f"not meaningful for a {kind} posterior: the mean of several modes is none of "
            "them",
        ):
            Draws.mean(posterior, model)


def test_prior_draws_are_seeded_one_by_one_and_leave_the_rest():
    net = mlp().double()
    model = make_model(net, "last", prior=Normal(0.5, 2.0))
    start = model.values()
    draws = Draws.prior(model, start, (), 400, seed=1)
    assert draws.fixed == {"0.weight", "0.bias"}
    state = torch.get_rng_state()
    whole = draws.realise(range(400))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(draws.realise([7])["2.weight"][0], whole["2.weight"][7])
    follows(whole["2.weight"].reshape(-1), norm(0.5, 2.0).cdf)
    assert torch.equal(whole["0.weight"], start["0.weight"].expand(400, 6, 5))
    assert not torch.equal(prior_draws(model, start, [7], 2)["2.weight"][0], whole["2.weight"][7])


def test_a_discrete_posteriors_prior_is_drawn_on_its_levels():
    net = mlp().double()
    model = make_model(net)
    family = Discrete.start(model.values(), (-1.0, 1.0))
    drawn = prior_draws(model, model.values(), range(20), 0, [family])
    assert set(drawn["0.weight"].reshape(-1).tolist()) == {-1.0, 1.0}


def test_functions_of_a_process_belong_together():
    """Draws that say ``joint`` have the covariance between inputs, others only each input's own
    variance.
    """
    x = torch.tensor([[0.0], [0.1]], dtype=torch.float64)
    y = torch.tensor([[-0.1], [0.1]], dtype=torch.float64)
    net = torch.nn.Sequential(
        torch.nn.Linear(1, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
    ).double()
    bnn = BNN(net, Gaussian(std=0.5), prior=FanIn())
    bnn.fit((x, y), "nngp", progress=False)
    process = bnn.posterior.process
    assert (
        Draws.of(bnn.posterior, 3, 0).process is process
        and Draws.of(bnn.posterior, 3, 0, joint=True).joint
    )
    assert Draws.mean(bnn.posterior, bnn.model).average
    _, cover = process.joint_at(x)
    has_covariance(bnn.functions(x, 4000)[..., 0], cover)
    has_covariance(bnn.predict(x, 4000).outputs[..., 0], torch.diag(cover.diagonal()))
