import pytest
import torch
from torch import nn
from torch.distributions import Laplace, Normal
from torch.utils.data import DataLoader, TensorDataset
from zoo.models import make_model
from zoo.networks import make

from credo import BNN
from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.data import intake
from credo.likelihoods import Gaussian
from credo.methods.ensembles.parts.members import Flock
from credo.methods.ensembles.parts.members_step import FlockStep, moving, reaches

DOUBLE = torch.float64
N = 30


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def flock(net=None, prior=None, likelihood=None, members=2):
    net = net or make("mlp")[0]
    model = make_model(
        net, prior=prior or Normal(0.0, 0.5), likelihood=likelihood or Gaussian(std=0.5)
    )
    return Flock(model, [model.random_values(seed) for seed in range(members)], range(members))


def batches(members=2, size=4):
    return draw(members, size, 5), draw(members, size, 2, seed=1)


def functional_nll(model, values, x, y):
    mean = torch.func.functional_call(model.net, values, (x,))
    return -Normal(mean, 0.5).log_prob(y).sum()


def one_step(reach=None, prior=None, lr=1.0):
    """Where plain gradient descent of length ``lr`` takes each member, against the gradient by
    hand.
    """
    group = flock(prior=prior)
    x, y = batches()
    starts = {n: v.detach().clone() for n, v in group.values().items()}
    step = FlockStep(group, moving("sgd", 0.0)(group, lr, N), N, reach)
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
    """x' = x + reach sign(d nll / dx) with the member's own slope, and the two losses count half
    each.
    """
    reach = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.4], dtype=DOUBLE)
    group, starts, x, y, nll, _ = one_step(reach=reach)
    for k in range(2):
        values, here = {n: v[k] for n, v in starts.items()}, x[k].clone().requires_grad_()
        (slope,) = torch.autograd.grad(functional_nll(group.model, values, here, y[k]), here)
        neighbours = x[k] + reach * slope.sign()
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
        group = flock()
        group.looped = turn
        x, y = batches()
        step = FlockStep(
            group, moving("adam", 0.0)(group, 0.1, N), N, torch.full((5,), 0.1, dtype=DOUBLE)
        )
        step(x, y, 1.0)
        found.append([p.detach().clone() for p in group.parameters()])
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(*found, strict=True))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Embedding(5, 2)

    def forward(self, left, words, mask):
        return self.a(left) + self.b(words) * mask.unsqueeze(-1)


def mixed():
    with isolated(0):
        net = Mixed().double()
    x = {"left": draw(12, 3), "words": torch.arange(12) % 5, "mask": torch.arange(12) % 2 == 0}
    return net, (x, draw(12, 2, seed=1))


def test_only_real_inputs_have_neighbours():
    net, (x, y) = mixed()
    far = reaches(intake((x, y)), 0.1)
    assert torch.allclose(far["left"], 0.1 * (x["left"].amax(0) - x["left"].amin(0)))
    fits = [
        BNN(net, Gaussian(std=1.0)).fit(
            (x, y),
            "deep_ensemble",
            members=2,
            adversarial=share,
            optimizer="sgd",
            epochs=5,
            lr=0.1,
            progress=False,
        )
        for share in (0.0, 0.2)
    ]
    weights = [each.posterior.realise([0], 0)["a.weight"] for each in fits]
    assert not torch.allclose(*weights) and torch.isfinite(weights[1]).all()


def test_whole_inputs_are_refused_by_name():
    net, _ = make("embedding")
    x = torch.arange(12).reshape(12, 1).expand(12, 6) % 7
    with pytest.raises(
        SettingError, match=r"adversarial=0\.1: neighbours of inputs need real numbers"
    ):
        BNN(net, Gaussian(std=1.0)).fit(
            (x, draw(12, 2)), "deep_ensemble", members=2, adversarial=0.1, progress=False
        )


def test_the_range_of_every_feature_is_that_of_the_data():
    x = torch.cat(
        [draw(9000, 2), 100 * draw(9000, 1, seed=1)], 1
    )  # more than are looked at in one go
    wanted = 0.01 * (x.amax(0) - x.amin(0))
    assert torch.allclose(reaches(intake((x, x[:, :1])), 0.01), wanted)
    loader = DataLoader(TensorDataset(x, x[:, :1]), batch_size=1000)
    assert torch.allclose(reaches(intake(loader), 0.01), wanted)
    pair = reaches(intake(((x, x[:, 0]), x[:, :1])), 0.5)
    assert pair[0].shape == (3,) and pair[1].shape == ()


def test_neighbours_make_predictions_smoother():
    """The slope of a fitted curve at its data, with neighbours a tenth of the range away and
    without.
    """
    x = torch.linspace(-1, 1, 12, dtype=DOUBLE).unsqueeze(1)
    y = torch.sin(6 * x) + 0.3 * draw(12, 1)
    slopes = []
    for share in (0.0, 0.2):
        with isolated(0):
            net = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1)).double()
        how = {"epochs": 300, "lr": 0.02, "batch_size": 12, "progress": False}
        fitted = BNN(net, Gaussian(std=0.1)).fit(
            (x, y), "deep_ensemble", members=3, adversarial=share, **how
        )
        grid = torch.linspace(-1, 1, 200, dtype=DOUBLE).unsqueeze(1)
        slopes.append(float(fitted.predict(grid).mean.diff(dim=0).abs().sum()))
    assert slopes[1] < 0.9 * slopes[0]


def test_normal_priors_around_zero_are_weight_decay_and_others_are_not():
    group = flock(
        prior={"0.*": Normal(0.0, 0.5), "2.weight": Normal(0.1, 0.5), "2.bias": Laplace(0.0, 1.0)},
        likelihood=Gaussian(),
    )
    assert group.decays() == {"0.weight": 4.0, "0.bias": 4.0}
    assert [names for names, _ in group.taxes()] == [("2.weight", "2.bias")]
    table = moving("adam", 0.9)(group, 0.1, N).param_groups
    assert (
        sorted(g["weight_decay"] for g in table) == [0.0, 4.0 / N]
        and sum(len(g["params"]) for g in table) == 5
    )
    assert isinstance(moving("sgd", 0.9)(group, 0.1, N), torch.optim.SGD)


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
    from credo.methods.ensembles.parts.members import member_seeds

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
    group = flock(net)
    step = FlockStep(group, moving("adam", 0.9)(group, 0.1, N), N)
    x, y = batches()
    group.model.shell().train(True)
    held = {id(t): t.detach().clone() for t in step.held()}
    everything = [*group.parameters(), *group.buffers()]
    before = [t.detach().clone() for t in everything]
    step(x, y, 1.0)
    moved = [t for t, old in zip(everything, before, strict=True) if not torch.equal(t, old)]
    assert moved and all(id(t) in held for t in moved)
    step.forget()
    assert all(p.grad is None for p in group.parameters())
