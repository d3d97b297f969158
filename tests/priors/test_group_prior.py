"""The stand-in for a prior over groups: it names itself and refuses what only single weights
have.
"""

import pytest
import torch

from credo.core.errors import CredoError
from credo.core.sites import Site
from credo.priors import Fixed, is_proper
from credo.priors.group_prior import GroupPrior

SITE = Site("w", "", torch.Size((2, 3)), torch.float64, torch.device("cpu"), fan_in=3)


def test_it_has_neither_density_nor_draws():
    prior = GroupPrior("horseshoe", True)
    with pytest.raises(
        CredoError, match="The horseshoe prior is over groups of weights, not over single ones"
    ):
        prior.log_prob(torch.zeros(2))
    with pytest.raises(CredoError, match="source='prior' needs an elementwise prior"):
        prior.sample(torch.Size([3]))


@pytest.mark.parametrize("proper", [True, False])
def test_it_moves_with_a_site_and_says_whether_it_is_proper(proper):
    moved = Fixed(GroupPrior("normal-Jeffreys", proper)).at(SITE)
    assert (
        isinstance(moved, GroupPrior)
        and moved.label == "normal-Jeffreys"
        and is_proper(moved) == proper
    )
    assert "normal-Jeffreys" in repr(moved)
