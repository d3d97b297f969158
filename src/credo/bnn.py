"""``BNN``: a network with a likelihood, a prior and, once fitted, a posterior.

The only object most users meet.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from credo.core.atomic import write_atomic
from credo.core.errors import CredoError, DataError, SettingError
from credo.core.renamed import renamed
from credo.core.settings import positive, whole
from credo.core.shell import unwrap
from credo.core.sites import select
from credo.data.checks import check_inputs
from credo.data.intake import intake
from credo.data.source import Source
from credo.engine import saved_model
from credo.engine.collapsed_prior import warn_if_collapsed
from credo.engine.draws import Draws
from credo.engine.fit_job import Callback, FitJob, Fitted
from credo.engine.model import Model
from credo.engine.objective import log_weights, objective
from credo.engine.outputs import sampled_outputs, with_drawn
from credo.engine.run import (
    CONFIG,
    FORMAT,
    HISTORY,
    POSTERIOR,
    Run,
    replace_directory,
    write_json,
    write_tensors,
)
from credo.likelihoods.base import Likelihood, get
from credo.methods import Method, make_method
from credo.posteriors import Params, Posterior, PosteriorPrior
from credo.predictive import Predictive, evaluate
from credo.predictive.shortcuts import chosen_shortcut, shortcut_named
from credo.priors import Prior, Unstored, as_prior, default_prior, from_config, is_proper


class BNN:
    """A network, what its outputs mean, and what is known about its weights.

    ``net``: any ``nn.Module``; it is read, never changed. ``likelihood``: a registry name or a
    ``credo.likelihoods`` object. ``prior``: a torch distribution, a credo prior, its name, a
    posterior, or a dict pattern -> prior. ``random``: "all", "weights", "last", name patterns, or
    module types; the rest are point estimates. ``output``: which entry of a dict-like network
    output the likelihood sees.
    """

    def __init__(
        self,
        net: nn.Module,
        likelihood: str | Likelihood = "categorical",
        prior: Any = None,
        random: Any = "all",
        output: str | int | None = None,
    ) -> None:
        self.net = unwrap(net)
        earlier = isinstance(prior, Posterior)
        self.prior: Prior = (
            default_prior()
            if prior is None
            else PosteriorPrior(copy.deepcopy(prior))
            if earlier
            else as_prior(prior)
        )
        self.likelihood = copy.deepcopy(get(likelihood))
        self.random, self.point = select(self.net, random)
        self.output = output
        self.method: Method | None = None
        self.history: list[dict[str, Any]] = []
        self._fitted: Fitted | None = None
        self._model: Model | None = None
        self._initial = copy.deepcopy(self.likelihood)
        self._used = self.prior  # the prior of the last fit: after update, the posterior before it

    def __repr__(self) -> str:
        numel = sum(site.numel for site in self.random.values())
        state = (
            f"fitted with {self.method.name}"
            if self._fitted and self.method
            else "fitted"
            if self._fitted
            else "not fitted"
        )
        return (
            f"BNN({type(self.net).__name__}, {self.likelihood.name}, {numel} random parameters, "
            f"prior {self.prior.describe()}, {state})"
        )

    @property
    def posterior(self) -> Posterior:
        """The fitted posterior."""
        return self._result().posterior

    def _result(self) -> Fitted:
        if self._fitted is None:
            raise CredoError(
                "This BNN has no posterior yet; call fit(data) or load one with credo.load."
            )
        return self._fitted

    def _make_model(
        self, device: torch.device | str | None, prior: Prior, method: Method | None = None
    ) -> Model:
        where = (
            torch.device(device) if device is not None else next(iter(self.random.values())).device
        )
        model = Model(
            self.net, self.likelihood.to(where), prior, self.random, self.point, where, self.output
        )
        if method is not None:
            model = method.adapt(model)
        model.prior = model.prior.fresh(
            {n: s for n, s in model.sites.items() if n in model.random or model.prior_for_point(n)}
        )
        return model

    @property
    def model(self) -> Model:
        """Network, likelihood, prior and selection as methods see them."""
        if self._model is None:
            self._model = self._make_model(None, self.prior)
        return self._model

    def fit(
        self,
        data: Any,
        method: str | Method = "vi",
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
        """Turn data into a posterior with a method of the registry and its settings.

        ``data``: (x, y) of tensors, arrays or DataFrames, a Dataset, or a DataLoader. ``method``: a
        name, or an object such as ``credo.methods.VI(beta=0.5)``. ``settings``: those of the
        method, which are the arguments of its class; ``credo methods NAME`` lists them. ``run``: a
        directory to write to and to resume from, or a ``Run`` of one. ``validation``: data whose
        predictive nll is added to the history after every epoch, or when sampling ends. A callback
        gets each row of the history and ends the fit by returning True; in it, where the method
        descends on an objective, ``posterior`` and ``predict`` are those of the moment.
        """
        chosen = make_method(method, settings, beside=FIT)
        self.likelihood = copy.deepcopy(self._initial)
        return self._fit(
            data,
            chosen,
            self.prior,
            epochs,
            batch_size,
            lr,
            num_data,
            validation,
            seed,
            device,
            run,
            progress,
            callbacks,
        )

    def _fit(
        self,
        data: Any,
        method: Method,
        prior: Prior,
        epochs: int | None,
        batch_size: int | None,
        lr: float | None,
        num_data: int | None,
        validation: Any,
        seed: int,
        device: Any,
        run: Any,
        progress: bool,
        callbacks: Sequence[Callback],
    ) -> Self:
        dtype = self._dtype
        if epochs is not None and not method.takes_epochs:
            raise SettingError(
                f"epochs={epochs}: {method.name} counts moves; set num_warmup, num_draws and thin."
            )
        source = intake(data, num_data=num_data, dtype=dtype)
        held = None if validation is None else intake(validation, dtype=dtype)
        model = self._make_model(device, prior, method)
        self._check(model, source)
        directory = None if run is None else Run.of(run)
        size = batch_size if batch_size is not None else method.batch_size
        fit_job = FitJob(
            source=source,
            epochs=positive("epochs", epochs, method.epochs),
            batch_size=None
            if size is None or size >= source.num_data
            else positive("batch_size", size, 1),
            lr=positive("lr", lr, method.lr),
            seed=whole("seed", seed),
            run=directory,
            progress=progress,
            callbacks=callbacks,
            validation=held,
            validate=None if held is None else self._validator(model, held),
            show=partial(self._show, model),
        )
        config = self._config(model, prior, method, fit_job)
        if directory is not None:
            directory.begin(config, method.present_config)
            if (directory.config() or {}).get("complete"):
                return self._adopt(Path(directory.path), model, method)
        before = self._fitted, self._model, self.method
        try:
            fitted = method.fit(model, fit_job)
        except BaseException:
            self._fitted, self._model, self.method = before
            raise
        self._fitted, self._model, self.method, self.history = (
            fitted,
            model,
            method,
            fit_job.history,
        )
        self._used = prior
        fitted.posterior.requires_grad_(False)
        warn_if_collapsed(model, fitted.posterior)
        if directory is not None:
            directory.finish(
                saved_model.pack(fitted, model),
                config | saved_model.describe(model, prior, fitted.posterior),
            )
        return self

    def _show(self, model: Model, fitted: Fitted) -> None:
        """What callbacks find in ``posterior`` and ``predict``, which draws, since shortcuts are
        for a finished method.
        """
        self._fitted, self._model, self.method = fitted, model, None

    def _config(
        self, model: Model, prior: Prior, method: Method, fit_job: FitJob
    ) -> dict[str, Any]:
        fit = {
            "epochs": fit_job.epochs,
            "batch_size": fit_job.batch_size,
            "lr": fit_job.lr,
            "seed": fit_job.seed,
            "num_data": fit_job.source.num_data,
            "data": fit_job.source.fingerprint() if fit_job.run is not None else None,
            "held": saved_model.held(model, method.given(model, fit_job.seed))
            if fit_job.run is not None
            else None,
        }
        return saved_model.describe(model, prior) | {
            "method": method.name,
            "settings": method.settings(),
            "fit": fit,
        }

    def _adopt(self, path: Path, model: Model, method: Method) -> Self:
        """Take over the result of a finished run."""
        _, fitted, likelihood, prior = saved_model.unpack(path, self.likelihood)
        self.likelihood.load_state_dict(likelihood.state_dict())
        saved_model.load_prior(model, prior)
        self._fitted, self._model, self.method, self.history = (
            fitted.to(model.device),
            model,
            method,
            Run(path).history(),
        )
        return self

    def _check(self, model: Model, source: Source) -> None:
        """One forward pass of two examples: shapes that do not fit are refused before training
        starts.
        """
        y = model.likelihood.check_training_targets(source.targets())
        outputs, _ = sampled_outputs(
            model, Draws.point(model.values()), source.example(2), model.buffers(), 0
        )
        if not model.likelihood.accepts(outputs.shape[-1], y):
            raise DataError(
                f"The network gives {outputs.shape[-1]} outputs per example, but the "
                f"{model.likelihood.name} likelihood needs "
                f"{model.likelihood.num_outputs(y)} for these targets; change the network's last "
                "layer."
            )

    def _validator(self, model: Model, source: Source) -> Any:
        def score(posterior: Posterior, buffers: Mapping[str, Tensor]) -> float:
            total = 0.0
            for x, y in source(None, 1024):
                outputs, extra = sampled_outputs(model, Draws.of(posterior, 16, 0), x, buffers, 0)
                total -= float(
                    Predictive(outputs, with_drawn(model.likelihood, extra)).log_prob(y).sum()
                )
            return total / source.num_data

        return score

    def _draws(self, source: str, samples: int, seed: int, joint: bool = False) -> Draws:
        """Which draws, and how to make them."""
        positive("num_samples", samples, 1)
        whole("seed", seed)
        if source == "posterior":
            return Draws.of(self.posterior, samples, seed, joint)
        if source != "prior":
            raise SettingError(f"source={source!r}; expected 'posterior' or 'prior'.")
        process = self.posterior.process if self._fitted is not None else None
        if process is not None and not process.of_network:
            raise CredoError(
                f"The prior of {process.name!r} is a Gaussian process, not this network's; "
                "source='prior' has nothing to draw."
            )
        fitted = self._fitted is not None and process is None
        start = self.posterior.mean() if fitted else self.model.values()
        return Draws.prior(
            self.model, start, self.posterior.members if fitted else (), samples, seed
        )

    @renamed(samples="num_samples", warn=False)
    def predict(
        self,
        x: Any,
        num_samples: int = 100,
        seed: int = 0,
        batch_size: int | None = None,
        shortcut: str | None = None,
        source: str = "posterior",
        vectorise: bool | None = None,
    ) -> Predictive:
        """The predictive distribution at ``x`` from posterior draws (or prior draws:
        ``source="prior"``).

        ``shortcut="mean"`` is one pass with E[w]; ``"moments"`` one pass that carries means and
        variances of the activations (``"moments_full"``: covariances too), for Gaussian posteriors
        and dropout; ``"linear"`` the network linearised at E[w], ``"probit"`` the same without
        draws, for labels; ``"weights"`` draws of the weights, which is what None means unless the
        method prefers a shortcut. A seed fixes every draw; batching and vectorising do not change
        them.
        """
        name = chosen_shortcut(shortcut, source, self._preferred)
        if name is None:
            draws = self._draws(source, num_samples, seed)
        elif name == "mean":
            draws = Draws.mean(self.posterior, self.model)
        else:
            count = positive("num_samples", num_samples, 1)
            model, posterior, buffers = self.model, self.posterior, self._result().buffers
            outputs = shortcut_named(name).outputs(
                model, posterior, self._inputs(x), buffers, count, batch_size=batch_size
            )
            return Predictive(outputs, model.likelihood)
        outputs, extra = self._forward(draws, x, seed, batch_size, vectorise)
        return Predictive(outputs, with_drawn(self.model.likelihood, extra))

    def functions(self, x: Any, n: int, seed: int = 0, source: str = "posterior") -> Tensor:
        """``n`` draws of the network's function at ``x``: outputs ``(n, N, F)`` without observation
        noise.
        """
        draws = self._draws(source, n, seed, joint=True)
        name = chosen_shortcut(None, source, self._preferred)
        functions = None if name is None or name == "mean" else shortcut_named(name).functions
        if functions is not None:
            return functions(
                self.model, self.posterior, draws, self._inputs(x), self._result().buffers, None
            )
        return self._forward(draws, x, seed, None, None)[0]

    @property
    def _preferred(self) -> str | None:
        """The shortcut that the method predicts with; None for draws."""
        return None if self.method is None else self.method.shortcut

    @property
    def _dtype(self) -> torch.dtype | None:
        return next((s.dtype for s in self.random.values() if s.dtype.is_floating_point), None)

    def _inputs(self, x: Any) -> Any:
        return check_inputs(x, dtype=self._dtype)

    def _forward(
        self, draws: Draws, x: Any, seed: int, batch_size: int | None, vectorise: bool | None
    ) -> tuple[Tensor, Params]:
        x = self._inputs(x)
        buffers = self._fitted.buffers if self._fitted else self.model.buffers()
        return sampled_outputs(self.model, draws, x, buffers, seed, batch_size, vectorise)

    @renamed(samples="num_samples", warn=False)
    def evaluate(
        self, data: Any, num_samples: int = 100, seed: int = 0, batch_size: int | None = None
    ) -> dict[str, float]:
        """Metrics on data: nll, accuracy or rmse, calibration, and more (see ``credo.metrics``)."""
        predictive, y = self._predict_all(data, num_samples, seed, batch_size)
        return evaluate(predictive, y)

    def _predict_all(
        self,
        data: Any,
        samples: int,
        seed: int,
        batch_size: int | None = None,
        shortcut: str | None = None,
    ) -> tuple[Predictive, Tensor]:
        parts = [
            (self.predict(x, samples, seed, shortcut=shortcut), y)
            for x, y in intake(data, dtype=self._dtype)(None, batch_size)
        ]
        outputs = torch.cat([part.outputs for part, _ in parts], 1)
        return Predictive(outputs, parts[0][0].likelihood), torch.cat([y for _, y in parts]).to(
            outputs.device
        )

    def update(self, data: Any, **fit_settings: Any) -> Self:
        """Learn from more data: the posterior becomes the prior, and the same method runs again
        from where it is.
        """
        if self.posterior.atoms == 1 or self.method is None:
            raise CredoError(
                "update needs a posterior with spread: a point estimate as prior would ignore the "
                "new data. Fit with 'vi' or 'exact'."
            )
        odd = next(
            (
                f.name
                for f in self.posterior.members
                if f.atoms != 1 and (f.atoms or not f.kl_is_bound)
            ),
            None,
        )
        if odd is not None:
            raise CredoError(
                f"update needs a posterior with a density to be the next prior; {odd!r} has none. "
                "Fit with 'vi'."
            )
        given = {name: fit_settings.pop(name, None) for name in FIT}
        prior = PosteriorPrior(copy.deepcopy(self.posterior))
        settings = dict(fit_settings)
        several = (
            len(self.posterior.components()) > 1
        )  # their mean is no place to start any of them from
        if (
            "init" in type(self.method).__dataclass_fields__
            and "init" not in settings
            and not several
        ):
            settings["init"] = {
                n: v.detach().clone()
                for n, v in self.posterior.mean().items()
                if n in self.model.sites
            }
        method = make_method(self.method, settings, beside=FIT)
        device = given["device"] or self.model.device
        progress = True if given["progress"] is None else given["progress"]
        earlier = self.history[-1].get("log_evidence") if self.history else None
        self._fit(
            data,
            method,
            prior,
            given["epochs"],
            given["batch_size"],
            given["lr"],
            given["num_data"],
            given["validation"],
            given["seed"] or 0,
            device,
            given["run"],
            progress,
            given["callbacks"] or (),
        )
        if (
            earlier is not None and "log_evidence" in self.history[-1]
        ):  # log p(D1, D2) = log p(D1) + log p(D2 given D1)
            self.history[-1]["log_evidence"] += earlier
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a directory of JSON and safetensors, whole or not at all."""
        fitted, model = self._result(), self.model
        config = saved_model.describe(model, self._used, fitted.posterior) | {
            "format": FORMAT,
            "complete": True,
        }
        if self.method is not None:
            config |= {"method": self.method.name, "settings": self.method.settings()}
        with replace_directory(path) as beside:
            write_json(beside / CONFIG, config)
            write_tensors(beside / POSTERIOR, saved_model.pack(fitted, model))
            lines = "".join(json.dumps(row) + "\n" for row in self.history)
            write_atomic(beside / HISTORY, lambda file: file.write_text(lines))

    @renamed(samples="num_samples", warn=False)
    def objective(
        self, data: Any, num_samples: int = 100, seed: int = 0, precision: float | None = None
    ) -> dict[str, float]:
        """The ELBO on ``data`` in its parts, nats per data set, and as a description length in
        bits.

        nll = -E_q[log p(D given w)] from ``num_samples`` draws, kl = KL[q, p], elbo = -nll - kl,
        and the ELBO's standard error. Bits: data given weights, weights net (the KL), total; and
        what sending a draw of the weights takes before its bits come back. Continuous targets have
        a length only at a stated ``precision`` t: bits = -log2(t p(y)); without it bits are left
        out.
        """
        predictive, y = self._predict_all(data, num_samples, seed, shortcut="weights")
        return objective(self.model, self.posterior, predictive, y, seed, precision)

    @renamed(samples="num_samples", warn=False)
    def log_weights(self, data: Any, num_samples: int = 100, seed: int = 0) -> Tensor:
        """log p(D, w_s) - log q(w_s) of draws w_s ~ q: their mean is the ELBO, the mean of their
        exponentials the evidence.
        """
        predictive, y = self._predict_all(data, num_samples, seed, shortcut="weights")
        return log_weights(self.model, self.posterior, predictive, y, seed)

    def relevance(self, name: str | None = None) -> Tensor:
        """Learned prior standard deviation of each input feature ``(in_features,)``: near zero, the
        feature was switched off (ARD).

        Of the weight called ``name``, by default the first layer's. Needs a prior learned per input
        or per weight, such as "ard".
        """
        model = self.model
        chosen = name or next((n for n, s in model.random.items() if len(s.shape) >= 2), "")
        found = model.prior.relevance(chosen)
        if found is None:
            raise CredoError(
                f"The prior of {chosen!r} is not learned per input; fit with prior='ard' to see "
                "relevance."
            )
        return found

    @property
    def updated(self) -> bool:
        """Whether the last fit had an earlier posterior as its prior."""
        return self._used.earlier_posterior is not None

    @property
    def proper(self) -> bool:
        """Whether every random parameter has a prior that integrates to one, so that evidences mean
        something.
        """
        model = self.model
        return model.prior.earlier_posterior is not None or all(
            is_proper(model.prior.at(site)) for site in model.random.values()
        )


