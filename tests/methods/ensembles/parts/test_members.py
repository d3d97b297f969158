import warnings

import pytest
import torch
from torch import nn
from torch.distributions import Laplace, Normal
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from zoo.models import make_model, make_posterior
from zoo.networks import ZOO, make

from credo import BNN
from credo.core.seeds import isolated
from credo.estimators import LIKELIHOOD
from credo.likelihoods import FullGaussian, Gaussian
from credo.methods.ensembles.parts.members import Flock, member_seeds, one, pays, several
from credo.methods.ensembles.parts.threaded_members import HEAVY
from credo.posteriors import Delta, Samples
from credo.priors import Flat

DOUBLE = torch.float64
#: Sums in another order differ by rounding of 1e-16; a few steps of Adam enlarge that by less than
#: a million.
CLOSE = {"rtol": 0.0, "atol": 1e-10}
HOW = {
    "epochs": 3,
    "batch_size": 5,
    "lr": 0.05,
    "progress": False,
}  # twelve examples: the last batch has two


def inputs(name, parts=4):
    rows = [make(name, seed=seed)[1] for seed in range(parts)]
    return pytree.tree_map(lambda *leaves: torch.cat(leaves), *rows)


def targets(n=12, width=2):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)


def noisy(kind="one"):
    made = {
        "one": Gaussian,
        "each": lambda: Gaussian(num_outputs=2),
        "full": lambda: FullGaussian(num_outputs=2),
    }[kind]()
    return made.double()


def fit(net, data, method, *, likelihood=None, prior=None, random="all", output=None, **how):
    bnn = BNN(net, noisy() if likelihood is None else likelihood, prior, random, output)
    return bnn.fit(data, method, **(HOW | how))


def pieces(fitted, member):
    """Everything that one member has learned, by name."""
    found = fitted.posterior.realise([member], 0)
    out = {name: value[0].detach() for name, value in found.items()}
    if fitted.posterior.atoms == 1:
        out |= {f"{LIKELIHOOD}{n}": p.detach() for n, p in fitted.likelihood.named_parameters()}
    return {n: b.detach() for n, b in fitted._fitted.buffers.items() if b.is_floating_point()} | out


def same_apart(net, data, members=3, seed=0, together=None, **how):
    """An ensemble, fitted with ``together``, against ``map`` fits with the members' seeds:
    parameters, noise, buffers, history.
    """
    whole = fit(
        net,
        data,
        "deep_ensemble",
        members=members,
        seed=seed,
        **({"vectorise": True} | (together or {})),
        **how,
    )
    alone = [
        fit(net, data, "map", init="random", seed=s, **how) for s in member_seeds(seed, members)
    ]
    for k, each in enumerate(alone):
        wanted, found = pieces(each, 0), pieces(whole, k)
        assert wanted.keys() == found.keys()
        for name, value in wanted.items():
            assert torch.allclose(found[name], value, **CLOSE), f"member {k}: {name}"
    for epoch, row in enumerate(whole.history):
        assert row["nll"] == pytest.approx(
            sum(each.history[epoch]["nll"] for each in alone) / members, rel=1e-10
        )
        assert row["elbo"] == pytest.approx(-row["nll"] - row["kl"])
    return whole, alone


def minus_log_prior(each):
    """By hand, of a ``map`` fit."""
    mean = each.posterior.mean()
    return sum(
        -float(each.model.prior.at(s).log_prob(mean[n]).sum())
        for n, s in each.model.sites.items()
        if n in each.random
    )


# --- members at once are members one after another ------------------------------------------------

PLAIN = [name for name in ZOO if name not in ("weight_norm_old", "attention", "transformer")]
LOOPED = {"lstm", "gru", "custom_function", "checkpointed"}


