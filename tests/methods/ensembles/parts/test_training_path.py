import numpy as np
import pytest
import torch
from zoo.models import make_model
from zoo.networks import make

from credo.likelihoods import Gaussian
from credo.methods.ensembles.parts.members import Members
from credo.methods.ensembles.parts.training_path import RunningMoments, Snapshots

K = 2


def begin_with(gathered, random="all"):
    model = make_model(make("mlp")[0], random, likelihood=Gaussian())
    return Members(model, [model.random_values(seed) for seed in range(K)], range(K), gathered)


def walk(group, gathered, epochs):
    """Put scripted values in place after every epoch and let it be observed; the path ``(epochs, K,
    *shape)`` by name.
    """
    path = {n: [] for n in (*group.names, *group.noise_names)}
    tensors = group.values() | group.likelihood_params()
    for epoch in range(epochs):
        with torch.no_grad():
            for index, (name, tensor) in enumerate(tensors.items()):
                made = torch.Generator().manual_seed(1000 * epoch + index)
                tensor.copy_(torch.randn(tensor.shape, generator=made, dtype=torch.float64))
                path[name].append(tensor.detach().clone())
        gathered.observe(group.values(), group.likelihood_params(), epoch, epochs)
    return {n: torch.stack(rows).numpy() for n, rows in path.items()}


def deviations(rows, share=None):
    """Every point's distance from the average as it stood when the point had joined it."""
    mean, out = np.zeros_like(rows[0]), []
    for n, row in enumerate(rows, 1):
        a = max(1 / n, share or 0.0)
        mean = (1 - a) * mean + a * row
        out.append(row - mean)
    return np.stack(out)


@pytest.mark.parametrize(
    ("epochs", "start", "rank"), [(8, 0.0, 3), (8, 0.5, 20), (7, 0.75, 2), (10, 0.3, 7)]
)
def test_moments_of_a_scripted_path_are_numpys(epochs, start, rank):
    gathered = RunningMoments(start, rank, 0.0)
    group = begin_with(gathered)
    path = walk(group, gathered, epochs)
    begin = next(e for e in range(epochs) if e / epochs >= start)
    assert int(gathered.seen) == epochs - begin
    for k in range(K):
        moments = gathered.of_member(k)
        for name in group.names:
            rows = path[name][begin:, k]
            assert np.allclose(moments.values[name].numpy(), rows.mean(0), atol=1e-12)
            assert np.allclose(moments.variances[name].numpy(), rows.var(0), atol=1e-12)
            wanted, found = deviations(rows)[-rank:], moments.deviations[name].numpy()
            assert (
                found.shape == wanted.shape
            )  # the last ones, in whatever order: D D^T is what counts
            wanted, found = wanted.reshape(len(wanted), -1), found.reshape(len(found), -1)
            assert np.allclose(found.T @ found, wanted.T @ wanted, atol=1e-12)
        assert np.allclose(
            moments.likelihood_params["log_std"].numpy(),
            path["log_std"][begin:, k].mean(0),
            atol=1e-6,
        )


@pytest.mark.parametrize("newest", [0.05, 0.3, 1.0])
def test_the_exponential_average_is_its_definition(newest):
    """Weights a_i prod_{j > i} (1 - a_j) with a_i = max(1 / i, newest), and the variance under
    these weights.
    """
    gathered = RunningMoments(0.0, 2, newest)
    group = begin_with(gathered)
    path = walk(group, gathered, 9)
    shares = [max(1 / n, newest) for n in range(1, 10)]
    weights = np.array(
        [a * np.prod([1 - b for b in shares[i + 1 :]]) for i, a in enumerate(shares)]
    )
    assert np.isclose(weights.sum(), 1.0)
    for name in group.names:
        rows = path[name][:, 1]
        mean = np.tensordot(weights, rows, 1)
        var = np.tensordot(weights, (rows - mean) ** 2, 1)
        assert np.allclose(gathered.of_member(1).values[name].numpy(), mean, atol=1e-12)
        assert np.allclose(gathered.of_member(1).variances[name].numpy(), var, atol=1e-12)
        last = deviations(rows, newest)[-1]
        assert (
            min(np.abs(d.numpy() - last).max() for d in gathered.of_member(1).deviations[name])
            < 1e-12
        )


