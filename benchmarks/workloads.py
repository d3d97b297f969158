"""The units of work that are timed: a training step and a prediction, plain and with credo."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

import credo
from credo.core.seeds import generator, isolated
from credo.curvature.log_evidence import elementwise_prior, log_evidence
from credo.data.intake import intake
from credo.data.source import Arrays, Source
from credo.engine.elbo import Elbo
from credo.engine.fit_job import FitJob, Problem
from credo.engine.method import make_method
from credo.engine.model import Fitted, Model
from credo.engine.step import adam, make_step
from credo.engine.training_loop import MakeOptimizer
from credo.estimators import estimators
from credo.methods.ensembles.parts.members import Members, member_seeds
from credo.methods.ensembles.parts.members_fit import step_maker
from credo.methods.ensembles.parts.members_step import members_optimizer
from credo.methods.laplace.parts.mode import Mode
from credo.methods.sampling.hmc import HMCMoves
from credo.methods.sampling.nuts import NUTSMoves
from credo.methods.sampling.parts.density import Density
from credo.posteriors import Start

NUM_DATA = 60_000
ESTIMATORS = ("weights", "local", "flipout")
#: The other estimators: family of the posterior and draws per step they are timed with.
STUDIED = {
    "per_example": ("mean_field", 1),
    "score": ("mean_field", 2),
    "moments": ("mean_field", 1),
    "straight_through": ("discrete", 1),
    "gumbel": ("discrete", 1),
}


def plain_step(
    net: nn.Module, x: Tensor, y: Tensor, fused: bool | None = None
) -> Callable[[], Any]:
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
    """The deterministic step captured as one CUDA graph, as credo captures its own; with
    ``compile`` fused by inductor first.
    """
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

    def replay(
        held: Any = (net, optimizer, x, y),
    ) -> None:  # the graph does not keep its tensors alive
        graph.replay()

    return replay


def vi_step(
    net: nn.Module, x: Tensor, y: Tensor, estimator: str, compile: bool = False
) -> Callable[[], Any]:
    """One step of VI, the step that ``fit`` takes; mean-field unless the estimator is for discrete
    weights.
    """
    family, draws = STUDIED.get(estimator, ("mean_field", 1))
    model = credo.BNN(net, "categorical", prior=Normal(0.0, 1.0)).model
    if family == "discrete":
        posterior = model.posterior("discrete", model.values(), Start(levels=(-1.0, 1.0)))
    else:
        posterior = model.posterior(family, model.values(), Start(0.05, "log", 1, seed=0))
    return _stepper(Elbo(model, posterior, estimators[estimator], draws), adam, x, y, compile)


def ivon_step(net: nn.Module, x: Tensor, y: Tensor, compile: bool = False) -> Callable[[], Any]:
    """One step of natural-gradient VI."""
    method = credo.methods.IVON(estimator="weights", compile=compile)
    model = credo.BNN(net, "categorical", prior=Normal(0.0, 1.0)).model
    elbo, make = _begun(method, model, x, y)
    return _stepper(elbo, make, x, y, compile)


def _begun(method: Any, model: Model, x: Tensor, y: Tensor) -> tuple[Elbo, MakeOptimizer]:
    """The objective and the optimizer with which a method's fit begins."""
    found = {}

    def stop(elbo: Elbo, fit_job: FitJob, make: MakeOptimizer, *_: Any) -> None:
        found["begun"] = elbo, make
        raise KeyboardInterrupt

    fit_job = FitJob(source=intake((x, y)), epochs=1, batch_size=None, lr=1e-3)
    with mock.patch("credo.engine.step.train", stop), contextlib.suppress(KeyboardInterrupt):
        method.for_problem(Problem.of(model, fit_job.source)).fit(model, fit_job)
    return found["begun"]


def _stepper(
    elbo: Elbo, make: MakeOptimizer, x: Tensor, y: Tensor, compile: bool
) -> Callable[[], Any]:
    lr = torch.tensor(1e-3, device=x.device) if x.is_cuda else 1e-3
    step = make_step(elbo, make(elbo, lr, NUM_DATA), NUM_DATA, compile)
    elbo.model.shell().train(True)
    return lambda: step(x, y, 1.0)