@pytest.mark.parametrize("name", PLAIN)
def test_members_trained_at_once_end_where_members_trained_apart_do(name):
    net, _ = make(name)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        output = "logits" if name == "dicts" else None
        whole = fit(
            net,
            (inputs(name), targets()),
            "deep_ensemble",
            members=3,
            vectorise=True,
            output=output,
        )
    said = [str(w.message) for w in told if "member by member" in str(w.message)]
    assert len(said) == (name in LOOPED) and all(
        "vmap cannot run this network" in text for text in said
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again, _ = same_apart(
            net, (inputs(name), targets()), output="logits" if name == "dicts" else None
        )
    assert all(
        torch.equal(pieces(whole, k)[n], v) for k in range(3) for n, v in pieces(again, k).items()
    )


@pytest.mark.parametrize("heavy", [0, HEAVY], ids=["apart", "stacked"])
@pytest.mark.parametrize("name", [name for name in PLAIN if name not in LOOPED])
def test_members_whose_passes_are_recorded_end_there_too(name, heavy, monkeypatch):
    monkeypatch.setattr("credo.methods.ensembles.parts.threaded_members.HEAVY", heavy)
    net, _ = make(name)
    same_apart(
        net,
        (inputs(name), targets()),
        output="logits" if name == "dicts" else None,
        together={"compile": True},
    )


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ["attention", "transformer"])
def test_attention(name):
    """A bias of keys changes no output, so that Adam turns the rounding of its gradient into a
    walk; SGD does not.
    """
    net, _ = make(name)
    data = (inputs(name), targets())
    whole = fit(net, data, "deep_ensemble", members=2, optimizer="sgd")
    for k, seed in enumerate(member_seeds(0, 2)):
        alone = fit(net, data, "deep_ensemble", members=1, optimizer="sgd", seed=seed)
        assert all(
            torch.allclose(pieces(whole, k)[n], v, rtol=0, atol=1e-7)
            for n, v in pieces(alone, 0).items()
        )
    adam = fit(net, data, "deep_ensemble", members=2)
    maps = [fit(net, data, "map", init="random", seed=s) for s in member_seeds(0, 2)]
    outputs = torch.cat([each.predict(data[0]).outputs for each in maps])
    # attention's kernel keeps its normaliser in single precision
    assert torch.allclose(adam.predict(data[0]).outputs, outputs, rtol=0, atol=1e-5)


def image_net():
    with isolated(0):
        return nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 3, 3),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(12, 2),
        ).double()


def test_convolutions_take_turns_unless_asked_otherwise():
    assert not pays(image_net()) and pays(make("mlp")[0])
    model = BNN(image_net(), Gaussian(std=1.0)).model
    starts, seeds = [model.values()] * 2, member_seeds(0, 2)
    assert [Flock(model, starts, seeds, vectorise=v).looped for v in (None, True, False)] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("vectorise", [False, True])
def test_convolutions_with_batch_norm_keep_their_own_statistics(vectorise):
    whole, _ = same_apart(
        image_net(), (inputs("conv"), targets()), together={"vectorise": vectorise}
    )
    shares = pieces(whole, 0)["1.running_mean"], pieces(whole, 1)["1.running_mean"]
    assert not torch.allclose(*shares) and int(whole._fitted.buffers["1.num_batches_tracked"]) == 9


@pytest.mark.parametrize("kind", ["one", "each", "full"])
def test_each_member_learns_its_own_noise(kind):
    net, _ = make("mlp")
    whole, _ = same_apart(net, (inputs("mlp"), targets()), likelihood=noisy(kind))
    name = f"{LIKELIHOOD}{'tril' if kind == 'full' else 'log_std'}"
    assert not torch.equal(pieces(whole, 0)[name], pieces(whole, 1)[name])
    mean = torch.stack([pieces(whole, k)[name] for k in range(3)]).mean(0)
    assert torch.allclose(next(whole.likelihood.parameters()), mean)


def elementwise():
    generator = torch.Generator().manual_seed(2)
    return {
        "0.weight": Normal(
            torch.randn(6, 5, generator=generator, dtype=DOUBLE),
            0.5 + torch.rand(6, 5, generator=generator, dtype=DOUBLE),
        ),
        "*": Normal(0.25, 0.5),
    }


