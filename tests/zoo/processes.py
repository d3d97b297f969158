"""Gaussian process regression by dense inverses, for kernels and data as a sparse layer has
them.
"""

import math

import torch

# what gpytorch adds, in double precision, to the covariance of inducing points and to variances
JITTER = 1e-6


def kernel(layer, a, b):
    """The layer's RBF kernel ``(F, Na, Nb)`` between unscaled rows, written out."""
    a, b = ((rows - layer.shift) / layer.scale for rows in (a, b))
    square = (a.unsqueeze(1) - b.unsqueeze(0)).square().sum(-1)
    length, height = layer.covar_module.base_kernel.lengthscale, layer.covar_module.outputscale
    return height.reshape(-1, 1, 1) * torch.exp(-0.5 * square / length.square())


def unscaled(layer):
    """Where the inducing points are among the layer's inputs."""
    return layer.strategy.inducing_points * layer.scale + layer.shift


@torch.no_grad()
def exact(layer, x, y, std, new):
    """Mean ``(N,)``, covariance and log evidence of exact regression with the kernel and mean of
    the layer's one process.
    """
    constant, eye = layer.mean_module.constant, torch.eye(len(x), dtype=torch.float64)
    cover = kernel(layer, x, x)[0] + std**2 * eye
    cross, rest = kernel(layer, new, x)[0], y[:, 0] - constant
    mean = constant + cross @ torch.linalg.solve(cover, rest)
    spread = kernel(layer, new, new)[0] - cross @ torch.linalg.solve(cover, cross.mT)
    evidence = -0.5 * (
        rest @ torch.linalg.solve(cover, rest)
        + torch.logdet(cover)
        + len(x) * math.log(2 * math.pi)
    )
    return mean, spread, float(evidence)


@torch.no_grad()
def solve(layer, x, y, std):
    """Put q where its bound is largest: S = (I + A A^T / s^2)^-1 and a = S A (y - m) / s^2, for
    Gaussian noise of deviation s.
    """
    points, q = unscaled(layer), layer.strategy._variational_distribution
    eye = torch.eye(len(points), dtype=torch.float64)
    root = torch.linalg.cholesky(kernel(layer, points, points)[0] + JITTER * eye)
    reach = torch.linalg.solve_triangular(root, kernel(layer, points, x)[0], upper=False)
    cover = torch.linalg.inv(eye + reach @ reach.mT / std**2)
    q.variational_mean.copy_(
        (cover @ reach @ (y[:, 0] - layer.mean_module.constant) / std**2).unsqueeze(0)
    )
    q.chol_variational_covar.copy_(torch.linalg.cholesky(cover).unsqueeze(0))
