"""Predictions of the linearised network f(w*) + J (w - w*): Gaussian wherever the posterior is.

For Laplace posteriors this is the right network to predict with: it is the one whose posterior was
computed. Works for any Gaussian posterior.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from credo.core.errors import CredoError, SettingError
from credo.core.shell import plain_kernels
from credo.core.tree import num_rows, split
from credo.curvature.sweep import BUDGET, example_jacobians
from credo.curvature.taps import (
    caught_numel,
    find_taps,
    gradients,
    layer_jacobians,
    prepared,
    tapped,
    untapped,
)
from credo.engine.model import Model
from credo.engine.moment_outputs import shown
from credo.engine.outputs import Draws
from credo.posteriors import Gaussian, Params, Posterior
from credo.posteriors.jacobian import DenseDerivatives, Jacobian, joined
from credo.predictive.shortcuts import Shortcut, shortcuts


def _gaussian_factors(posterior: Posterior) -> list[Gaussian]:
    """The factors that are no point estimates, which must be Gaussian."""
    random = [family for family in posterior.factors if family.atoms != 1]
    gaussians = [g for family in random if (g := family.as_gaussian()) is not None]
    if len(gaussians) < len(random) or not random:
        odd = next((family.name for family in random if family.as_gaussian() is None), None)
        raise CredoError(
            "A linearised prediction needs a Gaussian posterior, and this is "
            f"{odd or 'a point estimate'}; predict without shortcut, or fit with "
            "'laplace' or 'vi'."
        )
    reason = next(
        (family.meaningless_mean for family in random if family.meaningless_mean is not None), None
    )
    if reason is not None:
        raise CredoError(
            f"A prediction linearised at the mean is not meaningful here: {reason}; predict with "
            "draws."
        )
    return gaussians


def _jacobians(
    model: Model,
    posterior: Posterior,
    x: Any,
    buffers: Mapping[str, Tensor],
    batch_size: int | None,
) -> Iterator[tuple[Tensor, Jacobian]]:
    """Outputs ``(n, F)`` and derivatives of all of them by every parameter that varies, a few
    inputs at a time.
    """
    model, values = _varying_model(model, posterior), _mean_weights(model, posterior)
    x = model.move(x)
    taps = find_taps(model, values, buffers, next(iter(split(x, 2))))
    others = {n: s for n, s in untapped(model, taps).items() if n in values}
    shell = prepared(model, values, buffers)
    with torch.no_grad():
        probe = model.outputs(shell, next(iter(split(x, 1))))
    width = probe.shape[-1]
    needed = sum(_numel(family, taps) for family in _gaussian_factors(posterior)) + sum(
        site.numel for site in others.values()
    )
    needed = max(1, width * needed, caught_numel(model, taps))
    budget = 8 * BUDGET if model.device.type == "cuda" else BUDGET
    size = min(batch_size or num_rows(x), max(1, budget // needed), 1000)
    for batch in split(x, size):
        shell = prepared(model, values, buffers)
        outputs, caught = tapped(model, shell, taps, batch)
        count = num_rows(batch)
        axes = torch.eye(width, dtype=outputs.dtype, device=outputs.device)
        jacobian: dict[str, Any] = {}
        if caught:
            found = [
                gradients(outputs, caught, axes[k].expand(count, width), k + 1 < width)
                for k in range(width)
            ]
            for path, tap in taps.items():
                jacobian |= layer_jacobians(
                    tap, caught[path].inputs, torch.stack([g[path] for g in found], 1)
                )
        if others:
            derivatives = example_jacobians(
                model, values, buffers, others, batch, axes.expand(count, width, width)
            )
            jacobian |= {name: DenseDerivatives(value) for name, value in derivatives.items()}
        yield outputs.detach(), jacobian


def _varying_model(model: Model, posterior: Posterior) -> Model:
    """The model without the random parameters that no draw changes, by which no derivative is
    needed.
    """
    still = posterior.fixed & set(model.random)
    return model.only(set(model.random) - still) if still else model


def _mean_weights(model: Model, posterior: Posterior) -> Params:
    """E[w] in the network's precision, which a posterior need not have."""
    sites = model.sites
    return {
        n: v.detach().to(sites[n].device, sites[n].dtype)
        for n, v in posterior.mean().items()
        if n in sites
    }


def _numel(family: Gaussian, taps: Mapping[str, Any]) -> int:
    """Numbers of one derivative that this family wants written out: none where factors are
    enough.
    """
    places = {name: tap.places for tap in taps.values() for name in tap.names}
    return sum(family.written(name, places.get(name)) for name in family.names)


