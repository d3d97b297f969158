"""What autoencoders share: an encoder, a decoder, a likelihood; fitted by the library's methods, saved and resumed like everything else."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils.data import DataLoader, Dataset

from credo.bnn import BNN
from credo.core.errors import CredoError, DataError, NetworkError, SettingError
from credo.core.seeds import isolated, mix
from credo.core.settings import positive, whole
from credo.core.sites import select
from credo.data.checks import check_inputs
from credo.data.intake import intake
from credo.engine.job import Callback
from credo.engine.method import Method, make_method
from credo.engine.schedules import schedules
from credo.generative.bounds import Bound
from credo.generative.codes import Code, codes
from credo.generative.evidence import Evidence
from credo.generative.network import LatentNet
from credo.generative.priors import LatentPrior, priors
from credo.likelihoods.base import Likelihood, get
from credo.likelihoods.targets import unit_targets

BOUND = {f.name for f in fields(Bound)}
_ROWS = {"cpu": 500, "cuda": 10_000}  # data at a time, where the user does not say


class LatentModel(ABC):
    """An encoder, a decoder and a likelihood of the data given the code, abstract: use ``VAE`` or ``Autoencoder``."""

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        latent_dim: int,
        likelihood: str | Likelihood,
        code: str | Code,
        prior: str | LatentPrior | None,
        random: Any,
        weight_prior: Any,
        binarise: bool,
    ) -> None:
        self.encoder, self.decoder, self.random, self.weight_prior = encoder, decoder, random, weight_prior
        self.likelihood = copy.deepcopy(get(likelihood))
        self.code = copy.deepcopy(code) if isinstance(code, Code) else codes[code](latent_dim)
        if self.code.latent_dim != latent_dim:
            raise SettingError(f"latent_dim={latent_dim}, but the latent posterior was made for {self.code.latent_dim}.")
        self.prior = _make_prior(self.code, prior)
        self.binarise = binarise
        if binarise and self.likelihood.name != "bernoulli":
            raise SettingError(
                f"binarise=True draws binary data, which the {self.likelihood.name} likelihood is not for; use 'bernoulli'."
            )
        self._bnn: BNN | None = None

    @classmethod
    @abstractmethod
    def restore(
        cls, encoder: nn.Module, decoder: nn.Module, code: Code, likelihood: Likelihood, prior: LatentPrior, binarise: bool
    ) -> Self:
        """As it was made, from what a directory says."""

    @property
    def latent_dim(self) -> int:
        """Latent variables per datum."""
        return self.code.latent_dim

    @property
    def bnn(self) -> BNN:
        """The same model as a network with a posterior over its weights: ``posterior``, ``history``, ``method``."""
        if self._bnn is None:
            raise CredoError(f"This {type(self).__name__} is not fitted yet; call fit(x) or load one with credo.generative.load.")
        return self._bnn

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per epoch; ``bound`` and ``latent_kl`` in nats per datum, ``elbo`` in nats per data set."""
        return self.bnn.history if self._bnn else []

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a datum."""
        net = self.bnn.net
        assert isinstance(net, LatentNet)
        return net.shape

    def __repr__(self) -> str:
        state = "fitted" if self._bnn else "not fitted"
        return f"{type(self).__name__}({self.code.name} q of {self.latent_dim}, {self.prior.name} prior, {self.likelihood.name}, {state})"

    # --- fitting ------------------------------------------------------------------------------------------------------

    def fit(
        self,
        x: Any,
        method: str | Method = "mle",
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        num_data: int | None = None,
        validation: Any = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        run: str | os.PathLike[str] | None = None,
        progress: bool = True,
        callbacks: Sequence[Callback] = (),
        **settings: Any,
    ) -> Self:
        """Climb a bound on log p(x). ``x``: a tensor, an array, a Dataset or a DataLoader (what stands beside x there is ignored).

        Settings of the bound (see ``Bound``: bound, draws, gradient, beta, kl_schedule, kl_warmup, free_bits, temperature) concern latent
        variables; the others are those of ``BNN.fit`` and of the method, whose own beta or schedule go with a method object. ``method``:
        "mle" for plain weights, or any other for a posterior over the decoder's, such as "vi". ``validation``: data whose bound is
        watched, as ``validation_nll`` in the history.
        """
        bound = Bound(**{name: settings.pop(name) for name in list(settings) if name in BOUND})
        chosen = make_method(method, settings)
        source = intake(self._pair(x), num_data=num_data, dtype=self._dtype)
        example = source.example(2)
        if not isinstance(example, Tensor):
            raise DataError(f"The data are a {type(example).__name__}; expected one tensor per datum.")
        net = self._build(tuple(example.shape[1:]))
        self._check(net, source.arrays(), example)
        size = positive("batch_size", batch_size, chosen.batch_size or source.num_data)
        steps = bound.kl_warmup * source.num_batches(min(size, source.num_data))
        rise = schedules[bound.kl_schedule]
        net.climbing(bound, [rise(step / steps, 0, 1) for step in range(steps)])
        _one_draw_of_weights(chosen, bound)
        net.prior.start(net.inputs(source.example(net.prior.wants)))
        bnn = BNN(net, Evidence(**self._describe(net)), self.weight_prior, self._names())
        held = None if validation is None else self._pair(validation)
        options = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "seed": seed, "device": device, "run": run}
        bnn.fit(source, chosen, validation=held, progress=progress, callbacks=callbacks, **options)
        self._bnn = bnn
        return self

    @property
    def _dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.decoder.parameters() if p.is_floating_point()), torch.get_default_dtype())

    def _pair(self, x: Any) -> Any:
        """Data as pairs, which everything else in the library takes; what stands beside x is not looked at."""
        if isinstance(x, (Dataset, DataLoader)):
            return x
        tensor = self._tensor(x)
        return tensor, torch.zeros(len(tensor))

    def _tensor(self, x: Any) -> Tensor:
        tensor = check_inputs(x, dtype=self._dtype)
        if not isinstance(tensor, Tensor):
            raise DataError(f"The data are a {type(x).__name__}; expected one tensor or array.")
        return tensor if tensor.dim() > 1 else tensor.unsqueeze(-1)

    def _names(self) -> list[str]:
        """The decoder's random parameters by the names they have in the whole network."""
        chosen, _ = select(self.decoder, self.random)
        return [f"decoder.{name}" for name in chosen]

    def _build(self, shape: tuple[int, ...]) -> LatentNet:
        prior = copy.deepcopy(self.prior)
        prior.prepare(shape)
        parts = copy.deepcopy(self.code), prior, copy.deepcopy(self.likelihood)
        return LatentNet(self.encoder, self.decoder, *parts, shape, self.binarise)

    def _describe(self, net: LatentNet) -> dict[str, Any]:
        return {
            "kind": type(self).__name__,
            "latent_dim": self.latent_dim,
            "posterior": {"name": self.code.name, **self.code.arguments},
            "prior": {"name": self.prior.name, **self.prior.arguments},
            "data": {"name": self.likelihood.name, "config": self.likelihood.config()},
            "shape": list(net.shape),
            "binarise": self.binarise,
            "bound": asdict(net.bound),
        }

    def _check(self, net: LatentNet, arrays: Any, example: Tensor) -> None:
        """Refuse data and shapes that do not fit before training starts."""
        targets = self._checked(net, example if arrays is None else arrays[0])
        device = next(self.decoder.parameters()).device
        try:
            with torch.no_grad():
                outputs = net.decode(torch.zeros(2, net.code.size, dtype=self._dtype, device=device))
        except RuntimeError as error:
            raise NetworkError(
                f"The decoder cannot take codes of {net.code.size} numbers: {str(error).splitlines()[0]}; change its first layer."
            ) from error
        if not self.likelihood.accepts(outputs.shape[-1], targets):
            raise NetworkError(
                f"The decoder gives {outputs.shape[-1]} outputs per datum, but the {self.likelihood.name} likelihood needs "
                f"{self.likelihood.num_outputs(targets)} for data of shape {net.shape}; change its last layer."
            )

    def _checked(self, net: LatentNet, x: Tensor) -> Tensor:
        """Data as targets, refused where the likelihood cannot have made them."""
        flat = x.flatten(1)
        return unit_targets(flat, "binarise=True") if self.binarise else self.likelihood.check_targets(flat)

    # --- with fitted weights ------------------------------------------------------------------------------------------

    def _data(self, x: Any) -> Tensor:
        tensor = self._tensor(x)
        if tuple(tensor.shape[1:]) != self.shape:
            raise DataError(f"The data have shape {tuple(tensor.shape[1:])} each; this model was fitted to {self.shape}.")
        net = self.bnn.net
        assert isinstance(net, LatentNet)
        self._checked(net, tensor)
        return tensor

    @contextmanager
    def placed(self, number: int | None, seed: int = 0) -> Iterator[LatentNet]:
        """The network in evaluation mode with one draw of its weights in place, or with their mean (None)."""
        model, posterior = self.bnn.model, self.bnn.posterior
        shell = model.shell()
        shell.train(False, posterior.live if number is not None else ())
        shell.place(model.frozen())
        shell.place(self.bnn._result().buffers)
        weights = posterior.mean() if number is None else {n: t[0] for n, t in posterior.realise([number], seed).items()}
        shell.place(weights)
        net = shell.module
        assert isinstance(net, LatentNet)
        yield net

    def each(
        self,
        x: Any,
        make: Callable[[LatentNet, Tensor], Tensor],
        samples: int | None = 1,
        seed: int = 0,
        batch_size: int | None = None,
    ) -> Tensor:
        """``make(network, rows)`` for data as they are modelled, ``(S, N, ...)`` over draws of the weights (None: their mean).

        Every batch has its own stream of random numbers per draw, so the global state is left as found.
        """
        data = self._data(x)
        device = self.bnn.model.device
        rows = positive("batch_size", batch_size, _ROWS[device.type])
        numbers: Sequence[int | None] = [None] if samples is None else self.bnn.posterior.numbers(positive("samples", samples, 1))
        whole("seed", seed)
        out = []
        with torch.no_grad():
            for number in numbers:
                parts = []
                with self.placed(number, seed) as net:
                    for start in range(0, len(data), rows):
                        batch = data[start : start + rows].to(device)
                        with isolated(mix(seed, "observe", start), device):
                            batch = net.observe(batch)
                        with isolated(mix(seed, "latent", number, start), device):
                            parts.append(make(net, batch))
                out.append(torch.cat(parts))
        return torch.stack(out)

    def encode(self, x: Any, batch_size: int | None = None, seed: int = 0) -> Distribution:
        """q(z given x) as a torch distribution with batch shape ``(N,)``, under the mean of the weights."""
        numbers = self.each(x, lambda net, rows: net.read(net.inputs(rows)), None, seed, batch_size)[0]
        with self.placed(None) as net, torch.no_grad():
            return net.code.at(numbers)

    def reconstruct(self, x: Any, samples: int = 1, seed: int = 0, batch_size: int | None = None) -> Tensor:
        """E[x' given z] at the centre of q(z given x), in the shape of the data; averaged over ``samples`` draws of random weights."""

        def make(net: LatentNet, rows: Tensor) -> Tensor:
            return means(net, centre(net.posterior(net.inputs(rows))))

        return self.each(x, make, samples, seed, batch_size).mean(0)

    def decode(self, z: Any, samples: int = 1, seed: int = 0) -> Tensor:
        """E[x given z] for codes ``(N, size)``, in the shape of the data; averaged over ``samples`` draws of random weights."""
        z = torch.as_tensor(z, dtype=self._dtype, device=self.bnn.model.device)
        if z.dim() != 2 or z.shape[1] != self.code.size:
            raise DataError(f"Codes have shape {tuple(z.shape)}; expected (N, {self.code.size}).")
        out = []
        with torch.no_grad():
            for number in self.bnn.posterior.numbers(positive("samples", samples, 1)):
                with self.placed(number, seed) as net, isolated(mix(seed, "decode", number), z.device):
                    out.append(means(net, z))
        return torch.stack(out).mean(0)

    def networks(self) -> tuple[nn.Module, nn.Module]:
        """Encoder and decoder as plain modules with the mean of their fitted weights; yours stay as they were."""
        state = self.bnn.posterior.mean() | dict(self.bnn._result().buffers)
        out = []
        for name, module in (("encoder", self.encoder), ("decoder", self.decoder)):
            clone = copy.deepcopy(module).to(self.bnn.model.device).eval()
            own = {n.removeprefix(f"{name}."): t for n, t in state.items() if n.startswith(f"{name}.")}
            clone.load_state_dict(own, strict=False)  # masks of dropout are in the state too, and frozen parameters are not
            out.append(clone)
        return out[0], out[1]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a directory of JSON and safetensors, whole or not at all."""
        self.bnn.save(path)


def _make_prior(code: Code, prior: str | LatentPrior | None) -> LatentPrior:
    name = prior.name if isinstance(prior, LatentPrior) else prior or code.priors[0]
    kind = priors[name]  # an unknown name is refused by the registry
    if name not in code.priors:
        raise SettingError(f"prior={name!r} is not for the latent posterior {code.name!r}; it has {', '.join(code.priors)}.")
    if isinstance(prior, LatentPrior):
        return copy.deepcopy(prior)
    return kind(code.size, groups=code.latent_dim) if name == "uniform" else kind(code.size)


def _one_draw_of_weights(method: Method, bound: Bound) -> None:
    """With several z per datum all of them must meet the same weights."""
    how = getattr(method, "estimator", None)
    if bound.draws > 1 and isinstance(how, str) and how not in ("weights",):
        raise SettingError(
            f"draws={bound.draws} with estimator={how!r} would give every draw of z other weights; use estimator='weights'."
        )


def centre(q: Distribution) -> Tensor:
    """Where a code is shown: the mean of q, or its most probable value where z is discrete."""
    return q.mode if hasattr(q, "log_probs") else q.mean


def means(net: LatentNet, z: Tensor) -> Tensor:
    """E[x given z] in the shape of the data, for codes ``(N, size)``."""
    mean, _ = net.likelihood.moments(net.decode(z))
    return mean.reshape(len(z), *net.shape)
