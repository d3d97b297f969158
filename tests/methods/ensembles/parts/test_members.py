import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo.members import CLOSE, fit, inputs, noisy, pieces, same_as_alone, targets
from zoo.networks import ZOO, make

from credo.core.seeds import isolated
from credo.estimators import LIKELIHOOD
from credo.methods.ensembles.parts.members import member_seeds
from credo.methods.ensembles.parts.threaded_members import HEAVY
from credo.posteriors import Delta

#: Sums in another order differ by rounding of 1e-16; a few steps of Adam enlarge that by less than
#: a million.


# --- members at once are members one after another ------------------------------------------------

PLAIN = [name for name in ZOO if name not in ("weight_norm_old", "attention", "transformer")]
LOOPED = {"lstm", "gru", "custom_function", "checkpointed"}


@pytest.mark.parametrize("name", PLAIN)
def test_members_trained_at_once_end_where_members_trained_alone_do(name):
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
        again, _ = same_as_alone(
            net, (inputs(name), targets()), output="logits" if name == "dicts" else None
        )
    assert all(
        torch.equal(pieces(whole, k)[n], v) for k in range(3) for n, v in pieces(again, k).items()
    )


@pytest.mark.parametrize("heavy", [0, HEAVY], ids=["threaded", "stacked"])
@pytest.mark.parametrize("name", [name for name in PLAIN if name not in LOOPED])
def test_members_whose_passes_are_recorded_end_there_too(name, heavy, monkeypatch):
    monkeypatch.setattr("credo.methods.ensembles.parts.threaded_members.HEAVY", heavy)
    net, _ = make(name)
    same_as_alone(
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


@pytest.mark.parametrize("vectorise", [False, True])
def test_convolutions_with_batch_norm_keep_their_own_statistics(vectorise):
    whole, _ = same_as_alone(
        image_net(), (inputs("conv"), targets()), together={"vectorise": vectorise}
    )
    shares = pieces(whole, 0)["1.running_mean"], pieces(whole, 1)["1.running_mean"]
    assert not torch.allclose(*shares) and int(whole.buffers["1.num_batches_tracked"]) == 9


@pytest.mark.parametrize("kind", ["one", "each", "full"])
def test_each_member_learns_its_own_noise(kind):
    net, _ = make("mlp")
    whole, _ = same_as_alone(net, (inputs("mlp"), targets()), likelihood=noisy(kind))
    name = f"{LIKELIHOOD}{'tril' if kind == 'full' else 'log_std'}"
    assert not torch.equal(pieces(whole, 0)[name], pieces(whole, 1)[name])
    mean = torch.stack([pieces(whole, k)[name] for k in range(3)]).mean(0)
    assert torch.allclose(next(whole.likelihood.parameters()), mean)


def test_frozen_parameters_stay():
    net, _ = make("mlp")
    net[0].weight.requires_grad_(False)
    whole, _ = same_as_alone(net, (inputs("mlp"), targets()))
    assert "0.weight" not in whole.posterior.names


@pytest.mark.parametrize(
    "how", [{"batch_size": 5, "shuffle": True}, {"batch_size": 4, "shuffle": False}]
)
def test_a_loader_gives_each_member_its_own_order(how):
    net, _ = make("mlp")
    same_as_alone(net, DataLoader(TensorDataset(inputs("mlp"), targets()), **how))


def test_tuples_as_inputs():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 2), nn.Embedding(4, 2)

        def forward(self, x, words):
            return self.a(x) + self.b(words)

    with isolated(0):
        net = Pair().double()
    same_as_alone(net, ((inputs("mlp"), torch.arange(12) % 4), targets()))


def test_an_ensemble_of_one_is_map():
    net, _ = make("batchnorm")
    data = (inputs("batchnorm"), targets())
    one_, (alone,) = same_as_alone(net, data, members=1, seed=4, validation=data)
    assert one_.posterior.atoms == 1 and [type(f) for f in one_.posterior.members] == [Delta]
    for mine, wanted in zip(one_.history, alone.history, strict=True):
        assert mine["validation_nll"] == pytest.approx(wanted["validation_nll"], rel=1e-10)
    assert torch.allclose(one_.predict(data[0]).outputs, alone.predict(data[0]).outputs, **CLOSE)


# --- networks that make it hard -------------------------------------------------------------------


# --- what is refused, and what is left ------------------------------------------------------------


def test_seeds_of_members():
    seeds = member_seeds(7, 4)
    assert seeds[0] == 7 and len(set(seeds)) == 4 and member_seeds(7, 2) == seeds[:2]
    assert not set(seeds[1:]) & set(member_seeds(8, 4)[1:])
