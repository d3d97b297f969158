import pytest
import torch
from zoo.models import make_model
from zoo.networks import make

from credo.core.errors import DataError, NetworkError, SettingError
from credo.data import intake
from credo.engine.fit_job import FitJob
from credo.likelihoods import Gaussian
from credo.methods import DeepEnsemble
from credo.methods.ensembles.parts.members import member_seeds
from credo.methods.ensembles.parts.members_fit import start_members


def model(name="mlp"):
    return make_model(make(name)[0], likelihood=Gaussian(std=1.0))


def fit_job(**how):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(12, width, generator=generator, dtype=torch.float64) for width in (5, 2))
    return FitJob(
        **({"source": intake((x, y)), "epochs": 2, "batch_size": 5, "lr": 0.01, "seed": 3} | how)
    )


def test_random_members_start_differently_and_the_first_where_a_single_fit_would():
    one = model()
    members = start_members(one, fit_job(), 3, "random")
    for k, seed in enumerate(member_seeds(3, 3)):
        assert all(
            torch.equal(v[k], one.random_values(seed)[n]) for n, v in members.values().items()
        )
    assert members.seeds == tuple(member_seeds(3, 3))


def test_pretrained_members_start_together_and_part_by_their_data():
    one = model()
    members = start_members(one, fit_job(), 2, "pretrained")
    assert all(
        torch.equal(v[0], v[1]) and torch.equal(v[0], one.values()[n])
        for n, v in members.values().items()
    )
    fitted = DeepEnsemble(num_members=2, init="pretrained").fit(one, fit_job()).posterior
    assert not torch.equal(*fitted.realise([0, 1], 0)["0.weight"])


def test_a_state_dict_as_start():
    one, (other, _) = model(), make("mlp", seed=9)
    members = start_members(one, fit_job(), 2, other.state_dict())
    assert all(torch.equal(members.values()[n][1], p) for n, p in other.named_parameters())
    with pytest.raises(NetworkError, match=r"init holds 'nothing'"):
        start_members(one, fit_job(), 2, {"nothing": torch.zeros(1)})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"num_members": 0}, "num_members=0"),
        ({"num_members": 2.5}, "num_members=2.5"),
        ({"optimizer": "lbfgs"}, "optimizer='lbfgs'"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"adversarial": -0.1}, "adversarial=-0.1"),
        ({"init": "pretained"}, "init='pretained'"),
    ],
)
def test_bad_settings_are_named(given, text):
    with pytest.raises(SettingError, match=text):
        DeepEnsemble(**given)


def test_a_batch_that_the_network_cannot_take_is_said_with_its_size():
    """Eleven examples in fives: a last batch of one, which BatchNorm cannot normalise."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(11, width, generator=generator, dtype=torch.float64) for width in (5, 2))
    one, method = model("batchnorm"), DeepEnsemble(num_members=2)
    given = fit_job(source=intake((x, y)))
    with pytest.raises(
        DataError, match="cannot train on a batch of 1: .*choose another batch_size"
    ):
        method.fit(one, given)
