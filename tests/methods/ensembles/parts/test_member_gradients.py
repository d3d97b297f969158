import warnings

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.checkpoint import checkpoint
from zoo.members import fit, inputs, pieces, same_as_alone, targets
from zoo.models import make_model
from zoo.networks import make

from credo.core.seeds import isolated
from credo.likelihoods import Gaussian
from credo.methods.ensembles.parts.member_gradients import MemberGradients, vmap_pays
from credo.methods.ensembles.parts.members import Members


def test_convolutions_take_turns_unless_asked_otherwise():
    assert not vmap_pays(nn.Conv1d(1, 1, 1)) and vmap_pays(make("mlp")[0])
    model = make_model(make("conv")[0], likelihood=Gaussian(std=1.0))
    members = Members(model, [model.values()] * 2, (0, 1))
    assert [MemberGradients(members, v).vectorised.looped for v in (None, True, False)] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("name", ["checkpointed", "lstm"])
def test_a_pass_that_fails_half_way_leaves_no_gradients_behind(name):
    """Under vmap a checkpointed layer fails while it is recomputed, when later layers have their
    gradients already.
    """
    net, _ = make(name)
    model = make_model(net, likelihood=Gaussian(std=1.0))
    starts = [model.random_values(seed) for seed in (0, 1)]
    x, y = torch.stack([inputs(name)] * 2), torch.stack([targets()] * 2)
    trial, told = (MemberGradients(Members(model, starts, (0, 1))) for _ in range(2))
    told.vectorised.looped = True
    with pytest.warns(UserWarning, match="member by member"):
        trial.add(x, y, 0.5)
    told.add(x, y, 0.5)
    for p, q in zip(trial.members.parameters(), told.members.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_gradients_add_up_even_where_the_first_pass_fails():
    net, _ = make("checkpointed")
    model = make_model(net, likelihood=Gaussian(std=1.0))
    members = Members(model, [model.random_values(seed) for seed in (0, 1)], (0, 1))
    gradients = MemberGradients(members)
    x, y = torch.stack([inputs("checkpointed")] * 2), torch.stack([targets()] * 2)
    for parameter in members.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.warns(UserWarning, match="member by member"):
        gradients.add(x, y, 0.5)
    first = [p.grad.clone() for p in members.parameters()]
    gradients.add(x, y, 0.5)
    assert all(
        torch.allclose(p.grad - a, a - 1) for p, a in zip(members.parameters(), first, strict=True)
    )


def test_a_checkpoint_around_nothing_learned():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.b(checkpoint(lambda h: torch.tanh(h) * h, self.a(x), use_reentrant=False))

    with isolated(0):
        net = Bare().double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same_as_alone(net, (inputs("mlp"), targets()))


def test_a_layer_left_out_of_some_passes_still_feels_its_prior_and_momentum():
    class Alternating(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.calls = nn.Linear(5, 2), nn.Linear(5, 2), 0

        def forward(self, x):
            self.calls += self.training
            return self.a(x) + self.b(x) if self.calls % 2 else self.a(x)

    with isolated(0):
        net = Alternating().double()
    same_as_alone(net, (inputs("mlp"), targets()), prior=Normal(0.0, 0.25))


class Remembering(nn.Module):
    """Keeps an average of what it has seen, replaced by assignment, and counts in place."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.register_buffer("level", torch.zeros(5))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.level = 0.5 * self.level + 0.5 * x.mean(0)
            self.count += 1
        return self.layer(x - self.level)


def test_buffers_replaced_by_assignment():
    with isolated(0):
        net = Remembering().double()
    whole, _ = same_as_alone(net, (inputs("mlp"), targets()))
    levels = [pieces(whole, k)["level"] for k in range(3)]
    assert not torch.allclose(levels[0], levels[1]) and int(whole.buffers["count"]) == 9
    assert float(net.level.abs().max()) == 0 and int(net.count) == 0, (
        "the user's network is as it was"
    )


def dropping():
    with isolated(0):
        return nn.Sequential(
            nn.Linear(5, 32), nn.Dropout(0.5), nn.Tanh(), nn.Linear(32, 2)
        ).double()


def test_members_have_dropout_noise_of_their_own_and_seeds_decide():
    state = torch.get_rng_state()
    net, x, y = dropping(), torch.stack([inputs("mlp")] * 2), torch.stack([targets()] * 2)
    model = make_model(net, likelihood=Gaussian(std=1.0))
    start = model.values()
    gradients = MemberGradients(Members(model, [start, start], (0, 0)))
    model.shell().train(True)
    with isolated(0):
        nll, _ = gradients.add(x, y, 1.0)
    assert not gradients.vectorised.looped and nll[0] != nll[1], (
        "equal members on equal data differ only by their noise"
    )
    fits = [fit(net, (x[0], y[0]), "deep_ensemble", members=2, seed=seed) for seed in (0, 0, 1)]
    a, b, c = ([pieces(each, k)["0.weight"] for k in range(2)] for each in fits)
    assert all(torch.equal(one, two) for one, two in zip(a, b, strict=True)) and not torch.allclose(
        a[0], c[0]
    )
    assert torch.equal(state, torch.get_rng_state())


def test_an_ensemble_of_one_with_dropout_sees_the_noise_that_map_sees():
    same_as_alone(dropping(), (inputs("mlp"), targets()), members=1)


def test_a_fallback_repeats_the_random_numbers_of_the_pass_that_failed():
    """An LSTM after dropout: members in turn after a failed pass against members in turn from the
    start.
    """

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.rnn, self.head = (
                nn.Dropout(0.5),
                nn.LSTM(5, 4, batch_first=True),
                nn.Linear(4, 2),
            )

        def forward(self, x):
            return self.head(self.rnn(self.drop(x))[0][:, -1])

    with isolated(0):
        net = Net().double()
    model = make_model(net, likelihood=Gaussian(std=1.0))
    model.shell().train(True)
    x, y, found = torch.stack([inputs("lstm")] * 2), torch.stack([targets()] * 2), []
    for looped in (False, True):
        gradients = MemberGradients(Members(model, [model.values()] * 2, (0, 1)))
        gradients.vectorised.looped = looped
        with warnings.catch_warnings(), isolated(3):
            warnings.simplefilter("ignore")
            found.append(gradients.add(x, y, 1.0)[0])
    assert torch.equal(*found) and found[0][0] != found[0][1]
