"""A model: network, likelihood, prior, and which parameters are random; and what a fit makes of
it.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from credo.core.errors import CredoError, DataError, Finding, NetworkError, SettingError
from credo.core.seeds import isolated
from credo.core.shell import Shell, pick
from credo.core.sites import Site, by_dtype, choose
from credo.core.standardised import Standardised
from credo.core.tree import map_tensors, tensors
from credo.data.checks import InputRange
from credo.data.source import Arrays, Source
from credo.likelihoods.base import Likelihood
from credo.posteriors import Delta, Family, FamilyPrior, Params, Posterior, Start, families
from credo.priors import Factorised, Fixed, Flat, Prior, is_proper
from credo.version import __version__


@dataclass
class Model:
    """What a method gets. The network is only read: every pass runs on a private shell, one per
    thread.
    """

    net: nn.Module
    likelihood: Likelihood
    prior: Prior
    random: dict[str, Site]
    point: dict[str, Site]
    device: torch.device
    output: str | int | None = None
    standardised: Standardised | None = None
    widths: dict[Any, int] = field(
        default_factory=dict, repr=False
    )  # of activations, per input shape: what predictions remember
    _local: threading.local = field(default_factory=threading.local, repr=False)

    @classmethod
    def of(
        cls,
        net: nn.Module,
        likelihood: Likelihood,
        prior: Prior,
        random: dict[str, Site],
        point: dict[str, Site],
        device: torch.device | str | None = None,
        output: str | int | None = None,
        adapt: Callable[[Model], Model] | None = None,
    ) -> Model:
        """On a device, the parameters' own by default, as a method sees it by ``adapt``, with a
        prior that is new where it learns.
        """
        own = next(iter(random.values())).device
        where = own if device is None else torch.device(device)
        model = cls(net, likelihood.to(where), prior, random, point, where, output)
        model = model if adapt is None else adapt(model)
        sites = model.sites.items()
        model.prior = model.prior.fresh(
            {n: s for n, s in sites if n in model.random or model.prior_for_point(n)}
        )
        return model

    def under(self, prior: Prior, adapt: Callable[[Model], Model]) -> Model:
        """The same network under another prior, with a likelihood of its own."""
        likelihood, sites = copy.deepcopy(self.likelihood), (self.random, self.point)
        model = Model.of(self.net, likelihood, prior, *sites, self.device, self.output, adapt)
        model.standardised = self.standardised
        return model

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the threads' shells, which a copy makes anew."""
        return {key: value for key, value in self.__dict__.items() if key != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    def shell(self) -> Shell:
        """This thread's shell."""
        if not hasattr(self._local, "shell"):
            self._local.shell = Shell(self.net, self.device)
        return self._local.shell

    @property
    def sites(self) -> dict[str, Site]:
        """Random and point parameters on the model's device."""
        return {n: replace(s, device=self.device) for n, s in (self.random | self.point).items()}

    def values(self, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Copies of the network's parameters on the model's device, from ``state`` where given."""
        own = dict(self.net.named_parameters())
        tables = self.net.named_parameters, self.net.named_buffers
        known = {name for named in tables for name, _ in named(remove_duplicate=False)}
        for name in state or {}:
            if name not in known:
                raise NetworkError(f"init holds {name!r}, which the network does not have.")
        out = {}
        for name in self.sites:
            value = own[name] if state is None else state.get(name, own[name])
            if value.shape != own[name].shape:
                raise NetworkError(
                    f"init gives {name!r} the shape {tuple(value.shape)}; the network has "
                    f"{tuple(own[name].shape)}."
                )
            out[name] = value.detach().to(self.device, own[name].dtype, copy=True)
        return out

    def start_values(self, init: str | Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """Where a fit starts: at the network's own values ("pretrained"), at fresh ones ("random"),
        or at a state dict.
        """
        if isinstance(init, str):
            return self.random_values(seed) if init == "random" else self.values()
        if not isinstance(init, Mapping):
            raise SettingError(f"init={init!r}: expected 'pretrained', 'random' or a state dict.")
        return self.values(init)

    def random_values(self, seed: int) -> dict[str, Tensor]:
        """Fresh initial values: every module's own ``reset_parameters``, run on a copy under this
        seed.
        """
        # a network that lies on a GPU draws its values from that GPU's generator
        own = next((p.device for p in self.net.parameters() if p.is_cuda), "cpu")
        with isolated(seed, own):
            clone = copy.deepcopy(self.net)
            for module in clone.modules():
                reset = getattr(module, "reset_parameters", None) or getattr(
                    module, "_reset_parameters", None
                )
                if callable(reset):
                    reset()
        fresh = dict(clone.named_parameters())
        return {name: fresh[name].detach().to(self.device, copy=True) for name in self.sites}

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the network's buffers on the model's device."""
        return {
            name: buffer.detach().to(self.device, copy=True)
            for name, buffer in self.net.named_buffers()
        }

    def frozen(self) -> dict[str, Tensor]:
        """Parameters that do not train, on the model's device."""
        return {
            n: p.detach().to(self.device)
            for n, p in self.net.named_parameters()
            if n not in self.random and n not in self.point
        }

    def prior_for_point(self, name: str) -> bool:
        """Whether the user named a prior for this point parameter, which makes it MAP instead of
        maximum likelihood.
        """
        return self.prior.matches(name)

    def check(self, x: Any, targets: Any) -> None:
        """One pass over ``x``, a few examples: targets and shapes that do not fit are refused
        before training starts.
        """
        width = self.probe(x).shape[-1]
        y = self.likelihood.check_training_targets(targets)
        if not self.likelihood.accepts(width, y):
            raise DataError(
                f"The network gives {width} outputs per example, but the "
                f"{self.likelihood.name} likelihood needs "
                f"{self.likelihood.num_outputs(y)} for these targets; change the network's last "
                "layer."
            )

    @torch.no_grad()
    def probe(self, x: Any) -> Tensor:
        """Outputs of the network as it came, in evaluation mode."""
        shell = self.shell()
        shell.train(False)
        for part in (self.frozen(), self.buffers(), self.values()):
            shell.place(part)
        x = self.move(x)
        with refused_inputs(x), isolated(0, self.device):
            return self.outputs(shell, x)

    @property
    def is_proper(self) -> bool:
        """Whether every random parameter has a prior that integrates to one."""
        if self.prior.earlier_posterior is not None:
            return True
        return all(is_proper(self.prior.at(site)) for site in self.random.values())

    def relevance(self, name: str | None) -> Tensor:
        """Learned prior standard deviation of each input feature of a weight, by default the
        first.
        """
        chosen = name or next((n for n, s in self.random.items() if len(s.shape) >= 2), "")
        found = self.prior.relevance(chosen)
        if found is None:
            raise CredoError(
                f"The prior of {chosen!r} is not learned per input; fit with prior='ard' to see "
                "relevance."
            )
        return found

    def on_device(self, source: Source) -> Source:
        """The data as a fit sees them: in-memory data move to the device once; targets are checked
        and cast here or batch by batch.
        """
        arrays = source.arrays()
        if arrays is None:
            return Source(_Checked(source, self), source.num_data)
        x, y = arrays
        targets = self.move(self.likelihood.check_targets(y))
        return Source(Arrays(self.move(x), targets), source.num_data)

    def prior_over(self, family: Family) -> FamilyPrior | None:
        """The prior of one family of a posterior; point estimates have a flat one, except the
        parameters the user named a prior for.
        """
        named = {n for n in family.names if n in self.random or self.prior_for_point(n)}
        if not named:
            return None
        sites = self.sites
        if len(named) == len(family.names):
            return family.prior_from(self.prior, sites)
        parts = {
            n: family.restrict(self.prior.at(sites[n]), n) if n in named else Flat()
            for n in family.names
        }
        return Factorised(parts, family.shapes)

    def posterior(self, kind: str, values: Params, start: Start) -> Posterior:
        """A posterior to begin a fit with: families of the ``kind`` over the random parameters,
        points over the rest.
        """
        groups = by_dtype(self.random)
        return self.with_points(
            [family for sites in groups for family in families[kind].over(sites, values, start)],
            values,
        )

    def with_points(self, factors: Sequence[Family], values: Params) -> Posterior:
        """These families, and a point over the parameters that are not random."""
        points = {n: values[n] for n in self.point}
        return Posterior([*factors, *([Delta.start(points)] if points else [])])

    def point_posterior(self, values: Params) -> Posterior:
        """Point estimates of everything; the random parameters by themselves, because only they
        have a prior.
        """
        groups = [{n: values[n] for n in names} for names in (self.random, self.point) if names]
        return Posterior([Delta.start(group) for group in groups])

    def flat(self) -> Model:
        """The same model under a flat prior."""
        return replace(self, prior=Fixed(Flat()), _local=threading.local())

    def narrow(self, layers: Any, setting: str = "layers") -> Model:
        """The same model with only ``layers`` random, chosen as ``random=`` is and given as
        ``setting``; the rest become point estimates.
        """
        return self.only(choose(self.net, layers, self._ordered(), setting))

    def only(self, names: Collection[str]) -> Model:
        """The same model with only these parameters random; the rest become point estimates."""
        sites = self._ordered()
        return replace(
            self,
            random={n: s for n, s in sites.items() if n in names},
            point={n: s for n, s in sites.items() if n not in names},
            _local=threading.local(),
        )

    def _ordered(self) -> dict[str, Site]:
        """Random and point parameters in the network's order: "last" goes by it."""
        both = self.random | self.point
        return {n: both[n] for n, _ in self.net.named_parameters() if n in both}

    def config(self, prior: Prior) -> dict[str, Any]:
        """Everything but numbers, as JSON; ``prior`` is the user's, of which ``self.prior`` may be
        an adapted copy.
        """
        units = self.standardised
        return ({} if units is None else {"standardised": units.parts}) | {
            "credo": __version__,
            "likelihood": {"name": self.likelihood.name, "config": self.likelihood.config()},
            "prior": prior.config(),
            "prior_text": prior.describe(),
            "random": list(self.random),
            "parameters": {name: list(site.shape) for name, site in self.sites.items()},
            "output": self.output,
        }

    def digest(self, values: Mapping[str, Tensor] | None = None) -> str:
        """A digest of the numbers that a fit takes as given: frozen parameters, buffers, what the
        likelihood does not learn, and ``values``.
        """
        likelihood = {n: p for n, p in self.likelihood.named_parameters() if not p.requires_grad}
        likelihood |= dict(self.likelihood.named_buffers())
        own = dict(values or {}) | {f"likelihood/{n}": t for n, t in likelihood.items()}
        own |= self.frozen() | self.buffers()
        digested = hashlib.blake2b(digest_size=8)
        for name, tensor in sorted(own.items()):
            digested.update(
                f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
                + tensor.detach().cpu().contiguous().numpy().tobytes()
            )
        return digested.hexdigest()

    def outputs(self, shell: Shell, x: Any) -> Tensor:
        """Run a filled shell and pick the tensor the likelihood sees."""
        return pick(shell(x), self.output)

    def told(self, outputs: Tensor, likelihood: Likelihood) -> tuple[Tensor, Likelihood]:
        """Both in the units of the targets as they were given."""
        units = self.standardised
        return (outputs, likelihood) if units is None else units.told(outputs, likelihood)

    def move(self, tree: Any) -> Any:
        """Inputs or targets on the model's device."""
        return map_tensors(lambda t: t.to(self.device), tree)


@dataclass(frozen=True)
class Fitted:
    """What a method returns: the posterior, the network's buffers as training left them; the trial
    before it, if there was one, what was found wrong afterwards, and where inputs were seen.
    """

    posterior: Posterior
    buffers: Mapping[str, Tensor]
    findings: Sequence[Finding] = ()
    trial: Mapping[str, Any] | None = None
    inputs: InputRange | None = None

    def to(self, device: torch.device) -> Fitted:
        """On another device, with no parameter trainable."""
        buffers = {name: buffer.to(device) for name, buffer in self.buffers.items()}
        posterior = self.posterior.to(device).requires_grad_(False)
        return replace(self, posterior=posterior, buffers=buffers)

    def config(self) -> dict[str, Any]:
        """What a stored model says of its posterior besides numbers."""
        found = [asdict(finding) for finding in self.findings]
        return {"posterior": self.posterior.config(), "findings": found, "trial": self.trial}

    def numbers(self, model: Model) -> dict[str, Tensor]:
        """All that was learned, by kind and name, as it is stored."""
        parts: dict[str, Mapping[str, Tensor]] = {
            "posterior": self.posterior.state_dict(),
            "likelihood": model.likelihood.state_dict(),
            "buffers": self.buffers,
            "prior": nn.ModuleList(model.prior.parts()).state_dict(),
            "inputs": {} if self.inputs is None else self.inputs.tensors(),
            "standardised": {} if model.standardised is None else model.standardised.tensors(),
        }
        return {
            f"{kind}/{name}": tensor
            for kind, tensors in parts.items()
            for name, tensor in tensors.items()
        }


@contextmanager
def refused_inputs(x: Any) -> Iterator[None]:
    """What a network raises about its inputs, as one sentence with their shapes."""
    try:
        yield
    except (torch.cuda.OutOfMemoryError, CredoError):
        raise
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        shapes = [tuple(t.shape) for t in tensors(x)]
        raise NetworkError(
            f"The network cannot take inputs of shape {shapes}: {str(error).splitlines()[0]}"
        ) from error


@final
class _Checked:
    """A feed that casts targets as the likelihood wants them."""

    def __init__(self, source: Source, model: Model) -> None:
        self.source, self.model = source, model

    def batches(self, generator: torch.Generator | None, batch_size: int | None) -> Iterator[Any]:
        """Batches with checked targets."""
        for x, y in self.source(generator, batch_size):
            yield x, self.model.likelihood.check_targets(y)
