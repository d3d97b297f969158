"""What autoencoders share: an encoder, a decoder, a likelihood; fitted by the library's methods,
saved and resumed like everything else.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from credo.bnn import BNN
from credo.core.errors import NetworkError, SettingError
from credo.core.masks import dropouts
from credo.core.seeds import isolated
from credo.core.settings import other_names, positive
from credo.core.shell import Shell, unwrap
from credo.core.sites import select
from credo.core.synonyms import suggest
from credo.engine.fit_job import FIT_ARGUMENTS, Callback
from credo.engine.method import Method, make_method, methods
from credo.engine.run import Run
from credo.engine.training_loop import schedules
from credo.generative.bounds import Bound
from credo.generative.codes import Code, codes
from credo.generative.latent_queries import LatentQueries
from credo.generative.network import LatentNet
from credo.generative.own_units import Units
from credo.generative.priors import LatentPrior, make_prior
from credo.generative.unlabelled_data import DataCheck, first_data, source_of
from credo.generative.vae_evidence import Evidence
from credo.likelihoods.base import Likelihood, get

BOUND = {f.name for f in fields(Bound)}
AT_ONCE = 2_000_000  # N P up to which a fit of no given length takes all data in a step


class LatentModel(LatentQueries):
    """An encoder, a decoder and a likelihood of the data given the code, abstract: use ``VAE`` or
    ``Autoencoder``.
    """

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
        self.encoder, self.decoder, self.random, self.weight_prior = (
            unwrap(encoder),
            unwrap(decoder),
            random,
            weight_prior,
        )
        self._likelihood = copy.deepcopy(get(likelihood))
        self.code = copy.deepcopy(code) if isinstance(code, Code) else codes[code](latent_dim)
        if self.code.latent_dim != latent_dim:
            raise SettingError(
                f"latent_dim={latent_dim}, but the latent posterior was made for "
                f"{self.code.latent_dim}."
            )
        self._prior = make_prior(self.code, prior)
        if not isinstance(binarise, bool):
            raise SettingError(f"binarise={binarise!r} is not valid; expected True or False.")
        if binarise and self._likelihood.name != "bernoulli":
            raise SettingError(
                f"binarise=True draws binary data, which the {self._likelihood.name} likelihood "
                "is not for; use 'bernoulli'."
            )
        self.binarise = binarise
        self._bnn = None
        self._units: Units | None = None

    @classmethod
    def restore(
        cls,
        encoder: nn.Module,
        decoder: nn.Module,
        code: Code,
        likelihood: Likelihood,
        prior: LatentPrior,
        binarise: bool,
    ) -> Self:
        """As it was made, from the parts that a directory describes."""
        model = cls.__new__(cls)
        LatentModel.__init__(
            model, encoder, decoder, code.latent_dim, likelihood, code, prior, "all", None, binarise
        )
        return model

    def __repr__(self) -> str:
        state = "fitted" if self._bnn else "not fitted"
        parts = (
            f"{self.code.name} q of {self.latent_dim}, {self._prior.name} prior, "
            f"{self._likelihood.name}"
        )
        return f"{type(self).__name__}({parts}, {state})"

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
        run: str | os.PathLike[str] | Run | None = None,
        progress: bool = True,
        callbacks: Sequence[Callback] = (),
        **settings: Any,
    ) -> Self:
        """Maximise a bound on log p(x).

        ``x``: a tensor, an array, a Dataset or a DataLoader (what stands beside x there is
        ignored).

        Settings of the bound (see ``Bound``: bound, draws, gradient, beta, kl_schedule, kl_warmup,
        free_bits, temperature) concern latent variables; the others are those of ``BNN.fit`` and of
        the method, whose own beta or schedule go with a method object. ``method``: "mle" for plain
        weights, or any other for a posterior over the decoder's, such as "vi". ``validation``: data
        whose bound is watched, as ``validation_nll`` in the history.
        """
        bound = self.make_bound(
            {name: settings.pop(name) for name in list(settings) if name in BOUND}
        )
        self._check_names(method, settings)
        chosen = make_method(method, settings)
        self._check_method(chosen, bound)
        check = DataCheck(self._likelihood, self._dtype, self.binarise)
        source = source_of(x, check, num_data)
        example = first_data(source, 2)
        parts = self._likelihood, self.encoder, self.decoder
        units = None if self.weight_prior is not None else Units.of(source, *parts)
        net = self._build(tuple(example.shape[1:]), units)
        self._check_decoder(net, check.targets(example))
        if chosen.settles and epochs is None and batch_size is None and not bound.kl_warmup:
            batch_size, bound = self._at_once(net, source.num_data, bound)
        size = positive("batch_size", batch_size, chosen.batch_size or source.num_data)
        steps = (
            bound.kl_warmup * source.num_batches(min(size, source.num_data))
            if bound.kl_warmup
            else 0
        )
        rise = schedules[bound.kl_schedule]
        net.train_on(bound, [rise(step / steps, 0, 1) for step in range(steps)])
        if net.prior.data_needed > 1:
            net.prior.start(net.inputs(first_data(source, net.prior.data_needed)))
        bnn = BNN(
            net, Evidence(**self._describe(net)), self.weight_prior, self._names(), None, False
        )
        validation_source = None if validation is None else source_of(validation, check)
        options = {
            "epochs": epochs,
            "batch_size": batch_size,
            "lr": lr,
            "seed": seed,
            "device": device,
            "run": run,
        }
        bnn.fit(
            source,
            chosen,
            validation=validation_source,
            progress=progress,
            callbacks=callbacks,
            **options,
        )
        self._bnn = bnn
        return self

    def _check_names(self, method: str | Method, settings: dict[str, Any]) -> None:
        """Refuse what neither the bound nor the method has, naming the nearest of both."""
        kind = methods[method] if isinstance(method, str) else type(method)
        own, others = {f.name for f in fields(kind)}, other_names(kind)
        for name in settings:
            if name not in own and name not in others:
                raise SettingError(
                    f"Neither the bound nor the method {kind.name!r} has a setting "
                    f"{name!r}.{suggest(name, own | BOUND | set(FIT_ARGUMENTS))}"
                )

    def make_bound(self, settings: dict[str, Any]) -> Bound:
        """The bound that training maximises."""
        return Bound(**settings)

    def _at_once(self, net: LatentNet, rows: int, bound: Bound) -> tuple[int | None, Bound]:
        """Batch size and bound where neither is given: all data, where that costs next to nothing.
        What noise is left is then that of z, and the path derivative's vanishes as q becomes exact.
        """
        if rows * sum(p.numel() for p in net.parameters()) > AT_ONCE:
            return None, bound
        plain = bound.gradient is None and bound.bound == "elbo" and not bound.free_bits
        doubly = plain and self.code.gradients[0] == "reparameterised"
        return rows, replace(bound, gradient="doubly") if doubly else bound

    def _names(self) -> list[str]:
        """The decoder's random parameters by the names they have in the whole network."""
        chosen, _ = select(self.decoder, self.random)
        return [f"decoder.{name}" for name in chosen]

    def _build(self, shape: tuple[int, ...], units: Units | None) -> LatentNet:
        prior, likelihood = copy.deepcopy(self._prior), copy.deepcopy(self._likelihood)
        prior.prepare(shape)
        nets = self.encoder, self.decoder
        if units is not None:
            nets = units.around(*nets)
            units.widen(likelihood)
        self._units = units
        return LatentNet(*nets, copy.deepcopy(self.code), prior, likelihood, shape, self.binarise)

    def _describe(self, net: LatentNet) -> dict[str, Any]:
        units = {} if self._units is None else {"standardised": self._units.config()}
        return units | {
            "kind": type(self).__name__,
            "latent_dim": self.latent_dim,
            "posterior": {"name": self.code.name, **self.code.arguments},
            "prior": {"name": self._prior.name, **self._prior.arguments},
            "data": {"name": self._likelihood.name, "config": self._likelihood.config()},
            "shape": list(net.shape),
            "binarise": self.binarise,
            "bound": asdict(net.bound),
        }

    def _check_method(self, method: Method, bound: Bound) -> None:
        """All draws of z must meet the same weights, and noise of the encoder is none of the
        decoder's weights.
        """
        masked = method.network_noise in ("dropout", "any")
        batched = method.network_noise == "batch statistics"
        if (masked and _drops(self.encoder)) or (batched and _normalises(self.encoder)):
            raise SettingError(
                f"{method.name} would take the encoder's dropout or batch statistics for a "
                "posterior over the decoder's weights; "
                "leave them to the decoder."
            )
        if bound.draws == 1:
            return
        how = getattr(method, "estimator", None)
        always = batched or method.network_noise == "any"
        if always or (masked and _drops(self.decoder)):
            raise SettingError(
                f"draws={bound.draws} with {method.name} would give every draw of z other noise; "
                "use draws=1."
            )
        if how not in (None, "weights"):
            raise SettingError(
                f"draws={bound.draws} with {method.name} and estimator={how!r} would give every "
                "draw of z other weights; use estimator='weights'."
            )

    def _check_decoder(self, net: LatentNet, targets: Tensor) -> None:
        """Refuse a decoder of the wrong widths before training starts; a shell runs it, so that it
        stays as it is.
        """
        shell = Shell(net)
        shell.train(False)
        device = next((p.device for p in self.decoder.parameters()), torch.device("cpu"))
        try:
            with torch.no_grad(), isolated(0, device):
                outputs = shell.module.decode(
                    torch.zeros(2, net.code.size, dtype=self._dtype, device=device)
                )  # type: ignore[operator]
        except RuntimeError as error:
            raise NetworkError(
                f"The decoder cannot take codes of {net.code.size} numbers: "
                f"{str(error).splitlines()[0]}; change its first layer."
            ) from error
        if not self._likelihood.accepts(outputs.shape[-1], targets):
            raise NetworkError(
                f"The decoder gives {outputs.shape[-1]} outputs per datum, but the "
                f"{self._likelihood.name} likelihood needs "
                f"{self._likelihood.num_outputs(targets)} for data of shape {net.shape}; change "
                "its last layer."
            )


def _drops(net: nn.Module) -> bool:
    return any(module.p > 0 for module in dropouts(net).values())  # type: ignore[operator]


def _normalises(net: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())
