import pytest
import torch
from torch import nn
from torch.distributions import Laplace, Normal
from zoo.families import MAKERS, SHAPES, flat, values
from zoo.stats import has_mean

from credo import BNN, load
from credo.core.errors import CredoError
from credo.core.seeds import Ambient, Streams, isolated
from credo.core.sites import select
from credo.posteriors import Discrete, Posterior, PosteriorPrior, sampled_kl
from credo.posteriors.discrete import OnLevels
from credo.priors import Factorised, Flat

DRAWS = 20_000
LEVELS = (-1.0, 0.5, 2.0)


def draws_of(family, n=DRAWS):
    with torch.no_grad():
        return family.draw(Streams(3, range(n)))


@pytest.mark.parametrize("noise", ["streams", "ambient"])
def test_levels_come_with_their_probabilities(noise):
    family = MAKERS["discrete"]()
    with torch.no_grad(), isolated(0):
        drawn = family.draw(Streams(3, range(DRAWS)) if noise == "streams" else Ambient((DRAWS,)))
    for name, probs in family.probs().items():
        assert torch.allclose(probs.sum(-1), torch.ones_like(probs[..., 0]))
        hits = torch.stack([drawn[name] == level for level in LEVELS], -1).double()
        assert (hits.sum(-1) == 1).all(), "nothing but levels"
        has_mean(hits, probs.detach())


def test_weights_are_independent():
    drawn = flat(draws_of(MAKERS["discrete"]()))
    centred = drawn - drawn.mean(0)
    products = (centred.unsqueeze(-1) * centred.unsqueeze(-2)).flatten(1)
    apart = ~torch.eye(15, dtype=torch.bool).flatten()
    has_mean(products[:, apart], 0.0)


def test_the_density_is_the_product_of_the_probabilities():
    family = MAKERS["discrete"]()
    drawn = draws_of(family, 4)
    probs = family.probs()
    expected = torch.zeros(4, dtype=torch.float64)
    for name in SHAPES:
        for k, level in enumerate(LEVELS):
            expected += (
                torch.where(drawn[name] == level, probs[name][..., k].log(), 0.0).flatten(1).sum(1)
            )
    assert torch.allclose(family.log_prob(drawn), expected)
    each = family.log_prob_each(drawn)
    assert torch.allclose(sum(v.flatten(1).sum(1) for v in each.values()), expected)
    one = {n: v[0] for n, v in drawn.items()}
    assert torch.allclose(family.log_prob(one), expected[0])


def test_scalars_are_parameters_too():
    family = Discrete({"s": ()}, (0.0, 1.0), "float64")
    drawn = draws_of(family, 7)
    assert (
        drawn["s"].shape == (7,)
        and family.log_prob(drawn).shape == (7,)
        and family.mean()["s"].shape == ()
    )
    assert torch.allclose(family.log_prob(drawn), torch.tensor(0.5).log().double())


def priors():
    elementwise = Normal(
        torch.linspace(-1, 1, 12).reshape(3, 4).double(), 0.7 * torch.ones(3, 4).double()
    )
    return {
        "normal": {
            "w": Normal(torch.tensor(0.3).double(), 1.0),
            "b": Normal(torch.tensor(0.3).double(), 1.0),
        },
        "elementwise": {"w": elementwise, "b": Laplace(torch.zeros(3).double(), 1.0)},
        "flat": {"w": Flat(), "b": Flat()},
    }


@pytest.mark.parametrize("kind", ["normal", "elementwise", "flat"])
def test_the_closed_kl_is_the_sum_over_levels_and_the_mean_over_draws(kind):
    family = MAKERS["discrete"]()
    parts = priors()[kind]
    prior = Factorised({n: family.restrict(d, n) for n, d in parts.items()}, family.shapes)
    closed = family.kl(prior)
    by_hand = 0.0
    for name, probs in family.probs().items():
        density = torch.stack(
            [parts[name].log_prob(torch.full(SHAPES[name], level).double()) for level in LEVELS], -1
        )
        by_hand = by_hand + (probs * (probs.log() - density.log_softmax(-1))).sum()
    assert torch.allclose(closed, by_hand) and closed > 0
    with torch.no_grad():
        has_mean(sampled_kl(family, prior, Streams(0, range(DRAWS))), closed)