#: Arguments of ``fit`` that are not the method's.
FIT = tuple(
    name for name, p in signature(BNN.fit).parameters.items() if p.kind is Parameter.KEYWORD_ONLY
)


def load(
    path: str | os.PathLike[str],
    net: nn.Module,
    prior: Any = None,
    device: torch.device | str | None = None,
    likelihood: Likelihood | None = None,
) -> BNN:
    """A saved model or finished run, for a network of the same structure.

    ``prior`` only where the run could not store its own, ``likelihood`` only where it is one of
    your own that no registry holds.
    """
    config, fitted, likelihood, learned = saved_model.unpack(Path(path), likelihood)
    saved_model.check_network(config, unwrap(net), path)
    if prior is None:
        prior = from_config(config["prior"]) if config["prior"] else Unstored(config["prior_text"])
    bnn = BNN(net, likelihood, prior, config["random"], config["output"])
    if "method" in config:
        plain = {k: tuple(v) if isinstance(v, list) else v for k, v in config["settings"].items()}
        restorable = {
            k: v for k, v in plain.items() if not (isinstance(v, str) and v.startswith("<"))
        }
        bnn.method = make_method(config["method"], restorable, warn=False)
    bnn._model = bnn._make_model(device, bnn.prior, bnn.method)
    saved_model.load_prior(bnn._model, learned)
    bnn._fitted, bnn.history = fitted.to(bnn._model.device), Run(path).history()
    return bnn
