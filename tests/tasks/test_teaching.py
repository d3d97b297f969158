"""Soft targets from fixed and from fresh draws, and perturbed inputs."""

import pytest
import torch
from zoo.stats import Z, has_mean, has_variance

import credo
from credo.core.errors import DataError, SettingError
from credo.core.seeds import generator
from credo.core.tree import num_rows, split
from credo.likelihoods import Categorical, Heteroscedastic
from credo.tasks.teaching import Jitter, Perturbed, Teacher


@pytest.fixture(scope="module")
def chain():
    """A small posterior of 12 draws, and inputs."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=source)
    y = (x[:, 0] > 0).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = credo.nets.mlp(2, (4,), 2)
    moves = {
        "num_chains": 3,
        "num_warmup": 20,
        "num_draws": 4,
        "thin": 5,
        "lr": 0.3,
        "progress": False,
    }
    return credo.BNN(net).fit((x, y), "sgld", **moves), x


@pytest.fixture(scope="module")
def variational():
    """A continuous posterior on regression."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(30, 1, generator=source)
    y = x + 0.3 * torch.randn(30, 1, generator=source)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = credo.nets.mlp(1, (4,), 1, activation="tanh")
    return credo.BNN(net, "gaussian").fit((x, y), "vi", epochs=30, lr=0.02, progress=False), x


def test_at_is_what_predict_says(chain, variational):
    bnn, x = chain
    torch.testing.assert_close(Teacher(bnn, Categorical(), 50).at(x, 0), bnn.predict(x, 50).mean)
    bnn, x = variational
    p = bnn.predict(x, 50, seed=3)
    torch.testing.assert_close(
        Teacher(bnn, Heteroscedastic(), 50).at(x, 3), torch.stack([p.mean, p.variance], 1)
    )


def test_at_does_not_depend_on_slices(variational, monkeypatch):
    bnn, x = variational
    teacher = Teacher(bnn, Heteroscedastic(), 20)
    whole = teacher.at(x, 0)
    monkeypatch.setattr("credo.tasks.teaching.ROWS", 7)
    torch.testing.assert_close(teacher.at(x, 0), whole)


def test_fresh_draws_average_to_the_whole_set(chain):
    """3 of 12 draws at random, 2,000 times: unbiased by a z-test at every input; and all draws at
    once are no estimate at all.
    """
    bnn, x = chain
    few = Teacher(bnn, Categorical(), 3)
    estimates = torch.stack([few.fresh(x[:5], seed) for seed in range(2000)])
    has_mean(estimates, bnn.predict(x[:5], 12).mean)
    torch.testing.assert_close(Teacher(bnn, Categorical(), 99).fresh(x, 5), bnn.predict(x, 12).mean)


def test_fresh_draws_of_a_continuous_posterior_average_to_its_predictions(variational):
    """Mean, and mean square of y, by draws in twos, against 4,000 other draws."""
    bnn, x = variational
    few = Teacher(bnn, Heteroscedastic(), 2)
    soft = torch.stack([few.fresh(x[:3], seed) for seed in range(1500)]).squeeze(-1)
    many = bnn.predict(x[:3], 4000, seed=99)
    outputs = many.outputs.squeeze(-1)
    noise = float(bnn.predict(x[:1], 1).aleatoric)
    for ours, theirs in (
        (soft[..., 0], outputs),
        (soft[..., 1] + soft[..., 0].square(), outputs.square() + noise),
    ):
        error = (ours.var(0) / len(ours) + theirs.var(0) / len(theirs)).sqrt()
        assert ((ours.mean(0) - theirs.mean(0)).abs() < Z * error).all()


def test_fresh_repeats_with_its_seed_and_moves_with_another(chain, variational):
    for bnn, x in (chain, variational):
        teacher = Teacher(bnn, bnn.likelihood.student(), 2)
        assert torch.equal(teacher.fresh(x, 1), teacher.fresh(x, 1))
        assert not torch.equal(teacher.fresh(x, 1), teacher.fresh(x, 2))


def test_jitter_has_the_spread_of_every_feature():
    x = torch.randn(200, 3, generator=generator(1)) * torch.tensor([0.1, 1.0, 30.0])
    jitter = Jitter(x, 0.5)
    moved = torch.stack([jitter(x[:4], generator("jitter", seed)) for seed in range(4000)])
    has_mean(moved, x[:4])
    has_variance(moved, (0.25 * x.var(0, correction=0)).expand(4, -1))


