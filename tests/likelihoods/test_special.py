from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from credo.likelihoods.special import betainc, student_t_cdf


@pytest.mark.parametrize("a", [0.5, 1.0, 2.5, 40.0, 5000.0])
@pytest.mark.parametrize("b", [0.5, 3.0, 700.0])
def test_betainc_equals_scipy(a, b):
    x = torch.linspace(0, 1, 41, dtype=torch.float64)
    value = betainc(
        torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64), x, 1 - x
    )
    np.testing.assert_allclose(
        value.numpy(), scipy.special.betainc(a, b, x.numpy()), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("df", [2.01, 3.0, 30.0, 1e4])
def test_student_t_cdf_equals_scipy(df):
    x = torch.linspace(-60, 60, 201, dtype=torch.float64)
    value = student_t_cdf(x, torch.tensor(df, dtype=torch.float64))
    # log B(df/2, 1/2) is a difference of numbers of size lgamma(df/2), and carries their rounding.
    tolerance = 1e-14 + 4 * np.finfo(float).eps * abs(scipy.special.gammaln(df / 2))
    np.testing.assert_allclose(
        value.numpy(), scipy.stats.t.cdf(x.numpy(), df), rtol=0, atol=tolerance
    )
    tiny = torch.tensor([-1e-9, 1e-9], dtype=torch.float64)
    slope = (student_t_cdf(tiny, torch.tensor(df).double()).diff() / 2e-9).item()
    assert slope == pytest.approx(scipy.stats.t.pdf(0, df), rel=1e-6)
    assert student_t_cdf(x.float(), torch.tensor(df)).dtype == torch.float32
