"""credo as a contestant of the peers' harness: run it there with ``--plugin credo_contestants`` and this folder on PYTHONPATH.

W1: a training step under each estimator. W2: mean probabilities of 1,000 inputs from 100 posterior draws. On a GPU the steps are
also entered as one CUDA graph, next to the plain network captured the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import w2_predict
from core import Job, contestant
from nets import N_TRAIN, Net

ESTIMATORS = ("weights", "local", "flipout")


def make_step(case: Net, estimator: str, compile: bool = False) -> Callable[[], Any]:
    """One call = one step of mean-field VI, the step that ``fit`` takes."""
    import credo
    from credo.engine.build import start_posterior
    from credo.engine.elbo import Elbo
    from credo.engine.step import make_step
    from credo.estimators import estimators
    from torch.distributions import Normal

    model = credo.BNN(case.build(), "categorical", prior=Normal(0.0, 1.0)).model
    posterior = start_posterior(model, "mean_field", model.values(), 0.05, 1, "log", 0)
    elbo = Elbo(model, posterior, estimators[estimator])
    cuda = case.x.is_cuda
    optimizer = torch.optim.Adam(elbo.parameters(), lr=1e-3, fused=True, capturable=cuda)
    step = make_step(elbo, optimizer, N_TRAIN, compile)
    model.shell().train(True)
    return lambda: step(case.x, case.y, 1.0)


for _estimator in ESTIMATORS:
    contestant("W1", f"credo {_estimator}")(lambda case, estimator=_estimator: make_step(case, estimator))


def plain_graph(case: Net) -> Callable[[], Any]:
    """The deterministic step captured as one CUDA graph."""
    net = case.build()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(case.x), case.y)
        loss.backward()
        optimizer.step()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def register_graphs() -> None:
    """Only where there is a GPU to capture on."""
    contestant("W1", "deterministic PyTorch, CUDA graph")(plain_graph)
    for estimator in ESTIMATORS:
        contestant("W1", f"credo {estimator}, CUDA graph")(lambda case, e=estimator: make_step(case, e, compile=True))


if torch.cuda.is_available():
    register_graphs()


def _predictor(case: Any, vectorise: bool | None) -> Callable[[int], torch.Tensor]:
    import credo
    from credo.engine.build import start_posterior
    from credo.engine.job import Fitted
    from torch.distributions import Normal

    bnn = credo.BNN(case.build(), "categorical", prior=Normal(0.0, 1.0))
    model = bnn.model
    posterior = start_posterior(model, "mean_field", model.values(), 0.05, 1, "log", 0).requires_grad_(False)
    bnn._fitted = Fitted(posterior, model.buffers())
    return lambda samples: bnn.predict(case.x, samples, vectorise=vectorise).mean


@contestant("W2", "credo, loop")
def predict_loop(case: Any) -> Job:
    """Draw by draw."""
    return w2_predict.sliced(case, _predictor(case, False))


@contestant("W2", "credo, vmap")
def predict_vmap(case: Any) -> Job:
    """All draws at once."""
    return w2_predict.whole(case, _predictor(case, True))
