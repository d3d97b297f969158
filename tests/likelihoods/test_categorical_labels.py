from __future__ import annotations

import pytest
import torch

from credo.likelihoods import Bernoulli, Categorical
from credo.likelihoods.categorical import LabelLikelihood


def test_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        LabelLikelihood()  # type: ignore[abstract]


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
def test_reported_variance_is_across_draws(likelihood):
    f = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = likelihood.probs(f)
    torch.testing.assert_close(likelihood.reported_variance(f), ((p - p.mean(0)) ** 2).sum(0) / 6)
    mean, variance = likelihood.moments(f)
    torch.testing.assert_close(variance, mean - mean**2)
