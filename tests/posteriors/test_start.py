import pytest
from zoo.models import make_model
from zoo.networks import make

from credo.core.errors import CredoError
from credo.posteriors import Gaussian, Samples, Start, startable


@pytest.mark.parametrize("kind", startable(Gaussian))
def test_gaussian_families_begin_with_the_wanted_deviation(kind):
    model = make_model(make("mlp")[0])
    posterior = model.posterior(kind, model.values(), Start(init_std=0.2))
    for family in posterior.factors:
        for std in family.std().values():
            assert float(std.detach().square().mean()) == pytest.approx(0.04, rel=0.9), kind


def test_a_family_that_begins_no_fit_says_which_do():
    with pytest.raises(CredoError, match=r"expected one of .*mean_field"):
        Samples.over([], {}, Start())
