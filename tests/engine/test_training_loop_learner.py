from typing import get_type_hints

import pytest
import torch
from torch import nn
from zoo.models import make_model, make_posterior
from zoo.networks import make

from credo.core.seeds import generator
from credo.data import intake
from credo.engine.elbo import Elbo
from credo.engine.fit_job import FitJob
from credo.engine.model import Fitted
from credo.engine.training_loop import Learner
from credo.estimators import estimators
from credo.likelihoods import Gaussian
from credo.methods.ensembles.parts.members import Members


class Least(Learner):
    """A learner that says only what it must."""

    def __init__(self, model):
        super().__init__()
        self.weight, self._model = nn.Parameter(torch.zeros(2)), [model]

    @property
    def model(self):
        return self._model[0]

    def fitted(self):
        return Fitted(make_posterior("delta", self.model), {})


def model():
    return make_model(make("mlp")[0], likelihood=Gaussian(std=1.0))


def test_the_defaults_are_those_of_one_network_that_nothing_is_known_of():
    least = Least(model())
    assert (
        least.examples(torch.zeros(7, 2)) == 7
        and least.divergence() is None
        and least.monitor() == {}
    )
    least.after_epoch(0, 1)
    least.after_fit()
    assert list(least.state_dict()) == ["weight"], "the model is no part of a checkpoint"


def test_the_order_of_an_epoch_depends_on_seed_and_epoch_alone():
    x = torch.arange(10.0).unsqueeze(1)
    source, least = intake((x, x)), Least(model())

    def order(seed, epoch):
        return (
            torch.cat([y for _, y in least.batches(source, FitJob(source, 3, 4, 0.1, seed), epoch)])
            .flatten()
            .tolist()
        )

    wanted = torch.randperm(10, generator=generator(3, "order", 1)).tolist()
    assert order(3, 1) == order(3, 1) == wanted
    assert order(3, 1) != order(3, 2) and order(3, 1) != order(4, 1)


def test_what_must_be_said_is_asked_for():
    with pytest.raises(TypeError, match="abstract"):
        Learner()  # type: ignore[abstract]


def test_objectives_and_members_are_learners():
    one = model()
    elbo = Elbo(one, make_posterior("mean_field", one), estimators["weights"])
    members = Members(one, [one.values()] * 2, (0, 1))
    assert isinstance(elbo, Learner) and isinstance(members, Learner)
    assert elbo.model is members.model is one and get_type_hints(Learner.fitted)["return"] is Fitted
    assert elbo.divergence() is None and float(members.divergence()) > 0
    assert members.examples(torch.zeros(2, 7)) == 7
    assert isinstance(elbo.fitted().posterior, type(members.fitted().posterior))