def test_a_constant_feature_moves_like_the_others():
    x = torch.cat([torch.randn(50, 2, generator=generator(1)) * 2.0, torch.full((50, 1), 7.0)], 1)
    scale = Jitter(x, 1.0).scale["x"]
    std = x.std(0, correction=0)
    torch.testing.assert_close(scale[:2], std[:2])
    torch.testing.assert_close(scale[2], (std.square().sum() / 3).sqrt())


def test_whole_numbers_and_data_without_spread_are_refused():
    with pytest.raises(DataError, match=r"x\['b'\] holds whole numbers \(torch.int64\).*perturb="):
        Jitter({"a": torch.randn(3, 1), "b": torch.ones(3, dtype=torch.long)}, 0.1)
    with pytest.raises(DataError, match="the same in all 4 rows"):
        Jitter(torch.full((4, 2), 0.1), 0.1)


def test_trees_are_cut_and_perturbed_leaf_by_leaf():
    x = {"a": torch.randn(5, 2), "b": (torch.randn(5, 3, 3),)}
    assert num_rows(x) == 5 and [num_rows(part) for part in split(x, 2)] == [2, 2, 1]
    moved = Jitter(x, 0.1)(x, generator(0))
    assert moved["a"].shape == (5, 2) and moved["b"][0].shape == (5, 3, 3)
    assert not torch.equal(moved["a"], x["a"]) and not torch.equal(moved["b"][0], x["b"][0])


def epoch(feed, seed, size=8):
    return list(feed.batches(generator("epoch", seed), size))


def test_epochs_repeat_with_their_generator_and_visit_every_input_once(chain):
    bnn, x = chain
    feed = Perturbed(x, Jitter(x, 1e-9), Teacher(bnn, Categorical(), 2))
    first, again, other = epoch(feed, 0), epoch(feed, 0), epoch(feed, 1)
    for (a, p), (b, q) in zip(first, again, strict=True):
        assert torch.equal(a, b) and torch.equal(p, q)
    assert not torch.equal(first[0][0], other[0][0])
    rows = torch.cat([a for a, _ in first])
    assert [len(a) for a, _ in first] == [8, 8, 8, 6]
    torch.testing.assert_close(rows.sort(0).values, x.sort(0).values)
    (plain, soft), *_ = feed.batches(None, 8)
    assert torch.equal(plain, x[:8]) and soft.shape == (8, 2)


def test_targets_belong_to_the_perturbed_inputs(chain):
    """With all draws behind them they are exactly the teacher's predictions there."""
    bnn, x = chain
    for moved, soft in epoch(Perturbed(x, Jitter(x, 0.5), Teacher(bnn, Categorical(), 12)), 0):
        torch.testing.assert_close(soft, bnn.predict(moved, 12).mean)


def test_a_function_of_the_users_gets_a_generator_and_may_draw_from_the_global_one(chain):
    bnn, x = chain
    seen = []

    def perturb(rows, source):
        seen.append(source)
        return rows + torch.randn_like(rows) + torch.rand(rows.shape, generator=source)

    feed = Perturbed(x, perturb, Teacher(bnn, Categorical(), 1))
    before = torch.get_rng_state()
    first, again = epoch(feed, 0), epoch(feed, 0)
    assert torch.equal(before, torch.get_rng_state()) and isinstance(seen[0], torch.Generator)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(first, again, strict=True))


@pytest.mark.parametrize(
    ("perturb", "kind", "message"),
    [
        (lambda x, _: x[:, :1], DataError, "perturb gave inputs.*shape"),
        (lambda x, _: x * float("nan"), DataError, "perturb gave inputs.*NaN"),
        (lambda x, _: x[:1], SettingError, "perturb gave 1 rows for 8"),
        (lambda x, _: None, DataError, "perturb gave inputs.*NoneType"),
    ],
)
def test_what_a_function_gives_is_checked(chain, perturb, kind, message):
    bnn, x = chain
    with pytest.raises(kind, match=message):
        epoch(Perturbed(x, perturb, Teacher(bnn, Categorical(), 1)), 0)