@torch.no_grad()
def linear_moments(
    model: Model,
    posterior: Posterior,
    x: Any,
    buffers: Mapping[str, Tensor],
    batch_size: int | None,
    covariance: bool,
) -> tuple[Tensor, Tensor]:
    """Mean ``(N, F)`` and covariance ``(N, F, F)``, or variance ``(N, F)``, of the linearised
    network's outputs.
    """
    factors = _gaussian_factors(posterior)
    means, covariances = [], []
    for outputs, jacobian in _jacobians(model, posterior, x, buffers, batch_size):
        parts = [_contribution(f, jacobian, covariance).to(outputs.dtype) for f in factors]
        means.append(outputs)
        covariances.append(parts[0] if len(parts) == 1 else torch.stack(parts).sum(0))
    return torch.cat(means), torch.cat(covariances)


def _contribution(family: Gaussian, jacobian: Jacobian, covariance: bool) -> Tensor:
    """One family's share of the outputs' covariance, or variance, in its own precision."""
    dtype = next(family.parameters()).dtype
    own = {name: jacobian[name].to(dtype) for name in family.names if name not in family.fixed}
    return family.output_covariance(own) if covariance else family.output_variance(own)


def linear_outputs(
    model: Model,
    posterior: Posterior,
    x: Any,
    buffers: Mapping[str, Tensor],
    samples: int,
    batch_size: int | None,
) -> Tensor:
    """Outputs ``(S, N, F)`` that stand for the Gaussian of every input: points with its mean and,
    for S > 2 F, its covariance, exactly.
    """
    if samples < 2:
        raise SettingError(
            f"samples={samples}: a linearised prediction is shown by points with its variance, of "
            "at least 2."
        )
    moments = linear_moments(model, posterior, x, buffers, batch_size, covariance=True)
    return shown(*moments, samples)


def probit_outputs(
    model: Model,
    posterior: Posterior,
    x: Any,
    buffers: Mapping[str, Tensor],
    _samples: int,
    batch_size: int | None,
) -> Tensor:
    """Outputs ``(1, N, F)`` scaled down so that their probabilities are about the mean ones: no
    draw at all.
    """
    mean, var = linear_moments(model, posterior, x, buffers, batch_size, covariance=False)
    return model.likelihood.softened(mean, var).unsqueeze(0)


@torch.no_grad()
def linear_functions(
    model: Model,
    posterior: Posterior,
    draws: Draws,
    x: Any,
    buffers: Mapping[str, Tensor],
    batch_size: int | None,
) -> Tensor:
    """Draws of functions ``(S, N, F)``: f(w*) + J (w_s - w*), whose values at all inputs belong
    together.

    By one forward derivative per draw; where an operation of the network has none, from the
    derivatives of every output.
    """
    _gaussian_factors(posterior)
    model, values = _varying_model(model, posterior), _mean_weights(model, posterior)
    start = {n: values[n] for n in model.random}
    shell = prepared(model, values, buffers)
    x = model.move(x)

    def change(number: int) -> Params:
        return {
            n: w[0].to(start[n]) - start[n]
            for n, w in draws.realise([number]).items()
            if n in start
        }

    def forward(number: int) -> Tensor:
        delta, parts = change(number), []
        for batch in split(x, batch_size):

            def run(params: Params, batch: Any = batch) -> Tensor:
                shell.place(params)
                return model.outputs(shell, batch)

            with plain_kernels(shell):
                outputs, moved = torch.func.jvp(run, (start,), (delta,))  # type: ignore[misc]
            parts.append(outputs + moved)
        return torch.cat(parts)

    try:
        return torch.stack([forward(number) for number in draws.numbers])
    except (RuntimeError, NotImplementedError) as error:
        warnings.warn(
            "Functions from the derivatives of every output: forward derivatives cannot run this "
            f"network ({str(error).splitlines()[0]}).",
            stacklevel=3,
        )
    finally:
        shell.place(start)
    names = tuple(start)
    deltas = torch.stack(
        [torch.cat([d[n].reshape(-1) for n in names]) for d in map(change, draws.numbers)]
    )
    parts = [
        outputs + torch.einsum("nfp,sp->snf", joined(jacobian, names), deltas)
        for outputs, jacobian in _jacobians(model, posterior, x, buffers, batch_size)
    ]
    return torch.cat(parts, 1)


shortcuts.register("linear")(Shortcut(linear_outputs, linear_functions))
shortcuts.register("probit")(Shortcut(probit_outputs, linear_functions))
