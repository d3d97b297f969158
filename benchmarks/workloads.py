"""The units of work that are timed: a training step and a prediction, plain and with credo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

import credo
from credo.engine.build import start_posterior
from credo.engine.elbo import Elbo
from credo.engine.job import Fitted
from credo.engine.step import make_step
from credo.estimators import estimators

NUM_DATA = 60_000
ESTIMATORS = ("weights", "local", "flipout")


def plain_step(net: nn.Module, x: Tensor, y: Tensor, fused: bool | None = None) -> Callable[[], Any]:
    """One step of the deterministic network with torch's Adam."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=fused, capturable=x.is_cuda)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def plain_graph(net: nn.Module, x: Tensor, y: Tensor, compile: bool = False) -> Callable[[], Any]:
    """The deterministic step captured as one CUDA graph, as credo captures its own; with ``compile`` fused by inductor first."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=True)

    def loss() -> Tensor:
        return F.cross_entropy(net(x), y)

    forward = torch.compile(loss, fullgraph=True, dynamic=False) if compile else loss

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        forward().backward()
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()

    def replay(held: Any = (net, optimizer, x, y)) -> None:  # the graph does not keep its tensors alive
        graph.replay()

    return replay


def vi_step(net: nn.Module, x: Tensor, y: Tensor, estimator: str, compile: bool = False) -> Callable[[], Any]:
    """One step of mean-field VI: the step that ``fit`` takes."""
    model = credo.BNN(net, "categorical", prior=Normal(0.0, 1.0)).model
    posterior = start_posterior(model, "mean_field", model.values(), 0.05, 1, "log", 0)
    elbo = Elbo(model, posterior, estimators[estimator])
    optimizer = torch.optim.Adam(elbo.parameters(), lr=1e-3, fused=True, capturable=x.is_cuda)
    step = make_step(elbo, optimizer, NUM_DATA, compile)
    model.shell().train(True)
    return lambda: step(x, y, 1.0)


def predictor(net: nn.Module, x: Tensor, vectorise: bool | None) -> Callable[[int], Tensor]:
    """samples -> mean probabilities under a mean-field posterior around the network's weights."""
    bnn = credo.BNN(net, "categorical", prior=Normal(0.0, 1.0))
    model = bnn.model
    posterior = start_posterior(model, "mean_field", model.values(), 0.05, 1, "log", 0).requires_grad_(False)
    bnn._fitted = Fitted(posterior, model.buffers())
    return lambda samples: bnn.predict(x, samples, vectorise=vectorise).mean
