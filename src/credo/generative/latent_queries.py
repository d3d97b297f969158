"""What a fitted autoencoder can be asked: codes, reconstructions, its networks; everything under
draws of the weights, seeded and in batches.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from credo.bnn import BNN
from credo.core.errors import CredoError, DataError
from credo.core.seeds import isolated, mix
from credo.core.settings import positive, whole
from credo.data.checks import check_inputs
from credo.generative.codes import Code, OneHot
from credo.generative.network import LatentNet
from credo.generative.priors import LatentPrior
from credo.generative.unlabelled_data import DataCheck
from credo.likelihoods.base import Likelihood

_BATCH = {"cpu": 500, "cuda": 10_000}  # data at a time, where the user does not say
Part = TypeVar("Part", bound=nn.Module)


class LatentQueries:
    """What a fitted autoencoder answers: codes, reconstructions, its networks. Abstract."""

    encoder: nn.Module
    decoder: nn.Module
    code: Code
    binarise: bool
    _likelihood: Likelihood
    _prior: LatentPrior
    _bnn: BNN | None

    @property
    def bnn(self) -> BNN:
        """The same model as a network with a posterior over its weights: ``posterior``,
        ``history``, ``method``.
        """
        if self._bnn is None:
            raise CredoError(
                f"This {type(self).__name__} is not fitted yet; call fit(x) or load one with "
                "credo.generative.load."
            )
        return self._bnn

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per epoch; ``bound`` and ``latent_kl`` in nats per datum, ``elbo`` in nats per
        data set.
        """
        return self.bnn.history if self._bnn else []

    @property
    def latent_dim(self) -> int:
        """Latent variables per datum."""
        return self.code.latent_dim

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a datum."""
        net = self.bnn.net
        assert isinstance(net, LatentNet)
        return net.shape

    @property
    def likelihood(self) -> Likelihood:
        """p(x given z), with what was learned of it."""
        return self._fitted("likelihood", self._likelihood)

    @property
    def prior(self) -> LatentPrior:
        """p(z), with what was learned of it."""
        return self._fitted("prior", self._prior)

    @property
    def _dtype(self) -> torch.dtype:
        return next(
            (p.dtype for p in self.decoder.parameters() if p.is_floating_point()),
            torch.get_default_dtype(),
        )

    def _fitted(self, name: str, initial: Part) -> Part:
        """A part of the network with the mean of its fitted values, on the model's device; as it
        was made before a fit.
        """
        return initial if self._bnn is None else getattr(self._means(), name)

    def _means(self) -> LatentNet:
        """A copy of the whole network, so that layers which its parts share stay shared, with the
        mean of its fitted values.
        """
        clone = copy.deepcopy(self.bnn.net).to(self.bnn.model.device)
        state = self.bnn.posterior.mean() | dict(self.bnn.buffers)
        state.pop("ramp")  # as long as a warm-up, which is over
        clone.load_state_dict(
            state, strict=False
        )  # masks of dropout are in the state too, and frozen parameters are not
        assert isinstance(clone, LatentNet)
        return clone

    def _data(self, x: Any) -> Tensor:
        return DataCheck(self._likelihood, self._dtype, self.binarise, self.shape)(x)

    @contextmanager
    def placed(self, number: int | None, seed: int = 0) -> Iterator[LatentNet]:
        """The network in evaluation mode with one draw of its weights in place, or with their mean
        (None).
        """
        model, posterior = self.bnn.model, self.bnn.posterior
        shell = model.shell()
        shell.train(False, posterior.noisy_modules if number is not None else ())
        shell.place(model.frozen())
        shell.place(self.bnn.buffers)
        weights = (
            posterior.mean()
            if number is None
            else {n: t[0] for n, t in posterior.realise([number], seed).items()}
        )
        shell.place(weights)
        net = shell.module
        assert isinstance(net, LatentNet)
        yield net

    def numbers(self, samples: int, seed: int) -> list[int]:
        """Which draws of the weights stand for ``samples`` of them: the only one there is, where
        they are points.
        """
        whole("seed", seed)
        return self.bnn.posterior.numbers(positive("samples", samples, 1))

    def under_each_draw(
        self,
        x: Any,
        make: Callable[[LatentNet, Tensor], Tensor],
        samples: int | None = 1,
        seed: int = 0,
        batch_size: int | None = None,
    ) -> Tensor:
        """``make(network, batch)`` for data as they are modelled, ``(S, N, ...)`` over draws of the
        weights (None: their mean).

        Binary data are drawn once per seed, whatever the batches; every batch then has its own
        stream of random numbers per draw.
        """
        data = self._data(x)
        device = self.bnn.model.device
        size = positive("batch_size", batch_size, _BATCH.get(device.type, _BATCH["cpu"]))
        numbers: Sequence[int | None] = [None] if samples is None else self.numbers(samples, seed)
        if self.binarise:
            with isolated(mix(whole("seed", seed), "observe"), data.device):
                data = torch.bernoulli(data)
        out = []
        with torch.no_grad():
            for number in numbers:
                parts = []
                with self.placed(number, seed) as net:
                    for start in range(0, len(data), size):
                        batch = data[start : start + size].to(device)
                        with isolated(mix(seed, "latent", number, start), device):
                            parts.append(make(net, batch))
                out.append(torch.cat(parts))
        return torch.stack(out)

    def encode(self, x: Any, batch_size: int | None = None, seed: int = 0) -> Distribution:
        """q(z given x) as a torch distribution with batch shape ``(N,)``, under the mean of the
        weights.
        """
        numbers = self.under_each_draw(
            x, lambda net, batch: net.read(net.inputs(batch)), None, seed, batch_size
        )[0]
        code = self._fitted("code", self.code).requires_grad_(False)
        return code.at(numbers)

    def reconstruct(
        self, x: Any, samples: int = 1, seed: int = 0, batch_size: int | None = None
    ) -> Tensor:
        """E[x' given z] at the centre of q(z given x), in the shape of the data; averaged over
        ``samples`` draws of random weights.
        """

        def make(net: LatentNet, batch: Tensor) -> Tensor:
            return means(net, centre(net.posterior(net.inputs(batch))))

        return self.under_each_draw(x, make, samples, seed, batch_size).mean(0)

    def decode(self, z: Any, samples: int = 1, seed: int = 0) -> Tensor:
        """E[x given z] for codes ``(N, size)``, in the shape of the data; averaged over ``samples``
        draws of random weights.
        """
        numbers = self.numbers(samples, seed)
        codes = check_inputs(z, name="z")
        if not isinstance(codes, Tensor) or codes.dim() != 2 or codes.shape[1] != self.code.size:
            given = tuple(codes.shape) if isinstance(codes, Tensor) else type(codes).__name__
            raise DataError(f"Codes have shape {given}; expected (N, {self.code.size}).")
        codes = codes.to(self.bnn.model.device, self._dtype)
        out = []
        with torch.no_grad():
            for number in numbers:
                with (
                    self.placed(number, seed) as net,
                    isolated(mix(seed, "decode", number), codes.device),
                ):
                    out.append(means(net, codes))
        return torch.stack(out).mean(0)

    def networks(self) -> tuple[nn.Module, nn.Module]:
        """Encoder and decoder as plain modules with the mean of their fitted weights; yours stay as
        they were.
        """
        net = self._means().eval()
        return net.encoder, net.decoder

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a directory of JSON and safetensors, whole or not at all."""
        self.bnn.save(path)


def centre(q: Distribution) -> Tensor:
    """Where a code is shown: the mean of q, or its most probable value where z is discrete."""
    return q.mode if isinstance(q, OneHot) else q.mean


def means(net: LatentNet, z: Tensor) -> Tensor:
    """E[x given z] in the shape of the data, for codes ``(N, size)``."""
    mean, _ = net.likelihood.moments(net.decode(z))
    return mean.reshape(len(z), *net.shape)