def test_the_kl_between_two_of_them_is_exact():
    family, other = MAKERS["discrete"](), Discrete.start(values(1), LEVELS)
    sites = dict(zip(("w", "b"), select(nn.Linear(4, 3).double(), "all")[0].values(), strict=True))
    prior = family.prior_from(PosteriorPrior(Posterior([other])), sites)
    assert prior is other
    closed = family.kl(prior)
    with torch.no_grad():
        has_mean(sampled_kl(family, prior, Streams(0, range(DRAWS))), closed)
    assert torch.allclose(family.kl(family), torch.zeros((), dtype=torch.float64), atol=1e-12)
    assert family.kl(Discrete.start(values(1), (-1.0, 0.5, 3.0))) is None


def test_priors_are_normalised_on_the_levels():
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    for base in (
        Normal(torch.tensor(0.3).double(), 1.0),
        Normal(torch.zeros(2, 3).double(), torch.rand(2, 3).double() + 0.5),
    ):
        prior = OnLevels(base, levels)
        total = sum(prior.log_prob(level.expand(base.batch_shape)).exp() for level in levels)
        assert torch.allclose(total, torch.ones_like(total))
        with isolated(0):
            drawn = prior.sample(torch.Size([DRAWS]))
        for level in levels:
            has_mean(
                (drawn == level).double(), prior.log_prob(level.expand(base.batch_shape)).exp()
            )


def test_it_starts_near_the_given_values():
    family = Discrete.start({"w": torch.tensor([-0.1, 0.1, 0.0])}, (-1.0, 1.0))
    probs = family.probs()["w"]
    assert (
        probs[0, 0] > 0.6 and probs[1, 1] > 0.6 and torch.allclose(probs[2, 0], torch.tensor(0.5))
    )


@pytest.mark.parametrize("levels", [(1.0,), (1.0, 1.0), ()])
def test_levels_must_be_two_different_numbers(levels):
    with pytest.raises(CredoError, match="expected two or more different numbers"):
        Discrete({"w": (2,)}, levels)


def fitted(**how):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    with isolated(0):
        net = nn.Linear(3, 1)
    settings = {
        "posterior": "discrete",
        "estimator": "gumbel",
        "levels": (-1.0, 0.0, 1.0),
        "epochs": 3,
        "progress": False,
    } | how
    return BNN(net, "gaussian", prior=Normal(0.0, 0.5)).fit((x, x[:, :1]), "vi", **settings), x


def test_the_prior_is_drawn_on_the_levels():
    bnn, x = fitted()
    ones = torch.eye(3)
    outputs = bnn.predict(ones, samples=500, source="prior").outputs[..., 0]
    bias = bnn.predict(torch.zeros(1, 3), samples=500, source="prior").outputs[..., 0]
    weights = (outputs - bias).round(decimals=4)
    assert set(weights.flatten().tolist()) == {-1.0, 0.0, 1.0}
    expected = Normal(0.0, 0.5).log_prob(torch.tensor([-1.0, 0.0, 1.0])).softmax(0)
    for level, probability in zip((-1.0, 0.0, 1.0), expected, strict=True):
        has_mean((weights == level).double(), float(probability))


def test_save_and_load(tmp_path):
    bnn, x = fitted()
    bnn.save(tmp_path / "model")
    again = load(tmp_path / "model", bnn.net)
    assert torch.equal(bnn.predict(x, 9).outputs, again.predict(x, 9).outputs)
    assert bnn.objective((x, x[:, :1]))["kl"] == again.objective((x, x[:, :1]))["kl"]
