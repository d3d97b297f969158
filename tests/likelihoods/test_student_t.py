from __future__ import annotations

import pytest
import scipy.stats
import torch

from credo.core.errors import SettingError
from credo.likelihoods import StudentT


def test_quantile_equals_scipy():
    f = torch.zeros(1, 1, 1, dtype=torch.float64)
    for q in (0.025, 0.5, 0.999):
        value = StudentT(3.0, 2.0).mixture_quantile(f, q).item()
        assert value == pytest.approx(scipy.stats.t.ppf(q, 3.0, 0.0, 2.0), abs=1e-9)


def test_variance_is_above_the_squared_scale():
    assert StudentT(4.0, 0.5).moments(torch.zeros(1, 1))[1].item() == pytest.approx(0.25 * 4 / 2)


def test_df_stays_above_two():
    with pytest.raises(SettingError, match=r"df=2\.0 is not valid; expected numbers above 2"):
        StudentT(df=2.0)
    likelihood = StudentT()
    assert likelihood.df(torch.zeros(1)).item() == pytest.approx(5.0)
    assert {n for n, _ in likelihood.named_parameters()} == {"log_df", "log_scale"}
    assert {n for n, _ in StudentT(df=4.0).named_parameters()} == {"log_scale"}


def test_outliers_pull_less_than_squared_errors():
    f = torch.tensor([[0.0]], requires_grad=True)
    StudentT(4.0, 1.0).log_prob(f, torch.tensor([[100.0]])).sum().backward()
    assert f.grad is not None and 0.0 < f.grad.item() < 0.1
