"""Where the groups of weights lie."""

import pytest
import torch

from credo.core.errors import CredoError
from credo.posteriors import Place
from credo.posteriors.group_place import bank_counts


@pytest.mark.parametrize(
    ("place", "shape"),
    [
        (Place("w", 0), (3, 4)),
        (Place("w", 1), (3, 4)),
        (Place("w", 1, 2), (4, 3, 2, 2)),
        (Place("w", 0), (5,)),
    ],
)
def test_sums_are_the_adjoint_of_over(place, shape):
    """<sums(a), v> = <a, over(v)> for any a of the weights and v of the groups."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(shape, generator=generator, dtype=torch.float64)
    groups = torch.randn(place.count(shape), generator=generator, dtype=torch.float64)
    torch.testing.assert_close(
        (place.sums(weights) * groups).sum(), (weights * place.over(groups, shape)).sum()
    )


def test_parameters_of_one_bank_have_as_many_groups():
    with pytest.raises(
        CredoError, match="b has 3 groups along axis 0, but its bank of scales 'w' has 4"
    ):
        bank_counts({"w": (3, 4), "b": (3,)}, {"w": Place("w", 1), "b": Place("w", 0)})
