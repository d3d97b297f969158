import pytest
import torch
from torch.distributions import Laplace, Normal
from zoo.models import make_model
from zoo.networks import make

from credo import BNN
from credo.likelihoods import Gaussian
from credo.methods.ensembles.parts.member_gradients import MemberGradients
from credo.methods.ensembles.parts.members import Members, member_seeds
from credo.methods.ensembles.parts.members_step import MembersStep, members_optimizer

DOUBLE = torch.float64
N = 30


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def start(net=None, prior=None, likelihood=None, members=2):
    net = net or make("mlp")[0]
    model = make_model(
        net, prior=prior or Normal(0.0, 0.5), likelihood=likelihood or Gaussian(std=0.5)
    )
    return Members(model, [model.random_values(seed) for seed in range(members)], range(members))


def stepped(members, kind, momentum, lr, steps=None):
    optimizer = members_optimizer(kind, momentum)(members, lr, N)
    return MembersStep(MemberGradients(members), optimizer, N, steps)


def batches(members=2, size=4):
    return draw(members, size, 5), draw(members, size, 2, seed=1)


def functional_nll(model, values, x, y):
    mean = torch.func.functional_call(model.net, values, (x,))
    return -Normal(mean, 0.5).log_prob(y).sum()


def one_step(steps=None, prior=None, lr=1.0):
    """Where plain gradient descent of length ``lr`` takes each member, against the gradient by
    hand.
    """
    group = start(prior=prior)
    x, y = batches()
    starts = {n: v.detach().clone() for n, v in group.values().items()}
    step = stepped(group, "sgd", 0.0, lr, steps)
    nll, kl = step(x, y, 1.0)
    return group, starts, x, y, nll, kl


def hand(group, starts, k, x, y, neighbours=None):
    """sum(nll) / B - log p(w) / N of one member, and its gradient; with ``neighbours`` half of the
    data term is theirs.
    """
    values = {n: v[k].clone().requires_grad_() for n, v in starts.items()}
    data = functional_nll(group.model, values, x, y) / len(y)
    if neighbours is not None:
        data = 0.5 * data + 0.5 * functional_nll(group.model, values, neighbours, y) / len(y)
    prior = sum(
        group.model.prior.at(group.model.sites[n]).log_prob(v).sum() for n, v in values.items()
    )
    loss = data - prior / N
    return dict(zip(values, torch.autograd.grad(loss, list(values.values())), strict=True))


@pytest.mark.parametrize("prior", [Normal(0.0, 0.5), Normal(0.25, 0.5), Laplace(0.0, 0.5)])
def test_a_step_is_along_the_gradient_of_each_members_own_objective(prior):
    group, starts, x, y, nll, kl = one_step(prior=prior)
    for k in range(2):
        wanted = hand(group, starts, k, x[k], y[k])
        assert all(
            torch.allclose(starts[n][k] - v[k], wanted[n]) for n, v in group.values().items()
        )
    each = [
        functional_nll(group.model, {n: v[k] for n, v in starts.items()}, x[k], y[k])
        for k in range(2)
    ]
    assert (
        torch.allclose(nll, torch.stack(each).mean()) and float(kl) == 0 and not nll.requires_grad
    )


def test_adversarial_neighbours_are_where_the_loss_climbs():
    """x' = x + step sign(d nll / dx) with the member's own slope, and the two losses count half
    each.
    """
    steps = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.4], dtype=DOUBLE)
    group, starts, x, y, nll, _ = one_step(steps=steps)
    for k in range(2):
        values, here = {n: v[k] for n, v in starts.items()}, x[k].clone().requires_grad_()
        (slope,) = torch.autograd.grad(functional_nll(group.model, values, here, y[k]), here)
        neighbours = x[k] + steps * slope.sign()
        wanted = hand(group, starts, k, x[k], y[k], neighbours)
        assert all(
            torch.allclose(starts[n][k] - v[k], wanted[n]) for n, v in group.values().items()
        )
        assert functional_nll(group.model, values, neighbours, y[k]) > functional_nll(
            group.model, values, x[k], y[k]
        )
    each = [
        functional_nll(group.model, {n: v[k] for n, v in starts.items()}, x[k], y[k])
        for k in range(2)
    ]
    assert torch.allclose(nll, torch.stack(each).mean()), (
        "the history tells the loss at the data themselves"
    )


@pytest.mark.parametrize("looped", [False, True])
def test_neighbours_are_the_same_member_by_member(looped):
    found = []
    for turn in (False, looped):
        group = start()
        x, y = batches()
        step = stepped(group, "adam", 0.0, 0.1, torch.full((5,), 0.1, dtype=DOUBLE))
        step.gradients.vectorised.looped = turn
        step(x, y, 1.0)
        found.append([p.detach().clone() for p in group.parameters()])
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_by_hand(momentum):
    """v <- m v + g, w <- w - lr v over two epochs, each member in its own order."""
    x, y = draw(12, 5), draw(12, 2, seed=1)
    net, _ = make("mlp")
    how = {"epochs": 2, "batch_size": 5, "lr": 0.1, "progress": False, "lr_schedule": "cosine"}
    fitted = BNN(net, Gaussian(std=0.5), Normal(0.0, 0.5)).fit(
        (x, y), "deep_ensemble", members=2, optimizer="sgd", momentum=momentum, seed=3, **how
    )
    from credo.core.seeds import generator

    model = make_model(net, prior=Normal(0.0, 0.5), likelihood=Gaussian(std=0.5))
    for k, seed in enumerate(member_seeds(3, 2)):
        w = model.random_values(seed)
        v = {n: torch.zeros_like(t) for n, t in w.items()}
        for epoch in range(2):
            lr = 0.1 * (1.0, 0.5)[epoch]  # half a cosine over two epochs
            for rows in torch.randperm(12, generator=generator(seed, "order", epoch)).split(5):
                leaves = {n: t.clone().requires_grad_() for n, t in w.items()}
                prior = sum(Normal(0.0, 0.5).log_prob(t).sum() for t in leaves.values())
                loss = functional_nll(model, leaves, x[rows], y[rows]) / len(rows) - prior / 12
                for (n, t), g in zip(
                    w.items(), torch.autograd.grad(loss, list(leaves.values())), strict=True
                ):
                    v[n] = momentum * v[n] + g
                    w[n] = t - lr * v[n]
        found = fitted.posterior.realise([k], 0)
        assert all(torch.allclose(found[n][0], t, rtol=0, atol=1e-10) for n, t in w.items())


def test_what_a_capture_saves_is_what_a_step_changes():
    net, _ = make("batchnorm")
    group = start(net)
    step = stepped(group, "adam", 0.9, 0.1)
    x, y = batches()
    group.model.shell().train(True)
    changed = {id(t) for t in step.changed_tensors()}
    everything = [*group.parameters(), *group.buffers()]
    before = [t.detach().clone() for t in everything]
    step(x, y, 1.0)
    moved = [t for t, old in zip(everything, before, strict=True) if not torch.equal(t, old)]
    assert moved and all(id(t) in changed for t in moved)
    step.release()
    assert all(p.grad is None for p in group.parameters())
