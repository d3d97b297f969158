import numpy as np
import pytest
import torch
from zoo.models import make_model
from zoo.networks import make

from credo.likelihoods import Gaussian
from credo.methods.ensembles.parts.members import Flock
from credo.methods.ensembles.parts.paths import PathMoments, Snapshots

K = 2


def flock(trace, random="all"):
    model = make_model(make("mlp")[0], random, likelihood=Gaussian())
    return Flock(model, [model.random_values(seed) for seed in range(K)], range(K), trace)


def walk(group, trace, epochs):
    """Put scripted values in place after every epoch and let the trace see; the path ``(epochs, K,
    *shape)`` by name.
    """
    path = {n: [] for n in (*group.names, *group.noise_names)}
    tensors = group.values() | group.voices()
    for epoch in range(epochs):
        with torch.no_grad():
            for index, (name, tensor) in enumerate(tensors.items()):
                made = torch.Generator().manual_seed(1000 * epoch + index)
                tensor.copy_(torch.randn(tensor.shape, generator=made, dtype=torch.float64))
                path[name].append(tensor.detach().clone())
        trace.see(group, epoch, epochs)
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
    trace = PathMoments(start, rank, 0.0)
    group = flock(trace)
    path = walk(group, trace, epochs)
    begin = next(e for e in range(epochs) if e / epochs >= start)
    assert int(trace.seen) == epochs - begin
    for k in range(K):
        spread = trace.spread(group, k)
        for name in group.names:
            rows = path[name][begin:, k]
            assert np.allclose(spread.values[name].numpy(), rows.mean(0), atol=1e-12)
            assert np.allclose(spread.variances[name].numpy(), rows.var(0), atol=1e-12)
            wanted, found = deviations(rows)[-rank:], spread.deviations[name].numpy()
            assert (
                found.shape == wanted.shape
            )  # the last ones, in whatever order: D D^T is what counts
            wanted, found = wanted.reshape(len(wanted), -1), found.reshape(len(found), -1)
            assert np.allclose(found.T @ found, wanted.T @ wanted, atol=1e-12)
        assert np.allclose(
            spread.voices["log_std"].numpy(), path["log_std"][begin:, k].mean(0), atol=1e-6
        )


@pytest.mark.parametrize("newest", [0.05, 0.3, 1.0])
def test_the_exponential_average_is_its_definition(newest):
    """Weights a_i prod_{j > i} (1 - a_j) with a_i = max(1 / i, newest), and the variance under
    these weights.
    """
    trace = PathMoments(0.0, 2, newest)
    group = flock(trace)
    path = walk(group, trace, 9)
    shares = [max(1 / n, newest) for n in range(1, 10)]
    weights = np.array(
        [a * np.prod([1 - b for b in shares[i + 1 :]]) for i, a in enumerate(shares)]
    )
    assert np.isclose(weights.sum(), 1.0)
    for name in group.names:
        rows = path[name][:, 1]
        mean = np.tensordot(weights, rows, 1)
        var = np.tensordot(weights, (rows - mean) ** 2, 1)
        assert np.allclose(trace.spread(group, 1).values[name].numpy(), mean, atol=1e-12)
        assert np.allclose(trace.spread(group, 1).variances[name].numpy(), var, atol=1e-12)
        last = deviations(rows, newest)[-1]
        assert (
            min(np.abs(d.numpy() - last).max() for d in trace.spread(group, 1).deviations[name])
            < 1e-12
        )


def test_points_have_a_mean_and_no_spread():
    trace = PathMoments(0.0, 2, 0.0)
    group = flock(trace, "last")
    path = walk(group, trace, 4)
    spread = trace.spread(group, 0)
    assert set(spread.values) == set(group.names) and set(spread.variances) == set(
        spread.deviations
    ) == {"2.weight", "2.bias"}
    assert np.allclose(spread.values["0.weight"].numpy(), path["0.weight"][:, 0].mean(0))


def test_without_rank_no_deviations_are_kept():
    trace = PathMoments(0.0, 0, 0.0)
    group = flock(trace)
    walk(group, trace, 4)
    assert all(len(d) == 0 for d in trace.spread(group, 0).deviations.values())


class Still:
    """A flock of nothing."""

    names, noise_names = (), ()
    model = make_model(make("mlp")[0])

    def values(self):
        return {}

    def voices(self):
        return {}


def test_gathering_begins_with_the_epoch_that_start_says():
    """Of a hundred epochs exactly the last 100 (1 - start), whatever start times a hundred rounds
    to.
    """
    for percent in range(100):
        trace = PathMoments(percent / 100, 0, 0.0)
        for epoch in range(100):
            trace.see(Still(), epoch, 100)
        assert int(trace.seen) == 100 - percent


@pytest.mark.parametrize(("epochs", "cycles"), [(6, 3), (7, 3), (10, 4), (5, 5), (9, 1), (100, 7)])
def test_a_snapshot_is_taken_at_the_end_of_every_cycle(epochs, cycles):
    trace = Snapshots(cycles)
    group = flock(trace)
    path = walk(group, trace, epochs)
    ends = [e for e in range(epochs) if (e + 1) * cycles // epochs > e * cycles // epochs]
    assert len(ends) == cycles == int(trace.seen) and ends[-1] == epochs - 1
    values, voices = trace.found(group)
    for name in group.names:
        wanted = path[name][ends].reshape(cycles * K, *path[name].shape[2:])
        assert np.array_equal(values[name].numpy(), wanted)
    assert np.allclose(voices["log_std"].numpy(), path["log_std"][ends].reshape(-1))


def test_snapshots_of_a_fit_that_ended_early():
    trace = Snapshots(4)
    group = flock(trace)
    for epoch in range(5):
        trace.see(group, epoch, 8)
    assert int(trace.seen) == 2 and trace.found(group)[0]["0.weight"].shape[0] == 2 * K


@pytest.mark.parametrize("make_trace", [lambda: PathMoments(0.25, 3, 0.0), lambda: Snapshots(3)])
def test_what_was_gathered_is_part_of_the_checkpoint(make_trace):
    """Half of a path, a new flock with the first one's state, the other half."""
    straight, first, second = make_trace(), make_trace(), make_trace()
    whole, before, after = flock(straight), flock(first), flock(second)
    walk(whole, straight, 9)

    def part(group, trace, epochs):
        tensors = group.values() | group.voices()
        for epoch in epochs:
            with torch.no_grad():
                for index, tensor in enumerate(tensors.values()):
                    made = torch.Generator().manual_seed(1000 * epoch + index)
                    tensor.copy_(torch.randn(tensor.shape, generator=made, dtype=torch.float64))
            trace.see(group, epoch, 9)

    part(before, first, range(5))
    after.load_state_dict({n: t.clone() for n, t in before.state_dict().items()})
    part(after, second, range(5, 9))
    one, two = whole.state_dict(), after.state_dict()
    assert all(torch.equal(one[n], two[n]) for n in one)
