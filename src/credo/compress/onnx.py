"""Networks and their predictions as ONNX files, for runtimes without PyTorch."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from credo.bnn import BNN
from credo.compress.cost import repeated_batch
from credo.compress.pruned import Pruned, plain
from credo.core.atomic import write_atomic
from credo.core.errors import CredoError, SettingError
from credo.core.settings import positive, renamed, whole
from credo.core.shell import pick, unwrap
from credo.core.tree import map_leaves, map_tensors, num_rows, tensors
from credo.engine.outputs import Draws, with_drawn
from credo.estimators import LIKELIHOOD
from credo.likelihoods.base import Likelihood

TOLERANCE = 1e-4  # of the largest output: two runtimes sum float32 in different orders
_LIMIT = 1 << 31  # bytes that one ONNX file can hold


@final
class Ensemble(nn.Module):
    """S networks and a likelihood: ``x -> (mean, variance)`` of the predictive mixture, each ``(N,
    D)``, as ``Predictive`` reports them.

    For labels the mean probabilities and their variance across draws; otherwise mean and total
    variance of y.
    """

    def __init__(
        self, members: list[nn.Module], likelihood: Likelihood, output: str | int | None = None
    ) -> None:
        super().__init__()
        self.members, self.likelihood, self.output = nn.ModuleList(members), likelihood, output

    def forward(self, x: Any) -> tuple[Tensor, Tensor]:
        """The mixture's mean and variance at x."""
        outputs = torch.stack([pick(member(x), self.output) for member in self.members])
        return self.likelihood.mixture_moments(outputs)[0], self.likelihood.reported_variance(
            outputs
        )


@renamed(samples="num_samples", warn=False)
def to_onnx(
    source: BNN | Pruned | nn.Module,
    path: str | os.PathLike[str],
    example: Any,
    num_samples: int | None = None,
    seed: int = 0,
) -> Path:
    """Write an ONNX file that takes any number of examples, run it once under onnxruntime, and
    return its path.

    Without ``num_samples``: the network itself, of a BNN the one with E[w], giving its plain
    outputs. With ``num_samples=S`` a BNN becomes one graph of S draws with outputs ``mean`` and
    ``variance``, those of ``bnn.predict(x, num_samples=S, seed=seed)``. ``example``: a tensor, or a
    tree of them, with examples on the first axis. Refused: functions that are not draws of weights
    (Gaussian processes, linearised Laplace), noise inside the network, files from 2 GiB, and
    networks with control flow that depends on numbers.
    """
    _packages("onnx", "onnxscript", "onnxruntime")
    target = Path(path)
    module = (
        _mean_network(source)
        if num_samples is None
        else ensemble(source, positive("num_samples", num_samples, 1), whole("seed", seed))
    )
    module = module.eval()
    size = sum(t.numel() * t.element_size() for t in [*module.parameters(), *module.buffers()])
    if size >= _LIMIT:
        raise CredoError(
            f"The network takes {size:,} bytes; one ONNX file holds less than {_LIMIT:,}. Export "
            "fewer draws, or a slimmed network."
        )
    inputs = map_tensors(lambda t: t.detach().cpu(), example)
    write_atomic(target, lambda beside: _export(module.cpu(), beside, inputs))
    return target


def session(net: nn.Module, example: Any) -> Callable[[Any], list[Tensor]]:
    """A network as a function under onnxruntime on one CPU thread: inputs like ``example``, any
    number of them, to a list of outputs.
    """
    with tempfile.TemporaryDirectory() as folder:
        return opened(to_onnx(net, Path(folder) / "net.onnx", example))


def opened(path: str | os.PathLike[str]) -> Callable[[Any], list[Tensor]]:
    """A file as a function under onnxruntime on one CPU thread; it is read whole and may go
    afterwards.
    """
    _packages("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    file = onnxruntime.InferenceSession(
        Path(path).read_bytes(), options, providers=["CPUExecutionProvider"]
    )
    names = [entry.name for entry in file.get_inputs()]

    def run(x: Any) -> list[Tensor]:
        return [
            torch.from_numpy(out)
            for out in file.run(
                None, dict(zip(names, (t.numpy() for t in tensors(x)), strict=True))
            )
        ]

    return run