PRIORS = {
    "tight": lambda: Normal(0.0, 0.25),
    "shifted": lambda: Normal(0.5, 0.75),
    "elementwise": elementwise,
    "laplace": lambda: Laplace(0.0, 0.5),
    "flat": Flat,
    "student_t": lambda: "student_t",
    "scale_mixture": lambda: "scale_mixture",
    "mixed": lambda: {"0.*": Normal(0.0, 0.5), "2.weight": Laplace(0.0, 0.25), "*": Flat()},
    "fan_in": lambda: "fan_in",
}


@pytest.mark.parametrize("kind", PRIORS)
def test_every_prior_pulls_as_it_does_alone(kind):
    net, _ = make("mlp")
    whole, alone = same_apart(net, (inputs("mlp"), targets()), prior=PRIORS[kind]())
    # the history's -log p(w) is that of the members as the epoch leaves them
    assert whole.history[-1]["kl"] == pytest.approx(
        sum(minus_log_prior(each) for each in alone) / 3, rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize(
    "prior", [Normal(0.0, 0.5), {"*weight": Laplace(0.0, 0.5), "2.bias": Normal(0.0, 0.25)}]
)
def test_point_parameters_are_free_of_the_prior_unless_one_is_named(prior):
    net, _ = make("mlp")
    whole, _ = same_apart(
        net,
        (inputs("mlp"), targets()),
        random=["*weight"] if isinstance(prior, dict) else "last",
        prior=prior,
    )
    assert {type(family) for family in whole.posterior.members} == {Samples}
    assert set(whole.posterior.names) == {
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
        f"{LIKELIHOOD}log_std",
    }


def test_frozen_parameters_stay():
    net, _ = make("mlp")
    net[0].weight.requires_grad_(False)
    whole, _ = same_apart(net, (inputs("mlp"), targets()))
    assert "0.weight" not in whole.posterior.names


@pytest.mark.parametrize(
    "how", [{"batch_size": 5, "shuffle": True}, {"batch_size": 4, "shuffle": False}]
)
def test_a_loader_gives_each_member_its_own_order(how):
    net, _ = make("mlp")
    same_apart(net, DataLoader(TensorDataset(inputs("mlp"), targets()), **how))


def test_tuples_as_inputs():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 2), nn.Embedding(4, 2)

        def forward(self, x, words):
            return self.a(x) + self.b(words)

    with isolated(0):
        net = Pair().double()
    same_apart(net, ((inputs("mlp"), torch.arange(12) % 4), targets()))


def test_an_earlier_posterior_as_prior():
    """Of joint and of independent Gaussians."""
    net, _ = make("mlp")
    data = (inputs("mlp"), targets())
    for kind in ("low_rank", "mean_field", "full"):
        earlier = make_posterior(kind, make_model(net)).requires_grad_(False)
        same_apart(net, data, members=2, prior=earlier)


def test_an_ensemble_of_one_is_map():
    net, _ = make("batchnorm")
    data = (inputs("batchnorm"), targets())
    one_, (alone,) = same_apart(net, data, members=1, seed=4, validation=data)
    assert one_.posterior.atoms == 1 and [type(f) for f in one_.posterior.members] == [Delta]
    for mine, wanted in zip(one_.history, alone.history, strict=True):
        assert mine["validation_nll"] == pytest.approx(wanted["validation_nll"], rel=1e-10)
    assert torch.allclose(one_.predict(data[0]).outputs, alone.predict(data[0]).outputs, **CLOSE)