def predictor(net: nn.Module, x: Tensor, vectorise: bool | None) -> Callable[[int], Tensor]:
    """samples -> mean probabilities under a mean-field posterior around the network's weights."""
    bnn = credo.BNN(net, "categorical", prior=Normal(0.0, 1.0))
    model = bnn.model
    posterior = model.posterior(
        "mean_field", model.values(), Start(0.05, "log", 1, seed=0)
    ).requires_grad_(False)
    bnn._fitted = Fitted(posterior, model.buffers())
    return lambda samples: bnn.predict(x, samples, vectorise=vectorise).mean


def dropout_predictor(
    net: nn.Module, x: Tensor, vectorise: bool | None = None
) -> Callable[[int], Tensor]:
    """samples -> mean probabilities by MC dropout, of a network with dropout modules as it is or
    with masks on its hidden layers.
    """
    bnn = credo.BNN(net, "categorical").fit(
        (x[:64], torch.arange(64) % 10), "mc_dropout", epochs=1, device=x.device, progress=False
    )
    return lambda samples: bnn.predict(x, samples, vectorise=vectorise).mean


def dropout_loop(net: nn.Module, x: Tensor) -> Callable[[int], Tensor]:
    """samples -> the same as it is written by hand: the network in training mode, pass by pass."""
    net = net.train()

    @torch.no_grad()
    def predict(samples: int) -> Tensor:
        return torch.stack([net(x).softmax(-1) for _ in range(samples)]).mean(0)

    return predict


def dropout_batch(net: nn.Module, x: Tensor) -> Callable[[int], Tensor]:
    """samples -> the same with all passes as one batch."""
    net = net.train()

    @torch.no_grad()
    def predict(samples: int) -> Tensor:
        return (
            net(x.repeat(samples, *[1] * (x.dim() - 1)))
            .view(samples, len(x), -1)
            .softmax(-1)
            .mean(0)
        )

    return predict


def dropout_step(
    net: nn.Module, x: Tensor, y: Tensor, method: str, compile: bool = False
) -> Callable[[], Any]:
    """One step of a dropout method, prior N(0, 1)."""
    chosen: Any = credo.methods.make_method(method, {})
    model = credo.BNN(net, "categorical", prior=Normal(0.0, 1.0)).model
    model = chosen.adapt(model)
    elbo, make = _begun(chosen, model, x, y)
    model.shell().train(True)
    lr = torch.tensor(1e-3, device=x.device) if x.is_cuda else 1e-3
    step = make_step(elbo, make(elbo, lr, NUM_DATA), NUM_DATA, compile)
    return lambda: step(x, y, 1.0)


