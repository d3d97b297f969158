import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.graphs import play
from zoo.models import make_model, make_posterior
from zoo.networks import make

from credo.core.errors import SettingError
from credo.core.seeds import isolated, take_state
from credo.engine.elbo import Elbo
from credo.engine.step import CapturedStep, EagerStep, make_step, wants_graph
from credo.estimators import estimators
from credo.likelihoods import Gaussian
from credo.methods.ensembles.parts.member_gradients import MemberGradients
from credo.methods.ensembles.parts.members import Members
from credo.methods.ensembles.parts.members_step import MembersStep, members_optimizer

Y = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def make_elbo(net, kind="mean_field", estimator="local", **how):
    model = make_model(net, likelihood=Gaussian(std=0.5), prior=Normal(0.0, 1.0))
    return Elbo(model, make_posterior(kind, model), estimators[estimator], **how)


def adam(elbo):
    return torch.optim.Adam(elbo.posterior.parameters(), lr=0.01)


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_the_gradient_is_that_of_the_scaled_objective(weight):
    """nll / B + weight KL / N is the objective over N: the data term scaled by N / B."""
    net, x = make("mlp")
    elbo, reference = make_elbo(net), make_elbo(net)
    step = EagerStep(elbo, torch.optim.SGD(elbo.posterior.parameters(), lr=1.0), num_data=30)
    before = [p.detach().clone() for p in elbo.posterior.parameters()]
    with isolated(1):
        nll, kl = step(x, Y, weight)
    with isolated(1):
        nll2, kl2 = reference(x, Y)
    ((30 / 3 * nll2 + weight * kl2) / 30).backward()
    for old, new, p in zip(
        before, elbo.posterior.parameters(), reference.posterior.parameters(), strict=True
    ):
        assert torch.allclose(old - new, p.grad)
    assert torch.allclose(nll, nll2) and torch.allclose(kl, kl2) and not nll.requires_grad


class Moody(nn.Module):
    """A linear layer most of the time, a plain product for inputs with a positive sum."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x):
        if x.sum() > 0:
            return self.head(x @ self.layer.weight.T + self.layer.bias)
        return self.head(self.layer(x))


def test_a_branch_with_another_use_is_planned_anew_with_the_random_state_restored():
    net = Moody().double()
    x = torch.ones(3, 5).double()
    elbo, reference = make_elbo(net), make_elbo(net)
    step = EagerStep(elbo, adam(elbo), 30)
    with isolated(0):
        step(-x, Y, 1.0)
    shell = elbo.model.shell()
    assert set(elbo.plan(shell, x).example_axis) == {"layer.weight", "head.weight"}
    with isolated(2):
        first = step(x, Y, 1.0)
    assert set(elbo.plan(shell, x).example_axis) == {"head.weight"} and elbo.plan(
        shell, x
    ).bias == {"head.bias"}
    # a reference planned on such inputs from the start sees the same noise
    once = EagerStep(reference, adam(reference), 30)
    reference.plan(reference.model.shell(), x)
    with isolated(0):
        reference.posterior.load_state_dict(start_state(net, x))
    with isolated(2):
        again = once(x, Y, 1.0)
    assert torch.allclose(first[0], again[0]) and torch.allclose(first[1], again[1])


def start_state(net, x):
    """The posterior after the first step of the test above."""
    elbo = make_elbo(net)
    with isolated(0):
        EagerStep(elbo, adam(elbo), 30)(-x, Y, 1.0)
    return elbo.posterior.state_dict()


def test_a_graph_is_wanted_on_a_gpu_alone():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert not wants_graph(cpu, True) and not wants_graph(cpu, False)
    assert wants_graph(gpu, True) and wants_graph(gpu, "graph") and not wants_graph(gpu, False)
    with pytest.raises(SettingError, match="compile='graph' captures the step as a CUDA graph"):
        wants_graph(cpu, "graph")


def test_make_step_takes_a_graph_only_on_a_gpu():
    net, _ = make("mlp")
    elbo = make_elbo(net)
    assert isinstance(make_step(elbo, adam(elbo), 3, True), EagerStep) and not isinstance(
        make_step(elbo, adam(elbo), 3, False), CapturedStep
    )


@pytest.mark.parametrize(
    ("name", "estimator", "kind"),
    [
        ("mlp", "weights", "mean_field"),
        ("mlp", "local", "low_rank"),
        ("mlp", "local", "kron"),
        ("mlp", "weights", "full"),
        ("batchnorm", "local", "mean_field"),
        ("mlp", "weights", "delta"),
    ],
)
def test_the_compiled_step_is_one_graph_and_the_same_numbers(name, estimator, kind):
    net, x = make(name)
    results = []
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for compile in (False, True):
        elbo = make_elbo(net, kind, estimator)
        # the first lookup of a KL cannot be traced: the step must have made it before
        torch.distributions.kl._KL_MEMOIZE.clear()
        if compile:
            # the default backend needs a C++ compiler; tracing with fullgraph=True is what is
            # tested here
            step = EagerStep(elbo, adam(elbo), 30, compile=False)
            step.compiled, step.forward = (
                True,
                torch.compile(elbo.forward, fullgraph=True, dynamic=False, backend="aot_eager"),
            )
        else:
            step = EagerStep(elbo, adam(elbo), 30)
        with isolated(4):
            results.append([step(x, Y, 1.0) for _ in range(5)])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for (nll, kl), (nll2, kl2) in zip(*results, strict=True):
        assert torch.allclose(nll, nll2, rtol=1e-9) and torch.allclose(kl, kl2, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_compiled_step_with_the_default_backend():
    net, x = make("mlp", dtype=torch.float32)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    elbo = make_elbo(net)
    step = make_step(elbo, adam(elbo), 30, compile=True)
    with isolated(4):
        rows = [step(x, Y.float(), 1.0) for _ in range(5)]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert all(torch.isfinite(nll + kl) for nll, kl in rows)


@pytest.fixture(params=["cpu", "cuda"])
def device(request, monkeypatch):
    """A GPU where there is one, and a CPU that plays at being one."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if request.param == "cpu":
        play(monkeypatch)
    return torch.device(request.param)


