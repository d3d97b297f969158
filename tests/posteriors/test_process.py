"""What a process over functions is, by one whose functions are lines through noise."""

import pytest
import torch
from zoo.stats import has_covariance, has_mean, has_variance

from credo.core.errors import CredoError
from credo.core.roots import semidefinite_root
from credo.core.seeds import Ambient
from credo.posteriors import Process, RowNoise, gaussian_outputs
from credo.posteriors.process import flattened

X = torch.linspace(-1, 1, 5, dtype=torch.float64).unsqueeze(1)


class Lines(Process):
    """f_d(x) = d + a x with a ~ N(0, (1 + d)^2)."""

    name = "lines"

    def __init__(self, shared=False):
        super().__init__({})
        self.shared = shared

    def outputs(self, inputs, noise, joint):
        return gaussian_outputs(self, inputs, noise, joint)

    def average(self, inputs):
        return torch.zeros_like(inputs) + torch.arange(2.0).double()

    def marginals_at(self, inputs):
        return self.average(inputs), self.joint_at(inputs)[1].diagonal(dim1=-2, dim2=-1).expand(
            2, -1
        ).T

    def joint_at(self, inputs):
        cover = inputs @ inputs.T
        return self.average(inputs), cover if self.shared else torch.stack([cover, 4 * cover])


@pytest.mark.parametrize("shared", [False, True])
def test_draws_by_themselves_and_of_whole_functions(shared):
    family, noise = Lines(shared), RowNoise(0, range(4000), 5)
    mean, cover = family.joint_at(X)
    apart, whole = family.outputs(X, noise, joint=False), family.outputs(X, noise, joint=True)
    has_mean(apart, mean)
    has_variance(apart, family.marginals_at(X)[1])
    for d in range(2):
        has_covariance(whole[..., d], cover if shared else cover[d])
    assert (
        torch.linalg.matrix_rank(whole[..., 0] - mean[:, 0], atol=1e-4) == 1
    )  # every one is a line through the same point
    assert torch.linalg.matrix_rank(apart[..., 0] - mean[:, 0], atol=1e-4) > 1


def test_noise_does_not_depend_on_how_inputs_are_batched():
    whole = RowNoise(3, [4, 7], 5).normal("f", 2, X)
    noise = RowNoise(3, [4, 7], 5)
    parts = [noise.at(start, min(start + 2, 5)).normal("f", 2, X) for start in range(0, 5, 2)]
    assert torch.equal(torch.cat(parts, 1), whole)
    assert torch.equal(RowNoise(3, [7], 5).normal("f", 2, X)[0], whole[1])
    assert not torch.equal(noise.normal("g", 2, X), whole)


def test_it_has_no_weights():
    family = Lines()
    assert (
        family.mean() == {}
        and not family.kl_is_bound
        and family.read(None, X[:, 0]).shape == (5, 1)
    )
    for act in (lambda: family.draw(Ambient()), lambda: family.begin(Ambient())):
        with pytest.raises(
            CredoError,
            match="'lines' is over functions and has no weights to draw; ask for predictions",
        ):
            act()
    with pytest.raises(
        CredoError, match="'lines' is over functions and has no density over weights"
    ):
        family.log_prob({})


def test_inputs_as_rows():
    assert flattened(torch.zeros(3, 2, 4)).shape == (3, 8) and flattened(torch.zeros(3)).shape == (
        3,
        1,
    )
    with pytest.raises(CredoError, match=r"takes one tensor \(N, ...\), got a dict"):
        flattened({"x": X})


def test_roots_of_singular_covariances():
    cover = X @ X.T - 1e-18 * torch.eye(5).double()
    root = semidefinite_root(cover)
    assert torch.allclose(root @ root.mT, cover, atol=1e-14)
    assert semidefinite_root(cover.float()).dtype == torch.float32