def test_points_have_a_mean_and_no_spread():
    gathered = RunningMoments(0.0, 2, 0.0)
    group = begin_with(gathered, "last")
    path = walk(group, gathered, 4)
    moments = gathered.of_member(0)
    assert set(moments.values) == set(group.names) and set(moments.variances) == set(
        moments.deviations
    ) == {"2.weight", "2.bias"}
    assert np.allclose(moments.values["0.weight"].numpy(), path["0.weight"][:, 0].mean(0))


def test_without_rank_no_deviations_are_kept():
    gathered = RunningMoments(0.0, 0, 0.0)
    group = begin_with(gathered)
    walk(group, gathered, 4)
    assert all(len(d) == 0 for d in gathered.of_member(0).deviations.values())


def test_gathering_begins_with_the_epoch_that_start_says():
    """Of a hundred epochs exactly the last 100 (1 - start), whatever start times a hundred rounds
    to.
    """
    for percent in range(100):
        gathered = RunningMoments(percent / 100, 0, 0.0)
        gathered.begin({}, {}, ())
        for epoch in range(100):
            gathered.observe({}, {}, epoch, 100)
        assert int(gathered.seen) == 100 - percent


@pytest.mark.parametrize(("epochs", "cycles"), [(6, 3), (7, 3), (10, 4), (5, 5), (9, 1), (100, 7)])
def test_a_snapshot_is_taken_at_the_end_of_every_cycle(epochs, cycles):
    gathered = Snapshots(cycles)
    group = begin_with(gathered)
    path = walk(group, gathered, epochs)
    ends = [e for e in range(epochs) if (e + 1) * cycles // epochs > e * cycles // epochs]
    assert len(ends) == cycles == int(gathered.seen) and ends[-1] == epochs - 1
    values, likelihood_params = gathered.taken()
    for name in group.names:
        wanted = path[name][ends].reshape(cycles * K, *path[name].shape[2:])
        assert np.array_equal(values[name].numpy(), wanted)
    assert np.allclose(likelihood_params["log_std"].numpy(), path["log_std"][ends].reshape(-1))


def test_snapshots_of_a_fit_that_ended_early():
    gathered = Snapshots(4)
    group = begin_with(gathered)
    for epoch in range(5):
        gathered.observe(group.values(), group.likelihood_params(), epoch, 8)
    assert int(gathered.seen) == 2 and gathered.taken()[0]["0.weight"].shape[0] == 2 * K


@pytest.mark.parametrize("make_path", [lambda: RunningMoments(0.25, 3, 0.0), lambda: Snapshots(3)])
def test_what_was_gathered_is_part_of_the_checkpoint(make_path):
    """Half of a path, new members with the first one's state, the other half."""
    straight, first, second = make_path(), make_path(), make_path()
    whole, before, after = begin_with(straight), begin_with(first), begin_with(second)
    walk(whole, straight, 9)

    def part(group, gathered, epochs):
        tensors = group.values() | group.likelihood_params()
        for epoch in epochs:
            with torch.no_grad():
                for index, tensor in enumerate(tensors.values()):
                    made = torch.Generator().manual_seed(1000 * epoch + index)
                    tensor.copy_(torch.randn(tensor.shape, generator=made, dtype=torch.float64))
            gathered.observe(group.values(), group.likelihood_params(), epoch, 9)

    part(before, first, range(5))
    after.load_state_dict({n: t.clone() for n, t in before.state_dict().items()})
    part(after, second, range(5, 9))
    one, two = whole.state_dict(), after.state_dict()
    assert all(torch.equal(one[n], two[n]) for n in one)


def test_a_checkpoint_of_an_earlier_version_is_read():
    gathered, again = RunningMoments(0.25, 3, 0.0), RunningMoments(0.25, 3, 0.0)
    group, after = begin_with(gathered), begin_with(again)
    walk(group, gathered, 9)
    old = {
        n.replace("path.likelihood", "trace.voice").replace("path.", "trace."): t.clone()
        for n, t in group.state_dict().items()
    }
    assert "trace.seen" in old and "trace.voice0" in old and "stacked.0" in old and "noise.0" in old
    after.load_state_dict(old)
    assert all(torch.equal(t, after.state_dict()[n]) for n, t in group.state_dict().items())
