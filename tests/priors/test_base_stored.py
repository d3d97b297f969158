import json

import pytest
import torch
from torch.distributions import Normal, Uniform

from credo.core.errors import SettingError
from credo.priors import Flat, ScaleMixture, scale_mixture
from credo.priors.base import LONGEST, arguments, of_config, rebuilt, stored, to_config
from credo.priors.zero_mixture import ZeroMixture

#: Arguments that are valid for every class in the table that takes them.
VALUES = {"loc": 0.1, "df": 3.0, "df1": 3.0, "df2": 4.0}
GIVEN = {
    "Uniform": Uniform(-1.0, 2.0),
    "ScaleMixture": ScaleMixture("inverse_gamma", 0.7, df=3.0),
    "GaussianMixture": scale_mixture(0.3),
    "ZeroMixture": ZeroMixture(0.4, [0.3, 0.0], [-1.0, 2.0], [9.0, 4.0, 1.0]),
}


@pytest.mark.parametrize("name", stored.names())
def test_every_class_in_the_table_comes_back(name):
    kind = stored[name].kind
    given = GIVEN.get(name) or kind(**{a: VALUES.get(a, 0.7) for a in kind.arg_constraints})
    config = to_config(given)
    again = of_config(json.loads(json.dumps(config)))
    x = torch.tensor([0.8, 0.9])
    assert type(again) is kind and to_config(again) == config
    assert torch.equal(again.log_prob(x), given.log_prob(x))


def test_numbers_keep_their_precision():
    exact = of_config(
        to_config(
            Normal(torch.tensor(0.1, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
        )
    )
    assert exact.loc.item() == 0.1 and exact.loc.dtype == torch.float64
    assert of_config(to_config(Normal(0.1, 1.0))).loc.dtype == torch.float32


def test_what_is_not_stored():
    class Mine(Normal):
        pass

    assert to_config(Mine(0.0, 1.0)) is None
    assert (
        to_config(Normal(torch.zeros(LONGEST + 1), 1.0)) is None
        and to_config(Normal(torch.zeros(LONGEST), 1.0)) is not None
    )
    assert to_config(Normal(torch.tensor(float("inf")), 1.0, validate_args=False)) is None
    with pytest.raises(
        SettingError, match="Unknown prior distribution 'Norml'. Did you mean 'Normal'"
    ):
        of_config({"distribution": "Norml", "arguments": {}})


def test_rebuilding_keeps_what_is_not_a_tensor():
    new = rebuilt(ScaleMixture("half_cauchy", 1.0), {"scale": torch.tensor(2.0)})
    assert new.mixing.name == "half_cauchy" and new.scale == 2.0
    assert list(arguments(new)) == ["scale"] and arguments(Flat()) == {}