def ensemble(source: Any, samples: int, seed: int = 0) -> Ensemble:
    """The draws that ``predict`` would use as S plain networks on the CPU, sharing what no draw
    changes, and the likelihood over them.
    """
    if not isinstance(source, BNN):
        raise SettingError(
            f"num_samples={samples} needs a BNN to draw from, got {type(source).__name__}; leave "
            "num_samples out for a single network."
        )
    posterior = source.posterior
    shortcut = None if source.method is None else source.method.shortcut
    if posterior.process is not None or posterior.noisy_modules or shortcut is not None:
        reason = (
            "it draws functions"
            if posterior.process is not None
            else "its noise is inside the network"
            if posterior.noisy_modules
            else f"it predicts by {shortcut!r}"
        )
        raise CredoError(
            f"This posterior's predictions are no ensemble of networks: {reason}. Export the mean "
            "network (num_samples=None) or distill it."
        )
    numbers = posterior.numbers(samples)
    drawn = {n: t.detach().cpu() for n, t in posterior.realise(numbers, seed).items()}
    base = plain(source)
    shared = {
        id(p): p for n, p in base.named_parameters() if n in posterior.fixed or n not in drawn
    }
    members = []
    for place in range(len(numbers)):
        member = copy.deepcopy(base, dict(shared))
        state = {
            n: t[place]
            for n, t in drawn.items()
            if n not in posterior.fixed and not n.startswith(LIKELIHOOD)
        }
        member.load_state_dict(state, strict=False)
        members.append(member)
    extra = {n.removeprefix(LIKELIHOOD): t for n, t in drawn.items() if n.startswith(LIKELIHOOD)}
    likelihood = with_drawn(source.model.likelihood.frozen().cpu(), extra)
    if source.standardised is not None:
        _, likelihood = source.standardised.told(torch.zeros(1, 1), likelihood)
    return Ensemble(members, likelihood, source.output).eval()


def _mean_network(source: BNN | Pruned | nn.Module) -> nn.Module:
    if isinstance(source, Pruned):
        return copy.deepcopy(source.net)
    if not isinstance(source, BNN):
        return copy.deepcopy(unwrap(source))
    if source.posterior.process is not None:
        raise CredoError(
            "This posterior's predictions are those of a Gaussian process, not of the network; "
            "distill it and export the student."
        )
    Draws.mean(source.posterior, source.model)  # refuses a mean of several modes
    return plain(source)


# --- writing --------------------------------------------------------------------------------------


def _packages(*names: str) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise CredoError(
                f"ONNX export needs the package {name!r}, which is not installed: pip install "
                "'credo-bayes[onnx]'."
            ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter speaks of packages it does not need, and prints every graph on which it
    fails.
    """
    loggers = [
        logging.getLogger(name) for name in ("torch.onnx", "torch.fx.experimental.symbolic_shapes")
    ]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@torch.no_grad()
def _export(module: nn.Module, path: Path, example: Any) -> None:
    several = repeated_batch(
        example, max(2, num_rows(example))
    )  # one example alone would be taken for a constant size
    total, batch = num_rows(several), torch.export.Dim("batch", min=1)
    shapes = map_leaves(
        lambda t: {0: batch} if isinstance(t, Tensor) and t.dim() and t.shape[0] == total else None,
        several,
    )
    names = ["mean", "variance"] if isinstance(module, Ensemble) else None
    try:
        with _quiet():
            torch.onnx.export(
                module,
                (several,),
                path,
                output_names=names,
                dynamo=True,
                dynamic_shapes=(shapes,),
                external_data=False,
                verbose=False,
            )
    except OSError:
        raise
    except Exception as error:  # the exporter wraps whatever it meets in errors of its own
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise CredoError(
            f"{type(module).__name__} cannot be written as ONNX: {reason} Its operations must not "
            "depend on the numbers, and examples "
            "must be on the first axis."
        ) from error
    _check(module, opened(path), several)


def _check(module: nn.Module, run: Callable[[Any], list[Tensor]], several: Any) -> None:
    """The file must give what the module gives, also for another number of examples."""
    for x in (several, repeated_batch(several, num_rows(several) + 1)):
        wanted = tensors(module(x))
        for want, got in zip(wanted, run(x), strict=True):
            gap, largest = float((want - got).abs().max()), float(want.abs().max())
            if want.shape != got.shape or not gap <= TOLERANCE * largest + 1e-6:
                raise CredoError(
                    f"The ONNX file gives outputs that differ by {gap:.2e} where the largest is "
                    f"{largest:.2e}; expected at most "
                    f"{TOLERANCE:.0e} of it. "
                    "Is the network random, or do its examples depend on each other?"
                )
