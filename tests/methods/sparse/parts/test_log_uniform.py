import pytest
from zoo.models import make_model, make_posterior
from zoo.networks import make

from credo.core.errors import SettingError
from credo.methods.sparse.parts.log_uniform import log_uniform_over
from credo.posteriors import PosteriorPrior
from credo.priors import is_log_uniform


def test_the_named_parameters_alone_are_random_under_it():
    model = make_model(make("mlp")[0])
    name, *others = model.random
    narrow = log_uniform_over(model, [name], "sparse_vd")
    assert list(narrow.random) == [name] and set(others) <= set(narrow.point)
    assert is_log_uniform(narrow.prior.at(narrow.random[name]))


def test_an_earlier_posterior_is_not_forgotten():
    model = make_model(make("mlp")[0])
    model.prior = PosteriorPrior(make_posterior("mean_field", model))
    with pytest.raises(SettingError, match="sparse_vd: update would forget the earlier data"):
        log_uniform_over(model, model.random, "sparse_vd")
