"""Tests of square roots."""

import pytest
import torch

from credo.core.roots import semidefinite_root


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [1, 3, 5])
def test_a_root_times_itself_is_the_matrix_even_where_that_is_singular(dtype, rank):
    source = torch.randn(4, 5, rank, dtype=dtype, generator=torch.Generator().manual_seed(rank))
    matrix = source @ source.mT
    root = semidefinite_root(matrix)
    assert root.dtype == dtype
    torch.testing.assert_close(root, root.mT)
    torch.testing.assert_close(
        root @ root.mT, matrix, atol=1e-5 if dtype == torch.float32 else 1e-12, rtol=0
    )


def test_eigenvalues_below_zero_count_as_zero():
    matrix = torch.diag(torch.tensor([4.0, -1e-7]))
    torch.testing.assert_close(
        semidefinite_root(matrix) @ semidefinite_root(matrix).mT,
        torch.diag(torch.tensor([4.0, 0.0])),
    )
    assert float(semidefinite_root(torch.tensor([[-1e-9]]))) == 0.0
