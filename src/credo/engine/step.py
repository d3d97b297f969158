"""One training step: eager, compiled, or the whole step as one CUDA graph."""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from credo.core.errors import SettingError
from credo.core.seeds import put_state, take_state
from credo.core.tree import num_rows
from credo.engine.elbo import Elbo
from credo.estimators.slot import Replan


class Step(ABC):
    """``step(x, y, weight)`` moves the posterior along the gradient of sum(nll) / B + weight KL /
    N; returns (nll sum, KL), detached.
    """

    @abstractmethod
    def __call__(self, x: Any, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """One step on one batch."""


class Capturable(Step):
    """A step whose work on the device can be recorded once and replayed."""

    optimizer: torch.optim.Optimizer
    num_data: int
    device: torch.device

    @abstractmethod
    def prepare(self, x: Any) -> None:
        """What has to happen before the first run on inputs of this structure, outside the
        recording.
        """

    @abstractmethod
    def run(self, x: Any, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The whole step, with ``scale`` = weight / N; (nll sum, KL), detached."""

    @abstractmethod
    def forget(self) -> None:
        """Drop the autograd graph that tensors placed in a network keep alive: its nodes belong to
        the stream they were made on.
        """

    @abstractmethod
    def held(self) -> Iterator[Tensor]:
        """Parameters and buffers that a run changes, the optimizer's apart."""


class EagerStep(Capturable):
    """Plain autograd; with ``compile`` the loss is one compiled graph (``fullgraph=True``)."""

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

    def forget(self) -> None:
        """Put plain means where the draws were."""
        self.elbo.model.shell().place(
            {name: value.detach() for name, value in self.elbo.posterior.mean().items()}
        )
        self.optimizer.zero_grad(set_to_none=True)

    def held(self) -> Iterator[Tensor]:
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


class GraphStep(Step):
    """The whole step (forward, backward, optimizer) captured once per batch shape and replayed: no
    launch overhead is left.

    Needs an optimizer made with ``capturable=True``. Noise comes from the ambient CUDA generator,
    whose state the graph advances at every replay. Odd batch sizes beyond the second run eagerly.
    What a step returns is overwritten by the next.
    """

    def __init__(self, eager: Capturable) -> None:
        self.eager = eager
        self.weight, self.scale = (
            0.0,
            torch.zeros((), device=eager.device),
        )  # of the KL, as the graphs read it
        self.graphs: dict[
            tuple[Any, ...], tuple[torch.cuda.CUDAGraph, list[Tensor], tuple[Tensor, Tensor]]
        ] = {}

    def __call__(self, x: Any, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """Copy the batch into the graph's inputs and replay."""
        leaves = [leaf for leaf in pytree.tree_leaves((x, y)) if isinstance(leaf, Tensor)]
        key = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self.graphs:
            if len(self.graphs) >= 2:
                return self.eager(x, y, weight)
            self.graphs[key] = self._capture(x, y)
        graph, inputs, result = self.graphs[key]
        for held, leaf in zip(inputs, leaves, strict=True):
            held.copy_(leaf)
        if weight != self.weight:
            self.scale.fill_(weight / self.eager.num_data)
            self.weight = weight
        graph.replay()
        return result

    def _capture(
        self, x: Any, y: Tensor
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor], tuple[Tensor, Tensor]]:
        eager, optimizer = self.eager, self.eager.optimizer
        x, y = pytree.tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, (x, y))
        inputs = [leaf for leaf in pytree.tree_leaves((x, y)) if isinstance(leaf, Tensor)]
        eager.prepare(x)
        saved = [(t, t.detach().clone()) for t in eager.held()]
        states = [
            (t, t.detach().clone())
            for s in optimizer.state.values()
            for t in s.values()
            if isinstance(t, Tensor)
        ]
        rng = torch.cuda.get_rng_state(eager.device)
        eager.forget()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                eager.run(x, y, self.scale)
                eager.forget()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            result = eager.run(x, y, self.scale)
        with torch.no_grad():
            for tensor, value in saved + states:
                tensor.copy_(value)
            known = {id(tensor) for tensor, _ in states}
            for state in optimizer.state.values():
                for value in state.values():
                    if (
                        isinstance(value, Tensor) and id(value) not in known
                    ):  # made by the runs above
                        value.zero_()
        torch.cuda.set_rng_state(rng, eager.device)
        return graph, inputs, result


def make_step(
    elbo: Elbo, optimizer: torch.optim.Optimizer, num_data: int, compile: bool | str
) -> Step:
    """With ``compile`` a compiled loss, on a GPU in a CUDA graph; with "graph" that graph of the
    loss as it is.
    """
    graph = elbo.model.device.type == "cuda"
    if compile == "graph" and not graph:
        raise SettingError(
            "compile='graph' captures the step as a CUDA graph; on a CPU use True or False."
        )
    eager = EagerStep(elbo, optimizer, num_data, compile is True)
    return GraphStep(eager) if compile and graph else eager