class Regression(nn.Module):
    """The network of the harness's workload W3: tanh(x w1 / sqrt(D) + b1) w2 / sqrt(H) + b2, all
    weights N(0, 1).
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        shapes = {"w1": (features, hidden), "b1": (hidden,), "w2": (hidden, 1), "b2": (1,)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))
        self.scales = features**0.5, hidden**0.5

    def forward(self, x: Tensor) -> Tensor:
        return (
            torch.tanh(x @ self.w1 / self.scales[0] + self.b1) @ self.w2 / self.scales[1] + self.b2
        )


def regression_chains(
    case: Any, method: str, chains: int, moves: int, num_warmup: int
) -> tuple[Callable[[], Any], list[float]]:
    """A function that draws ``(chains, moves, P)`` more after a warm-up, the moves that ``fit``
    makes, and its gradients per draw.
    """
    from w3_mcmc import NOISE, D, H

    net = Regression(D, H).to(case.device)
    model = credo.BNN(net, credo.likelihoods.Gaussian(std=NOISE), prior=Normal(0.0, 1.0)).model
    sampler = credo.methods.make_method(
        method, {"compile": True, "num_chains": chains, "num_warmup": num_warmup}
    )
    x, y = case.torch_data()
    fit_job = FitJob(Source(Arrays(x, y.unsqueeze(1)), len(x)), epochs=1, batch_size=None, lr=1e-2)
    kinds: dict[str, Any] = {"hmc": HMCMoves, "nuts": NUTSMoves}
    all_chains = kinds[method](sampler, Density(model, model.values()), fit_job)
    start = 0.1 * torch.randn(
        chains, case.start.shape[1], generator=torch.Generator().manual_seed(0)
    )
    start[: len(case.start)] = torch.from_numpy(case.start)[:chains]
    state = all_chains.start(start.to(case.device), generator(0, "start", device=case.device))
    index, steps = 0, []

    def move() -> Tensor:
        nonlocal state, index
        state, info = all_chains.move(state, index, generator(0, "move", index, device=case.device))
        steps.append(float(info.steps.double().mean()))
        index += 1
        return all_chains.drawn(state)

    for _ in range(num_warmup):
        move()
    steps.clear()
    return lambda: torch.stack([move() for _ in range(moves)], 1).cpu().numpy(), steps


def ensemble_epoch(
    nets: Sequence[nn.Module], x: Tensor, y: Tensor, batch_size: int, compile: bool = False
) -> Callable[[], None]:
    """One epoch of a deep ensemble that starts at ``nets``, all members at once, each in its own
    order of the data.
    """
    model = credo.BNN(nets[0], "categorical", prior=Normal(0.0, 1.0)).model
    starts = [{name: p.detach().clone() for name, p in net.named_parameters()} for net in nets]
    members = Members(model, starts, member_seeds(0, len(nets)))
    fit_job = FitJob(Source(Arrays(x, y), len(y)), epochs=1, batch_size=batch_size, lr=1e-3)
    lr = torch.tensor(1e-3, device=x.device) if x.is_cuda else 1e-3
    optimizer = members_optimizer("adam", 0.9)(members, lr, len(y))
    step = step_maker()(members, optimizer, len(y), compile)
    source, epochs = model.on_device(fit_job.source), itertools.count()
    shell = model.shell()
    shell.train(True)

    def epoch() -> None:
        with isolated(0, x.device):
            for xs, ys in members.batches(source, fit_job, next(epochs)):
                step(xs, ys, 1.0)

    return epoch


def laplace_fit(net: nn.Module, x: Tensor, y: Tensor, **settings: Any) -> Callable[[], credo.BNN]:
    """The curvature of a trained network on all data, prior N(0, 1) as it is."""

    def fit() -> credo.BNN:
        return credo.BNN(net).fit(
            (x, y), "laplace", train=False, tune="none", device=x.device, progress=False, **settings
        )

    return fit


def laplace_predictor(bnn: credo.BNN, x: Tensor) -> Callable[[], Tensor]:
    """Probabilities of the linearised network by the probit approximation."""
    return lambda: bnn.predict(x, shortcut="probit").mean


def evidence_step(
    net: nn.Module, x: Tensor, y: Tensor, per: str, **settings: Any
) -> Callable[[], Any]:
    """A step of Adam on the log evidence by the prior's precision, one for every tensor or for
    all.
    """
    method = make_method("laplace", settings)
    bnn = credo.BNN(net)
    model = method.adapt(bnn.model)
    values = model.values()
    fit_job = FitJob(source=intake((x, y)), epochs=1, batch_size=None, lr=1.0)
    mode = Mode(model, values, model.buffers(), fit_job)
    measured = method.measure(mode)  # type: ignore[attr-defined]
    prior, names = elementwise_prior(model, values), list(model.random)
    scales = torch.zeros(
        len(names) if per == "tensor" else 1,
        dtype=torch.float64,
        device=x.device,
        requires_grad=True,
    )
    mover = torch.optim.Adam([scales], lr=0.1)

    def step() -> None:
        mover.zero_grad()
        by_name = {
            name: scales[place if per == "tensor" else 0] for place, name in enumerate(names)
        }
        (-log_evidence(measured.blocks, measured.nll, prior, by_name)).backward()
        mover.step()

    return step
