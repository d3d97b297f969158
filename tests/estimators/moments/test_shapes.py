"""Operations that move elements: exact, so compared with Monte Carlo only through the covariance
they leave.
"""

import pytest
import torch
from zoo.moments import agrees, gaussian

from credo.core.errors import NetworkError

FUNCTIONS = {
    "flatten": lambda x: x.flatten(1),
    "view": lambda x: x.view(x.size(0), -1),
    "reshape": lambda x: x.reshape(-1, 3, 2),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x.unsqueeze(2).squeeze(2),
    "permute": lambda x: x.permute(0, 2, 1),
    "transpose": lambda x: x.transpose(1, 2),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(2, 1),
    "last": lambda x: x[:, -1],
    "slice": lambda x: x[:, :, 1:],
    "chunk": lambda x: x.chunk(3, 2)[1],
    "split": lambda x: torch.split(x, [1, 2], 2)[1],
    "flip": lambda x: x.flip(2),
    "contiguous": lambda x: x.transpose(1, 2).contiguous(),
    "clone": lambda x: x.clone(),
    "unbind": lambda x: x.unbind(1)[1],
    "repeat": lambda x: x.repeat(1, 2, 1),
    "select": lambda x: x.select(2, 1),
}


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_against_monte_carlo(name, full):
    agrees(FUNCTIONS[name], gaussian((2, 2, 3), full), draws=4000)


@pytest.mark.parametrize(
    "function",
    [lambda x: x.transpose(0, 1), lambda x: x[0], lambda x: x.flatten(), lambda x: x[[1, 0]]],
)
def test_the_example_axis_must_stay_first_with_a_covariance(function):
    with pytest.raises(NetworkError, match="example.*diagonal mode"):
        function(gaussian((2, 2, 3), True))
    out = function(gaussian((2, 2, 3), False))
    assert out.shape == out.var_or_cov.shape


def test_types_move_with_both_moments():
    out = gaussian((2, 3), True).float()
    assert out.dtype == out.var_or_cov.dtype == torch.float32
