"""One training step, the ways to run it, and a descent by such steps."""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, final

import torch
from torch import Tensor

from credo.core.capture import CapturedGraph
from credo.core.errors import SettingError
from credo.core.seeds import put_state, take_state
from credo.core.tree import map_tensors, num_rows, tensors
from credo.engine.elbo import Elbo
from credo.engine.fit_job import FitJob
from credo.engine.model import Fitted
from credo.engine.training_loop import MakeOptimizer, Schedule, constant, hold, train
from credo.estimators.placement import Replan

SHAPES = 2  # of batches that are captured: the usual one and an epoch's last


class Step(ABC):
    """``step(x, y, weight)`` moves what is learned along the gradient of sum(nll) / B + weight KL /
    N; returns (nll sum, KL), detached.

    The ways to run one, each with the file in ``benchmarks/results`` that justifies it:

    ======================  ========================================================================
    :class:`EagerStep`      plain autograd, the reference of all others (``cpu_bench.md``)
    the same, compiled      a captured step of the plain network takes 0.8 of its time when it is
                            also compiled (``h200_bench.md``). On a CPU only some convolutional
                            networks gain, and dense ones lose (``cpu_compiled.md``)
    :class:`CapturedStep`   one CUDA graph, compiled: 0.05 to 0.2 of the eager step on a GPU
                            (``h200_joint.md``)
    ``MembersStep``         all members of an ensemble at once: 0.6 to 0.7 of one after another on a
                            CPU (``cpu_ensembles.md``), 0.23 on a GPU and 0.013 when captured
                            (``h200_ensembles.md``). With convolutions members take turns: vmap
                            takes 1.6 of a loop (``cpu_bench.md``)
    ``ThreadedMembers``     each member on a thread: 0.5 of one after another on a CPU
                            (``cpu_ensembles.md``)
    ======================  ========================================================================

    The last two are in ``credo.methods.ensembles.parts``.
    """

    @abstractmethod
    def __call__(self, x: Any, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """One step on one batch."""


class Capturable(Protocol):
    """What :class:`CapturedStep` needs of the step that it captures."""

    optimizer: torch.optim.Optimizer
    num_data: int
    device: torch.device

    def __call__(self, x: Any, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """The step itself, for batches of a shape that is not captured."""
        ...

    def prepare(self, x: Any) -> None:
        """What has to happen before the first run on inputs of this structure, outside the
        recording.
        """
        ...

    def run(self, x: Any, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The whole step, with ``scale`` = weight / N; (nll sum, KL), detached."""
        ...

    def release(self) -> None:
        """Drop the autograd graph that tensors placed in a network keep alive."""
        ...

    def changed_tensors(self) -> Iterator[Tensor]:
        """Parameters and buffers that a run changes, without the optimizer's state."""
        ...


@final
class EagerStep(Step):
    """Plain autograd; with ``compile`` the loss is one compiled graph (``fullgraph=True``).

    Measured in ``cpu_bench.md``, compiled in ``h200_bench.md`` and ``cpu_compiled.md``.
    """

    def __init__(
        self, elbo: Elbo, optimizer: torch.optim.Optimizer, num_data: int, compile: bool = False
    ) -> None:
        self.elbo, self.optimizer, self.num_data = elbo, optimizer, num_data
        self.device, self.compiled = elbo.model.device, compile
        self.forward = (
            torch.compile(_own_code(elbo), fullgraph=True, dynamic=False) if compile else elbo
        )

    def __call__(self, x: Any, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """Forward, backward, optimizer; a site that meets an unknown operation is planned anew and
        the step repeated.
        """
        if self.compiled:
            self.elbo.plan(self.elbo.model.shell(), x)  # a dry run cannot be traced
        watch = self.elbo.estimator.intercepts and not self.compiled
        state = take_state(self.device) if watch else None
        buffers = [(b, b.clone()) for b in self.elbo.buffers_.buffers()] if watch else []
        self.optimizer.zero_grad(set_to_none=True)
        while True:
            try:
                nll, kl = self.forward(x, y)
                break
            except Replan as replan:
                if state is None:
                    raise
                self.elbo.learn(replan, x)
                put_state(self.device, state)
                for buffer, before in buffers:
                    buffer.copy_(before)
            except Exception as error:
                if not self.compiled or type(error).__module__ != "torch._dynamo.exc":
                    raise
                raise SettingError(
                    "compile=True: the compiler cannot trace this network with "
                    f"estimator={self.elbo.estimator.name!r} and this "
                    f"posterior ({str(error).splitlines()[0]}); use compile=False."
                ) from error
        loss = nll / num_rows(x) + kl * (weight / self.num_data)
        loss.backward()
        self.optimizer.step()
        return nll.detach(), kl.detach()

    def prepare(self, x: Any) -> None:
        """Make the plan."""
        self.elbo.plan(self.elbo.model.shell(), x)

    def run(self, x: Any, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Forward, backward, optimizer, without a way back."""
        self.optimizer.zero_grad(set_to_none=True)
        nll, kl = self.forward(x, y)
        (nll / num_rows(x) + kl * scale).backward()
        self.optimizer.step()
        return nll.detach(), kl.detach()

    def release(self) -> None:
        """Put plain means where the draws were."""
        self.elbo.model.shell().place(
            {name: value.detach() for name, value in self.elbo.posterior.mean().items()}
        )
        self.optimizer.zero_grad(set_to_none=True)

    def changed_tensors(self) -> Iterator[Tensor]:
        """Those of the objective."""
        yield from self.elbo.parameters()
        yield from self.elbo.buffers()


def _own_code(elbo: Elbo) -> types.MethodType:
    """``elbo.forward`` with a code object of its own.

    The compiler counts recompilations per code object; with a shared one, the ninth model of a
    process would hit its limit.
    """
    source = Elbo.forward
    function = types.FunctionType(
        source.__code__.replace(),
        source.__globals__,
        source.__name__,
        source.__defaults__,
        source.__closure__,
    )
    return types.MethodType(function, elbo)


@final
class CapturedStep(Step):
    """The whole step (forward, backward, optimizer) as a CUDA graph per batch shape: no launch
    overhead is left.

    Needs an optimizer made with ``capturable=True``. Noise comes from the ambient CUDA generator,
    whose state the graph advances at every replay. Batch shapes beyond the second run eagerly. What
    a step returns is overwritten by the next. Measured in ``h200_joint.md``, and for members in
    ``h200_ensembles.md``.
    """

    def __init__(self, eager: Capturable) -> None:
        self.eager = eager
        self.weight = 0.0
        self.scale = torch.zeros((), device=eager.device)  # weight / N, as the graphs read it
        self.graphs: dict[tuple[Any, ...], CapturedGraph[tuple[Tensor, Tensor]]] = {}

    def __call__(self, x: Any, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """Copy the batch into the graph's inputs and replay."""
        inputs = tensors((x, y))
        key = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        if key not in self.graphs:
            if len(self.graphs) >= SHAPES:
                return self.eager(x, y, weight)
            self.graphs[key] = self._capture(x, y)
        graph = self.graphs[key]
        graph.load(inputs)
        if weight != self.weight:
            self.scale.fill_(weight / self.eager.num_data)
            self.weight = weight
        return graph.replay()

    def _capture(self, x: Any, y: Tensor) -> CapturedGraph[tuple[Tensor, Tensor]]:
        x, y = map_tensors(lambda tensor: tensor.clone(), (x, y))
        self.eager.prepare(x)
        with _unchanged(self.eager):
            return CapturedGraph(
                lambda: self.eager.run(x, y, self.scale), tensors((x, y)), self.eager.release
            )


@contextmanager
def _unchanged(step: Capturable) -> Iterator[None]:
    """What steps in the block change is put back: parameters, buffers, the optimizer's state and
    the GPU's random state.
    """
    states = [(t, t.detach().clone()) for t in _state(step.optimizer)]
    before = [(t, t.detach().clone()) for t in step.changed_tensors()] + states
    random = torch.cuda.get_rng_state(step.device)
    yield
    with torch.no_grad():
        for tensor, value in before:
            tensor.copy_(value)
        known = {id(tensor) for tensor, _ in states}
        for tensor in _state(step.optimizer):
            if id(tensor) not in known:  # made by the steps of the block
                tensor.zero_()
    torch.cuda.set_rng_state(random, step.device)


def _state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [t for state in optimizer.state.values() for t in tensors(list(state.values()))]


def wants_graph(device: torch.device, compile: bool | str) -> bool:
    """Whether the setting ``compile`` asks for a CUDA graph: on a GPU whatever it is, if not False.
    "graph" asks for nothing else, which a CPU cannot give.
    """
    if compile == "graph" and device.type != "cuda":
        raise SettingError(
            "compile='graph' captures the step as a CUDA graph; on a CPU use True or False."
        )
    return bool(compile) and device.type == "cuda"


def make_step(
    elbo: Elbo, optimizer: torch.optim.Optimizer, num_data: int, compile: bool | str
) -> Step:
    """With ``compile`` a compiled loss, on a GPU in a CUDA graph; with "graph" that graph of the
    loss as it is.
    """
    graph = wants_graph(elbo.model.device, compile)
    eager = EagerStep(elbo, optimizer, num_data, compile is True)
    return CapturedStep(eager) if graph else eager


# --- from the first step to the last -------------------------------------------------------------


def descend(
    elbo: Elbo,
    fit_job: FitJob,
    *,
    beta: float = 1.0,
    schedule: Schedule = constant,
    warmup: int = 0,
    decay: Callable[[float], float] = hold,
    compile: bool | str = False,
    optimizer: MakeOptimizer[Elbo] | None = None,
) -> Fitted:
    """Minimise the negative ELBO with Adam, or with the optimizer that ``optimizer(elbo, lr,
    num_data)`` makes.
    """
    return train(
        elbo, fit_job, optimizer or adam, make_step, beta, schedule, warmup, decay, compile
    )


def adam(
    elbo: Elbo, lr: float | Tensor, num_data: int, rate_lr: float = 1.0, prior_lr: float = 1.0
) -> torch.optim.Optimizer:
    """Fused Adam over everything that is learned; parameters that each steer the noise of many
    weights, and those of the prior, at ``rate_lr`` and ``prior_lr`` times the learning rate.
    """
    rates = [p for family in elbo.posterior.factors for p in family.rate_params()]
    paces = [(rates, rate_lr), (list(elbo.prior_parts.parameters()), prior_lr)]
    own_pace = {id(p) for params, factor in paces for p in params if factor != 1.0}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in elbo.parameters() if p.requires_grad and id(p) not in own_pace]}
    ]
    for params, factor in paces:
        if factor != 1.0 and (own := [p for p in params if p.requires_grad]):
            groups.append({"params": own, "lr": lr * factor, "factor": factor})
    return torch.optim.Adam(groups, lr=lr, fused=True, capturable=isinstance(lr, Tensor))
