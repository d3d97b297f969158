"""``BNN``: a network with a likelihood, a prior and, once fitted, a posterior.

The only object most users meet.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from credo.core.errors import CredoError, Finding
from credo.core.settings import positive, renamed
from credo.core.shell import unwrap
from credo.core.sites import select
from credo.core.standardised import Standardised
from credo.data.checks import Asked, InputRange, Outside, standardise_asked, taken
from credo.data.intake import intake
from credo.engine import fit_checks, saved_model, value_checks  # noqa: F401 (checks register)
from credo.engine.diagnose import Case, diagnose, tell
from credo.engine.fit_job import FIT_ARGUMENTS, Callback, FitJob, FitOptions
from credo.engine.model import Fitted, Model
from credo.engine.outputs import Draws, sampled_outputs, with_drawn
from credo.engine.plan import Plan, plan_of
from credo.engine.run import Run
from credo.engine.summary import Summary
from credo.engine.trial import run_trial
from credo.likelihoods.base import Likelihood, get
from credo.methods import Method, make_method
from credo.posteriors import Posterior, PosteriorPrior
from credo.predictive import Predictive
from credo.predictive.predictive import joined
from credo.predictive.shortcuts import chosen_shortcut, shortcut_named
from credo.priors import Prior, Unstored, as_prior, default_prior, from_config


class BNN(Summary):
    """A network, what its outputs mean, and what is known about its weights.

    ``net``: any ``nn.Module``; it is read, never changed. ``likelihood``: a registry name or a
    ``credo.likelihoods`` object. ``prior``: a torch distribution, a credo prior, its name, a
    posterior, or a dict pattern -> prior. ``random``: "all", "weights", "last", name patterns, or
    module types; the rest are point estimates. ``output``: which entry of a dict-like network
    output the likelihood sees. ``standardise``: True for a model of standardised inputs and
    targets, whose predictions are in the units of y all the same; "auto" where their scale is wild
    and ``prior`` is None. Prior, posterior and history are then in standardised units.
    """

    def __init__(
        self,
        net: nn.Module,
        likelihood: str | Likelihood = "categorical",
        prior: Any = None,
        random: Any = "all",
        output: str | int | None = None,
        standardise: Asked = "auto",
    ) -> None:
        self.net = unwrap(net)
        self._standardise = standardise_asked(standardise, prior, self.net)
        self.random, self.point = select(self.net, random)
        if isinstance(prior, Posterior):
            prior = PosteriorPrior(copy.deepcopy(prior))
        chosen = default_prior() if prior is None else prior
        self.prior = chosen if isinstance(chosen, Prior) else as_prior(chosen)
        self.likelihood = copy.deepcopy(get(likelihood))
        self.output = output
        self.method: Method | None = None
        self.history: list[dict[str, Any]] = []
        self._fitted: Fitted | None = None
        self._model: Model | None = None
        self._initial = copy.deepcopy(self.likelihood)
        self._prior_open = prior is None
        self._used = self.prior  # the prior of the last fit: after update, the posterior before it

    def __repr__(self) -> str:
        numel = sum(site.numel for site in self.random.values())
        state = "fitted" if self.is_fitted else "not fitted"
        state += f" with {self.method.name}" if self.is_fitted and self.method else ""
        return (
            f"BNN({type(self.net).__name__}, {self.likelihood.name}, {numel} random parameters, "
            f"prior {self._used.describe()}, {state}{', standardised' * bool(self.standardised)})"
        )

    @property
    def is_fitted(self) -> bool:
        """Whether it has a posterior."""
        return self._fitted is not None

    @property
    def posterior(self) -> Posterior:
        """The fitted posterior."""
        return self._result().posterior

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """The network's buffers by name, as the fit left them, or as they came."""
        return self.model.buffers() if self._fitted is None else self._fitted.buffers

    @property
    def standardised(self) -> Standardised | None:
        """Means and deviations that the last fit standardised by; None where it did not."""
        return None if self._model is None else self._model.standardised

    @property
    def dtype(self) -> torch.dtype | None:
        """That of the random parameters, which inputs are cast to; None where none is real."""
        return next((s.dtype for s in self.random.values() if s.dtype.is_floating_point), None)

    def _result(self) -> Fitted:
        if self._fitted is None:
            raise CredoError(
                "This BNN has no posterior yet; call fit(data) or load one with credo.load."
            )
        return self._fitted

    def _make_model(
        self, device: torch.device | str | None, prior: Prior, method: Method | None = None
    ) -> Model:
        parts = self.net, self.likelihood, prior, self.random, self.point
        adapt = None if method is None else method.adapt
        return Model.of(*parts, device=device, output=self.output, adapt=adapt)

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
        max_seconds: float | None = None,
        strict: bool = False,
        **settings: Any,
    ) -> Self:
        """Turn data into a posterior with a method of the registry and its settings.

        ``data``: (x, y) of tensors, arrays or DataFrames, a Dataset, or a DataLoader. ``method``: a
        name, or an object such as ``credo.methods.VI(beta=0.5)``; ``settings`` are the arguments of
        its class, which ``credo methods NAME`` lists. Without ``epochs`` a descent ends when its
        objective has settled; the last row of the history says why. ``run``: a directory to write
        to and to resume from, or a ``Run``. ``validation``: data whose predictive nll is added to
        the history. A callback gets each row of it and ends the fit by returning True; in it
        ``posterior`` and ``predict`` are those of the moment. ``strict=True``: findings of
        ``diagnose`` are an error, and not a warning.
        """
        asked = FitOptions(
            epochs, batch_size, lr, num_data, validation, seed, device, run, progress
        )
        options = replace(asked, callbacks=callbacks, max_seconds=max_seconds, strict=strict)
        chosen = make_method(method, settings, beside=FIT_ARGUMENTS)
        options.check(chosen)
        self.likelihood = copy.deepcopy(self._initial)
        return self._fit(data, chosen, self.prior, options, self._standardise)

    def plan(self, data: Any, method: str | Method = "vi", **arguments: Any) -> Plan:
        """What ``fit`` with the same arguments would do: its length, what the problem chooses, its
        time and memory. A trial of about a second measures the time, and changes nothing of yours.
        """
        options = FitOptions.taken_from(arguments)
        chosen = make_method(method, arguments, beside=FIT_ARGUMENTS)
        options.check(chosen)
        scratch = copy.copy(self)
        scratch.likelihood = copy.deepcopy(self._initial)
        model = scratch._make_model(options.device, self.prior, chosen)
        asked = self._standardise, self.dtype, self._prior_open
        return plan_of(chosen, model, data, options, *asked)

    def _fit(
        self, data: Any, method: Method, prior: Prior, options: FitOptions, asked: Asked
    ) -> Self:
        earlier = () if prior is self.prior else (self._result().inputs,)  # of an update
        model = self._make_model(options.device, prior, method)
        fit_job = FitJob.on(data, options, method, model, asked, self.dtype)
        trial = None
        if method.tries and options.is_open and self._prior_open and prior is self.prior:
            prior, method, trial = run_trial(model, method, fit_job.source, options)
            units, model = model.standardised, self._make_model(options.device, prior, method)
            data, asked = fit_job.source, units or False
            fit_job = FitJob.on(data, options, method, model, asked, self.dtype)
        fit_job.show = partial(self._show, model)
        run, config = fit_job.run, fit_job.config(model, prior, method)
        if run is not None:
            stored = run.begin(config, method.present_config)
            if stored is not None and stored.get("complete"):
                return self._adopt(run, model, method)
        before = self._fitted, self._model, self.method
        try:
            fitted = method.for_problem(fit_job.problem).fit(model, fit_job)
        except BaseException:
            self._fitted, self._model, self.method = before
            raise
        fitted.posterior.requires_grad_(False)
        x = (fit_job.source.arrays() or (None,))[0]
        seen = InputRange.of(x, model.standardised, *earlier)
        fitted = replace(fitted, trial=trial, inputs=seen)
        fitted = replace(fitted, findings=diagnose(Case(model, method, fitted, fit_job)))
        self._fitted, self._model, self.method = fitted, model, method
        self.history, self._used = fit_job.history, prior
        if run is not None:
            described = model.config(prior) | fitted.config()
            run.finish(fitted.numbers(model), config | described)
        tell(fitted.findings, options.strict)
        return self

    def diagnose(self, x: Any = None) -> list[Finding]:
        """What is wrong with the fit, and with ``x`` as inputs to predict at, each finding with its
        evidence and a remedy; an empty list where nothing is.
        """
        found, watch = list(self._result().findings), self._watch()
        if x is not None:
            watch.seen(self._inputs(x))
        return found + watch.findings

    def _show(self, model: Model, fitted: Fitted) -> None:
        """What callbacks find: draws, since shortcuts are for a finished method."""
        self._fitted, self._model, self.method = fitted, model, None

    def _adopt(self, run: Run, model: Model, method: Method) -> Self:
        """Take over the result of a finished run."""
        _, fitted, likelihood, prior = saved_model.unpack(run.path, self.likelihood)
        self.likelihood.load_state_dict(likelihood.state_dict())
        saved_model.load_prior(model, prior)
        self._fitted, self._model, self.method = fitted.to(model.device), model, method
        self.history = run.history()
        return self

    def _draws(self, source: str, samples: int, seed: int, joint: bool = False) -> Draws:
        posterior = self.posterior if source == "posterior" or self.is_fitted else None
        return Draws.chosen(self.model, posterior, source, samples, seed, joint)

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
        """The predictive distribution at ``x``, from posterior or ("prior") from prior draws.

        ``shortcut="mean"`` is one pass with E[w]; ``"moments"`` one pass that carries means and
        variances of the activations (``"moments_full"``: covariances too), for Gaussian posteriors
        and dropout; ``"linear"`` the network linearised at E[w], ``"probit"`` the same without
        draws, for labels; ``"weights"`` draws of the weights, which is what None means unless the
        method prefers a shortcut. A seed fixes every draw; batching and vectorising do not change
        them.
        """
        watch = self._watch(source)
        given = watch.seen(self._inputs(x))
        if watch.findings:
            tell(watch.findings)
        return self._predict(given, num_samples, seed, batch_size, shortcut, source, vectorise)

    def _predict(
        self,
        x: Any,
        num_samples: int,
        seed: int,
        batch_size: int | None,
        shortcut: str | None,
        source: str = "posterior",
        vectorise: bool | None = None,
    ) -> Predictive:
        name = self._chosen(shortcut, source)
        if name is None:
            draws = self._draws(source, num_samples, seed)
        elif name == "mean":
            draws = Draws.mean(self.posterior, self.model)
        else:
            count = positive("num_samples", num_samples, 1)
            run = partial(shortcut_named(name).outputs, self.model, self.posterior)
            outputs = run(x, self.buffers, count, batch_size=batch_size)
            return Predictive(*self.model.told(outputs, self.model.likelihood))
        return Predictive(*self._forward(draws, x, seed, batch_size, vectorise))

    def functions(self, x: Any, n: int, seed: int = 0, source: str = "posterior") -> Tensor:
        """``n`` draws of the function at ``x``: outputs ``(n, N, F)`` without noise of y."""
        draws = self._draws(source, n, seed, joint=True)
        name = self._chosen(None, source)
        functions = None if name is None or name == "mean" else shortcut_named(name).functions
        if functions is not None:
            found = functions(
                self.model, self.posterior, draws, self._inputs(x), self.buffers, None
            )
            return self.model.told(found, self.model.likelihood)[0]
        return self._forward(draws, self._inputs(x), seed, None, None)[0]

    def _chosen(self, shortcut: str | None, source: str) -> str | None:
        """The shortcut that is asked for, or that the method predicts with; None for draws."""
        preferred = None if self.method is None else self.method.shortcut
        if shortcut is None and (preferred is None or source != "posterior"):
            return None
        return chosen_shortcut(shortcut, source, preferred)

    def _watch(self, source: str = "posterior") -> Outside:
        known = self._fitted.inputs if self._fitted and source == "posterior" else None
        return Outside(known, self.standardised)

    def _inputs(self, x: Any) -> Any:
        return taken(x, self.dtype, self.standardised)

    def _forward(
        self, draws: Draws, x: Any, seed: int, batch_size: int | None, vectorise: bool | None
    ) -> tuple[Tensor, Likelihood]:
        model = self.model
        outputs, extra = sampled_outputs(model, draws, x, self.buffers, seed, batch_size, vectorise)
        return model.told(outputs, with_drawn(model.likelihood, extra))

    def _predict_all(
        self, data: Any, count: int, seed: int, size: int | None = None, shortcut: str | None = None
    ) -> tuple[Predictive, Tensor]:
        batches = intake(data, dtype=None if self.standardised else self.dtype)(None, size)
        watch = self._watch()
        pairs = ((watch.seen(self._inputs(x)), y) for x, y in batches)
        all_of_them = joined((self._predict(x, count, seed, None, shortcut), y) for x, y in pairs)
        if watch.findings:
            tell(watch.findings)
        return all_of_them

    def update(self, data: Any, **fit_settings: Any) -> Self:
        """Learn from more data: the posterior becomes the prior, and the same method runs again
        from where it is.
        """
        prior = PosteriorPrior.after(self.posterior)
        if self.method is None:
            raise CredoError("update runs the method of the fit again, which this BNN lacks.")
        options = FitOptions.taken_from(fit_settings)
        fit_settings = self.method.start_at(self.posterior, self.model.sites) | fit_settings
        method = make_method(self.method, fit_settings, beside=FIT_ARGUMENTS)
        options = replace(options, device=options.device or self.model.device)
        options.check(method)
        earlier = self.history[-1].get("log_evidence") if self.history else None
        self._fit(data, method, prior, options, self.standardised or False)
        # log p(D1, D2) = log p(D1) + log p(D2 given D1)
        if earlier is not None and "log_evidence" in self.history[-1]:
            self.history[-1]["log_evidence"] += earlier
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a directory of JSON and safetensors, whole or not at all."""
        method = None if self.method is None else (self.method.name, self.method.settings())
        saved_model.save(path, self._result(), self.model, self._used, method, self.history)


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
    units = saved_model.stored_units(Path(path))
    bnn = BNN(net, likelihood, prior, config["random"], config["output"], units or False)
    if "method" in config:
        settings = saved_model.stored_settings(config)
        bnn.method = make_method(config["method"], settings, warn=False)
    bnn._model = bnn._make_model(device, bnn.prior, bnn.method)
    bnn._model.standardised = units
    saved_model.load_prior(bnn._model, learned)
    bnn._fitted = fitted.to(bnn._model.device)
    bnn.history = saved_model.stored_history(Path(path))
    return bnn