def on(device, net, prior, likelihood):
    model = make_model(net.to(device), likelihood=likelihood, prior=prior)
    model.device, model.likelihood = device, model.likelihood.to(device)
    return model


def test_the_captured_graph_trains_like_the_eager_step(device):
    net, x = make("mlp", dtype=torch.float32)
    x, y = x.to(device), Y.float().to(device)
    results = []
    for graph in (False, True):
        model = on(device, net, Normal(0.0, 1.0), Gaussian(std=0.5))
        elbo = Elbo(model, make_posterior("delta", model), estimators["weights"])
        adam = torch.optim.Adam(
            elbo.posterior.parameters(), lr=0.01, fused=True, capturable=device.type == "cuda"
        )
        eager = EagerStep(elbo, adam, 30)
        step = CapturedStep(eager) if graph else eager
        results.append(
            [float(step(x, y, weight)[0]) for weight in (1.0, 1.0, 0.5, 0.0, 1.0)]
        )  # at once: a graph overwrites what it returned
    assert results[0] == pytest.approx(results[1], rel=1e-4)


@pytest.mark.parametrize("name", ["mlp", "batchnorm"])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("adversarial", [None, 0.1])
def test_captured_members_train_like_eager_ones(name, kind, adversarial, device):
    """Three shapes of batches: two are captured, the third runs eagerly between them."""
    net, _ = make(name, dtype=torch.float32)
    lr = torch.tensor(0.01, device=device) if device.type == "cuda" else 0.01
    results = []
    for graph in (False, True):
        model = on(device, net, Normal(0.25, 1.0), Gaussian())
        members = Members(model, [model.random_values(seed) for seed in (0, 1)], (0, 1))
        model.shell().train(True)
        optimizer = members_optimizer(kind, 0.9)(members, lr, 30)
        eager = MembersStep(MemberGradients(members), optimizer, 30, adversarial)
        step, rows = CapturedStep(eager) if graph else eager, []
        for index, size in enumerate((8, 8, 5, 3, 8, 3, 5)):
            made = torch.Generator().manual_seed(index)
            x, y = (torch.randn(2, size, width, generator=made).to(device) for width in (5, 2))
            rows.append(float(step(x, y, 1.0)[0]))
        results.append((rows, [t.detach().clone() for t in eager.changed_tensors()]))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4)
    assert all(
        torch.allclose(a, b, atol=1e-4) for a, b in zip(results[0][1], results[1][1], strict=True)
    )


def test_a_capture_changes_neither_what_is_learned_nor_the_random_state(device):
    net, _ = make("batchnorm", dtype=torch.float32)
    model = on(device, net, Normal(0.25, 1.0), Gaussian())
    members = Members(model, [model.random_values(seed) for seed in (0, 1)], (0, 1))
    model.shell().train(True)
    lr = torch.tensor(0.01, device=device) if device.type == "cuda" else 0.01
    optimizer = members_optimizer("adam", 0.9)(members, lr, 30)
    step = CapturedStep(MembersStep(MemberGradients(members), optimizer, 30))
    before, random = [t.detach().clone() for t in members.state_dict().values()], take_state(device)
    step._capture(torch.ones(2, 4, 5, device=device), torch.ones(2, 4, 2, device=device))
    after = members.state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(not t.any() for state in optimizer.state.values() for t in state.values())
    assert all(
        torch.equal(a, b) for a, b in zip(random, take_state(device), strict=True) if a is not None
    )


def test_an_eager_step_can_be_prepared_run_and_forgotten():
    """What a capture calls gives the step itself, with the KL's weight as a tensor."""
    net, x = make("mlp")
    one, two = make_elbo(net), make_elbo(net)
    called, run = EagerStep(one, adam(one), 30), EagerStep(two, adam(two), 30)
    assert run.device == torch.device("cpu")
    run.prepare(x)
    with isolated(3):
        wanted = called(x, Y, 0.5)
    with isolated(3):
        found = run.run(x, Y, torch.tensor(0.5 / 30))
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    changed = list(run.changed_tensors())
    assert {id(p) for p in two.posterior.parameters()} <= {id(t) for t in changed}
    assert all(torch.allclose(a, b) for a, b in zip(called.changed_tensors(), changed, strict=True))
    run.release()
    assert all(p.grad is None for p in two.parameters()) and all(
        p.grad_fn is None for p in two.model.shell().module.parameters()
    )


def test_what_the_compiler_cannot_trace_is_said_in_one_sentence():
    net, x = make("mlp")
    elbo = make_elbo(net, estimator="moments")
    with pytest.raises(
        SettingError,
        match="compile=True: the compiler cannot trace this network with estimator='moments'",
    ):
        EagerStep(elbo, adam(elbo), 3, compile=True)(x, Y, 1.0)