# --- networks that make it hard -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["checkpointed", "lstm"])
def test_a_pass_that_fails_half_way_leaves_no_gradients_behind(name):
    """Under vmap a checkpointed layer fails while it is recomputed, when later layers have their
    gradients already.
    """
    net, _ = make(name)
    model = make_model(net, likelihood=Gaussian(std=1.0))
    starts = [model.random_values(seed) for seed in (0, 1)]
    x, y = torch.stack([inputs(name)] * 2), torch.stack([targets()] * 2)
    trial, told = Flock(model, starts, (0, 1)), Flock(model, starts, (0, 1))
    told.looped = True
    with pytest.warns(UserWarning, match="member by member"):
        trial.pull(x, y, 0.5)
    told.pull(x, y, 0.5)
    for p, q in zip(trial.parameters(), told.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_gradients_add_up_even_where_the_first_pass_fails():
    net, _ = make("checkpointed")
    model = make_model(net, likelihood=Gaussian(std=1.0))
    flock = Flock(model, [model.random_values(seed) for seed in (0, 1)], (0, 1))
    x, y = torch.stack([inputs("checkpointed")] * 2), torch.stack([targets()] * 2)
    for parameter in flock.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.warns(UserWarning, match="member by member"):
        flock.pull(x, y, 0.5)
    first = [p.grad.clone() for p in flock.parameters()]
    flock.pull(x, y, 0.5)
    assert all(
        torch.allclose(p.grad - a, a - 1) for p, a in zip(flock.parameters(), first, strict=True)
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
        same_apart(net, (inputs("mlp"), targets()))


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
    same_apart(net, (inputs("mlp"), targets()), prior=Normal(0.0, 0.25))


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
    whole, _ = same_apart(net, (inputs("mlp"), targets()))
    levels = [pieces(whole, k)["level"] for k in range(3)]
    assert not torch.allclose(levels[0], levels[1]) and int(whole._fitted.buffers["count"]) == 9
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
    flock = Flock(model, [start, start], (0, 0))
    model.shell().train(True)
    with isolated(0):
        nll, _ = flock.pull(x, y, 1.0)
    assert not flock.looped and nll[0] != nll[1], (
        "equal members on equal data differ only by their noise"
    )
    fits = [fit(net, (x[0], y[0]), "deep_ensemble", members=2, seed=seed) for seed in (0, 0, 1)]
    a, b, c = ([pieces(each, k)["0.weight"] for k in range(2)] for each in fits)
    assert all(torch.equal(one, two) for one, two in zip(a, b, strict=True)) and not torch.allclose(
        a[0], c[0]
    )
    assert torch.equal(state, torch.get_rng_state())


def test_an_ensemble_of_one_with_dropout_sees_the_noise_that_map_sees():
    same_apart(dropping(), (inputs("mlp"), targets()), members=1)


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
        flock = Flock(model, [model.values()] * 2, (0, 1))
        flock.looped = looped
        with warnings.catch_warnings(), isolated(3):
            warnings.simplefilter("ignore")
            found.append(flock.pull(x, y, 1.0)[0])
    assert torch.equal(*found) and found[0][0] != found[0][1]


# --- what is refused, and what is left ------------------------------------------------------------


def test_seeds_of_members():
    seeds = member_seeds(7, 4)
    assert seeds[0] == 7 and len(set(seeds)) == 4 and member_seeds(7, 2) == seeds[:2]
    assert not set(seeds[1:]) & set(member_seeds(8, 4)[1:])


def test_several_points_of_mixed_types_are_families_of_their_own():
    net = nn.Sequential(nn.Linear(2, 2).double(), nn.Linear(2, 1))
    model = make_model(net, "weights")
    values = {n: v.expand(3, *v.shape) for n, v in model.values().items()}
    posterior = several(model, values, {"log_std": torch.zeros(3)}, {"statistic": torch.ones(3, 2)})
    assert posterior.atoms == 3 and len(posterior.members) == 6
    assert posterior.realise([1], 0)[f"{LIKELIHOOD}log_std"].shape == (1,)


def test_one_members_points():
    net, _ = make("mlp")
    model = make_model(net, "last")
    parts = one(model, model.values(), {"log_std": torch.zeros(())})
    assert [part.names for part in parts] == [("0.weight", "0.bias"), (f"{LIKELIHOOD}log_std",)]
    assert one(make_model(net), make_model(net).values(), {}) == []
